"""Markdown page of an adopted bundle, for the people who review the bundle.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added an overlay, the file
``configs/federate.json``. The needs of a method are its requirements on the network, the objective, the images or the
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from medfl.bundle.check.report import BundleReport
from medfl.engine.needs import NEED_CONDITIONS, OBJECTIVE_NEEDS, RUN_NEEDS
from medfl.utils.text import visible
from medfl_adopt.adoption import Adoption
from medfl_adopt.cases import CaseLayout
from medfl_adopt.objective import OBJECTIVE_KINDS, RecognizedObjective

if TYPE_CHECKING:
    from medfl_adopt.method_fit import MethodFit

MAX_EXPRESSION_LENGTH = 500
"""Largest number of characters of an expression on the page; longer expressions are truncated.

`medfl check-bundle` shows expressions completely.
"""


def render_page(adoption: Adoption, report: BundleReport, methods: Sequence[MethodFit]) -> str:
    """Return the page of an adopted bundle as Markdown.

    Args:
        adoption: Everything that was read and recognized of the bundle.
        report: Report of the bundle's check.
        methods: Result of the check of each installed method.
    """
    parts = [
        f"# {visible(report.title or adoption.root.resolve().name)} as a federation",
        "Written by `medfl adopt`, which read the bundle without running its code. `configs/federate.json` contains "
        "the same information for the run. All files of the bundle are unchanged.",
        *_objective_section(adoption.objective),
        *_site_section(adoption.cases),
        *_training_section(adoption),
        *_methods_section(adoption, methods),
        *_ignored_section(adoption),
        *_code_section(report),
        *_files_section(report),
    ]
    return "\n\n".join(parts) + "\n"


def _objective_section(objective: RecognizedObjective) -> Iterator[str]:
    """Yield the section on the objective."""
    yield "## Objective"
    yield f"**{objective.kind}**: {OBJECTIVE_KINDS[objective.kind]}."
    yield "It was given with `--objective`. Signs in the bundle:" if objective.chosen else "It was recognized by:"
    yield _markdown_list(
        f"{_sign_text(sign.text)} {'fits' if objective.kind in sign.kinds else 'contradicts it'}"
        for sign in objective.signs
    )


def _site_section(cases: CaseLayout) -> Iterator[str]:
    """Yield the section on the contents of a site's folder."""
    yield "## Contents of a site's folder"
    yield (
        "Each folder `D/<site>/` of `medfl run DIR --dataset-dir D` replaces the bundle's `dataset_dir`. It must "
        "contain folders and files with the bundle's names:"
    )
    yield (
        _markdown_list(f"`{visible(pattern)}`" for pattern in cases.needs)
        if cases.needs
        else ("The configuration does not name the files; its list of cases does.")
    )
    if cases.list_files:
        files = ", ".join(f"`{visible(path)}` (`{id_}`)" for id_, path in cases.list_files.items())
        yield (
            f"The bundle lists its cases in a file: {files}. Each site has a file with the same name in its folder, "
            f"which replaces it.{' Paths in it are relative to that folder.' if cases.relative else ''}"
        )
    yield {
        "one_list": "The bundle has one list of training and validation cases, which is split at each site. The site's "
        f"cases replace {_case_ids(cases)}.",
        "own_lists": f"The bundle has two lists of training and validation cases. The site's cases replace "
        f"{_case_ids(cases)}.",
        "dataset_dir": "The data sets find their cases in `dataset_dir` themselves, with the bundle's own split into "
        "training and validation.",
    }[cases.mode]
    if cases.test:
        yield f"`evaluate` scores another list, `{cases.test}`, which contains the site's test cases."
    elif cases.mode == "one_list":
        yield "There is no list of test cases: `--val-fraction` and `--test-fraction` set the sizes of the splits."
    if cases.cuts:
        cuts = ", ".join(f"`{cut}` at `{id_}`" for id_, cut in cases.cuts)
        yield (
            f"The bundle cuts its list by position: {cuts}. At a site with few cases one part would be empty, so the "
            "site's splits replace these cuts."
        )


def _case_ids(cases: CaseLayout) -> str:
    """Return the ids of training and validation cases as text."""
    return " and ".join(f"`{id_}`" for id_ in (cases.train, cases.validation) if id_)


def _training_section(adoption: Adoption) -> Iterator[str]:
    """Yield the section on training and evaluation."""
    yield "## Training and evaluation"
    yield "medfl's training loop uses these parts of the bundle:"
    parts = {name: id_ for name, id_ in adoption.parts.ids().items() if id_ is not None}
    yield "| part | id |\n| --- | --- |\n" + "\n".join(f"| {name} | `{visible(id_)}` |" for name, id_ in parts.items())
    amp = {True: "on", False: "off", None: "known only when the bundle runs"}[adoption.amp]
    yield f"Mixed precision in the bundle is {amp}. " + (
        "As in MONAI, a run computes in mixed precision with bfloat16 on a GPU, and in float32 on a CPU. `--precision "
        "fp32` and `bf16` apply to any device."
        if adoption.amp
        else "A run computes in float32 unless `--precision amp` (on a GPU) or `bf16` is given."
    )
    yield visible(adoption.start_sentence)
    if adoption.parts.lr_schedule:
        yield (
            f"The learning-rate schedule, `{visible(adoption.parts.lr_schedule)}`, takes a step after each round. "
            "`--schedule restart` restarts it in each round, with a step after each epoch; `off` disables it."
        )
    if "evaluate" in adoption.files:
        yield from _stock_evaluation(adoption)
    files = [f"`configs/{name}`" for kind, name in adoption.files.items() if kind != "train"]
    if files:
        yield f"The bundle also has {' and '.join(files)}, for the final model."


