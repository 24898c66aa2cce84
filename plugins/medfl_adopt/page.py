"""The page of an adopted bundle: what a federation makes of it, for the people who review it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from medfl.bundle.check.report import Report
from medfl.engine.needs import MEANING, OF_OBJECTIVE, OF_RUN
from medfl.utils.text import visible
from medfl_adopt.adoption import Adoption
from medfl_adopt.cases import Cases
from medfl_adopt.objective import KINDS, Recognition

if TYPE_CHECKING:
    from medfl_adopt.method_fit import MethodFit

WIDEST = 500
"""Letters of an expression above which the page shows its beginning; `medfl check-bundle` shows it whole."""


def page(adoption: Adoption, report: Report, methods: Sequence[MethodFit]) -> str:
    """The page as Markdown.

    Args:
        adoption: What was recognised.
        report: What a check says of the bundle.
        methods: Those that are installed, and whether they fit.
    """
    parts = [
        f"# {visible(report.title or adoption.root.resolve().name)} as a federation",
        "Written by `medfl adopt`, which read the bundle and ran nothing of it. `configs/federate.json` has the same "
        "facts for the run. All files of the bundle are as they were.",
        *_objective(adoption.objective),
        *_site(adoption.cases),
        *_training(adoption),
        *_methods(adoption, methods),
        *_ignored(adoption),
        *_code(report),
        *_files(report),
    ]
    return "\n\n".join(parts) + "\n"


def _objective(objective: Recognition) -> Iterator[str]:
    yield "## What is learned"
    yield f"**{objective.kind}**: {KINDS[objective.kind]}."
    yield "It was given as `--objective`. The bundle says:" if objective.chosen else "It was recognised by these signs:"
    yield _list(
        f"{_code_of(sign.text)} {'fits' if objective.kind in sign.kinds else 'speaks against it'}"
        for sign in objective.signs
    )


def _site(cases: Cases) -> Iterator[str]:
    yield "## What a site's folder must hold"
    yield (
        "Each folder `D/<site>/` of `medfl run DIR --dataset-dir D` is what the bundle expects under `dataset_dir`. "
        "Names of folders and files there are the bundle's:"
    )
    yield (
        _list(f"`{visible(pattern)}`" for pattern in cases.needs)
        if cases.needs
        else ("The configuration does not say which files; they are those that its list of cases names.")
    )
    if cases.list_files:
        files = ", ".join(f"`{visible(path)}` (`{id_}`)" for id_, path in cases.list_files.items())
        yield (
            f"The bundle lists its cases in a file of its own: {files}. A site has one of its own, of the same name in "
            f"its folder, which stands in its place.{' Paths in it begin at that folder.' if cases.relative else ''}"
        )
    yield {
        "one_list": "Training and validation cases are one list in the bundle; the site's splits deal it out. They "
        f"enter at {_ids(cases)}.",
        "own_lists": f"Training and validation cases are two lists in the bundle, and enter at {_ids(cases)}.",
        "dataset_dir": "The data sets find their cases themselves; a site's enter by `dataset_dir` alone, with the "
        "bundle's own split into training and validation.",
    }[cases.mode]
    if cases.test:
        yield f"The list that `evaluate` scores is another one, `{cases.test}`: the site's test cases."
    elif cases.mode == "one_list":
        yield "No list is for the test: `--val_fraction` and `--test_fraction` say how many cases are set aside."
    if cases.cuts:
        cuts = ", ".join(f"`{cut}` at `{id_}`" for id_, cut in cases.cuts)
        yield (
            f"The bundle cuts its list by position: {cuts}. A site of few cases would have nothing left on one side, "
            "so these cuts are replaced by the site's splits."
        )


def _ids(cases: Cases) -> str:
    return " and ".join(f"`{id_}`" for id_ in (cases.train, cases.validation) if id_)


def _training(adoption: Adoption) -> Iterator[str]:
    yield "## What trains and what scores"
    yield "medfl's one loop trains, with these parts of the bundle:"
    parts = {name: id_ for name, id_ in adoption.parts.ids().items() if id_ is not None}
    yield "| part | id |\n| --- | --- |\n" + "\n".join(f"| {name} | `{visible(id_)}` |" for name, id_ in parts.items())
    amp = {True: "on", False: "off", None: "told only by running the bundle"}[adoption.amp]
    yield f"Mixed precision in the bundle is {amp}. " + (
        "A run does as MONAI does: on a GPU it computes in mixed precision, with bfloat16, and on a CPU in float32. "
        "`--precision fp32` or `bf16` is for any device."
        if adoption.amp
        else "A run computes in float32 unless it is told `--precision amp` (on a GPU) or `bf16`."
    )
    if adoption.parts.lr_schedule:
        yield (
            f"The learning rate's schedule, `{visible(adoption.parts.lr_schedule)}`, takes a step after each round; "
            "`--schedule restart` begins it anew in each round, with a step after each epoch, and `off` leaves it out."
        )
    if "evaluate" in adoption.files:
        yield from _stock_evaluation(adoption)
    files = [f"`configs/{name}`" for kind, name in adoption.files.items() if kind != "train"]
    if files:
        yield f"Beside `configs/{adoption.files['train']}` there is {' and '.join(files)}, for the model at the end."


def _stock_evaluation(adoption: Adoption) -> Iterator[str]:
    """Yield which cases the bundle's own ``evaluate`` scores, and how to score the site's test cases with it."""
    train, evaluate = (adoption.files[kind] for kind in ("train", "evaluate"))
    if adoption.cases.mode != "one_list" and not adoption.cases.test:
        yield (
            f"**A run over this bundle has no test cases**, because the bundle names none. `configs/{evaluate}` scores "
            "the validation cases. Rounds may have been chosen by these, so its scores are not test scores."
        )
        return
    yield (
        f"**`configs/{evaluate}` alone does not score the test cases of a run.** It takes the bundle's own slice "
        "of the list of cases, which may hold cases that the run trained on. In the bundle that a site takes home, "
        "score its test cases with:"
    )
    yield (
        "    python -m monai.bundle run --config_file "
        f"\"['configs/{train}','configs/{evaluate}','configs/test_cases.json']\" --bundle_root ."
    )


def _methods(adoption: Adoption, methods: Sequence[MethodFit]) -> Iterator[str]:
    yield "## Which methods fit"
    refused = {fit.record.name: fit.refusal for fit in methods if fit.refusal is not None}
    depends = {fit.record.name: sorted(fit.record.needs - DECIDED) for fit in methods if fit.refusal is None}
    yield "With their default settings these fit, whatever the network is:"
    yield _list(f"`{fit.record.name}`: {fit.record.summary}" for fit in methods if depends.get(fit.record.name) == [])
    named = [f"its head `{adoption.head}`"] if adoption.head else []
    named += [f"its stages {', '.join(f'`{name}`' for name in adoption.stages)}"] if adoption.stages else []
    yield (
        "These need something of the network, which only building it tells; a run refuses them before it begins. "
        + (f"Named at the adoption: {' and '.join(named)}. " if named else "")
        + "Head and stages of MONAI's usual networks are known; of others `--head` and `--stage` name them."
    )
    yield _list(f"`{name}` needs {_meanings(needs)}" for name, needs in depends.items() if needs)
    yield "These do not fit; a run refuses them with these words. A run over this bundle has no public data:"
    yield _list(f"`{name}`: {visible(text)}" for name, text in refused.items())


DECIDED = OF_OBJECTIVE | OF_RUN | {"images_of_one_shape"}
"""Needs of methods that the network does not decide."""


def _meanings(needs: Iterable[str]) -> str:
    meanings = {str(need): text for need, text in MEANING.items()}
    return "; ".join(f"`{need}` ({meanings[need]})" for need in needs)


def _ignored(adoption: Adoption) -> Iterator[str]:
    yield "## What is left out"
    if not adoption.ignored:
        yield "Nothing."
        return
    yield "| what | why | in a federation |\n| --- | --- | --- |\n" + "\n".join(
        f"| {visible(entry.what)} | {entry.why} | {entry.instead} |" for entry in adoption.ignored
    )


def _code(report: Report) -> Iterator[str]:
    yield "## What code the configurations run"
    yield "Each of these is called or imported when the bundle runs; review what is neither MONAI's nor torch's."
    counts = Counter((code.package, code.text) for code in report.code if code.package)
    yield "| package | calls | times |\n| --- | --- | --- |\n" + "\n".join(
        f"| {visible(package)} | `{_short(text)}` | {count} |" for (package, text), count in sorted(counts.items())
    )
    expressions = [code for code in report.code if code.kind in ("expression", "mode", "disabled", "requires")]
    if expressions:
        yield "Expressions are Python, and can call more:"
        yield "\n".join(f"    {code.file}  {visible(code.id)}  {_short(code.text)}" for code in expressions)
    if report.errors or report.warnings:
        yield "`medfl check-bundle` says besides:"
        yield _list(visible(sentence) for sentence in (*report.errors, *report.warnings))


def _files(report: Report) -> Iterator[str]:
    yield "## Files with code or weights"
    yield "They were copied, and not one of them was loaded." if report.files else "None."
    if report.files:
        yield _list(f"`{visible(file.path)}`: {visible(file.text)}" for file in report.files)


def _short(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}..."


def _code_of(text: str) -> str:
    return visible(text[:1].upper() + text[1:]) + ":"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "- none"