def _stock_evaluation(adoption: Adoption) -> Iterator[str]:
    """Yield which cases the bundle's own ``evaluate`` scores, and how to score the site's test cases with it."""
    train, evaluate = (adoption.files[kind] for kind in ("train", "evaluate"))
    if adoption.cases.mode != "one_list" and not adoption.cases.test:
        yield (
            f"**A run over this bundle has no test cases**, because the bundle names none. `configs/{evaluate}` scores "
            "the validation cases. These may have been used to select a round, so its scores are not test scores."
        )
        return
    yield (
        f"**`configs/{evaluate}` alone does not score the test cases of a run.** It uses the bundle's own slice "
        "of the list of cases, which may contain cases that the run trained on. In the bundle that a site exports, "
        "score its test cases with:"
    )
    yield (
        "    python -m monai.bundle run --config_file "
        f"\"['configs/{train}','configs/{evaluate}','configs/test_cases.json']\" --bundle_root ."
    )


def _methods_section(adoption: Adoption, methods: Sequence[MethodFit]) -> Iterator[str]:
    """Yield the section on the methods."""
    yield "## Methods"
    refused = {fit.record.name: fit.refusal for fit in methods if fit.refusal is not None}
    depends = {
        fit.record.name: sorted(fit.record.needs - NETWORK_INDEPENDENT_NEEDS) for fit in methods if fit.refusal is None
    }
    yield "These methods fit any network, with their default settings:"
    yield _markdown_list(
        f"`{fit.record.name}`: {fit.record.summary}" for fit in methods if depends.get(fit.record.name) == []
    )
    named = [f"its head `{adoption.head}`"] if adoption.head else []
    named += [f"its stages {', '.join(f'`{name}`' for name in adoption.stages)}"] if adoption.stages else []
    yield (
        "These methods have requirements that can be checked only when the network is built; a run checks them before "
        "it starts. "
        + (f"Given to `medfl adopt`: {' and '.join(named)}. " if named else "")
        + "Head and stages of MONAI's usual networks are known; for other networks give `--head` and `--stage`."
    )
    yield _markdown_list(f"`{name}` needs {_describe_needs(needs)}" for name, needs in depends.items() if needs)
    yield "These methods don't fit; a run refuses them with this message. A run over this bundle has no public data."
    yield _markdown_list(f"`{name}`: {visible(text)}" for name, text in refused.items())


NETWORK_INDEPENDENT_NEEDS = OBJECTIVE_NEEDS | RUN_NEEDS | {"images_of_one_shape", "trainable_body"}
"""Needs of methods that are conditions on the objective, the run or the images, and not on the network."""


def _describe_needs(needs: Iterable[str]) -> str:
    """Return needs with their meanings as text."""
    meanings = {str(need): text for need, text in NEED_CONDITIONS.items()}
    return "; ".join(f"`{need}` ({meanings[need]})" for need in needs)


def _ignored_section(adoption: Adoption) -> Iterator[str]:
    """Yield the section on the entries that a federation ignores."""
    yield "## Ignored entries"
    if not adoption.ignored:
        yield "None."
        return
    yield "| entry | reason | alternative |\n| --- | --- | --- |\n" + "\n".join(
        f"| {visible(entry.what)} | {entry.why} | {entry.instead} |" for entry in adoption.ignored
    )


def _code_section(report: BundleReport) -> Iterator[str]:
    """Yield the section on the code that the configurations run."""
    yield "## Code that the configurations run"
    yield "Each entry is called or imported when the bundle runs. Review all code that is not part of MONAI or torch."
    counts = Counter((code.package, code.text) for code in report.code if code.package)
    yield "| package | calls | times |\n| --- | --- | --- |\n" + "\n".join(
        f"| {visible(package)} | `{_truncate(text)}` | {count} |" for (package, text), count in sorted(counts.items())
    )
    expressions = [code for code in report.code if code.kind in ("expression", "mode", "disabled", "requires")]
    if expressions:
        yield "Expressions are Python code, which can call other code:"
        yield "\n".join(f"    {code.file}  {visible(code.id)}  {_truncate(code.text)}" for code in expressions)
    if report.errors or report.warnings:
        yield "Further findings of `medfl check-bundle`:"
        yield _markdown_list(visible(sentence) for sentence in (*report.errors, *report.warnings))


def _files_section(report: BundleReport) -> Iterator[str]:
    """Yield the section on files with code or weights."""
    yield "## Files with code or weights"
    yield "These files were copied without being loaded." if report.files else "None."
    if report.files:
        yield _markdown_list(f"`{visible(file.path)}`: {visible(file.text)}" for file in report.files)


def _truncate(text: str) -> str:
    """Truncate a long text."""
    shown = visible(text)
    return shown if len(shown) <= MAX_EXPRESSION_LENGTH else f"{shown[:MAX_EXPRESSION_LENGTH]}..."


def _sign_text(text: str) -> str:
    """Return a sign as the start of a sentence."""
    return visible(text[:1].upper() + text[1:]) + ":"


def _markdown_list(lines: Iterable[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines) or "- none"
