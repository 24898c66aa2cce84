"""The documentation is true: pages of methods are what the code gives now, and the pages about methods run."""

from __future__ import annotations

import logging
import re
import runpy
import shlex
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field
from refusals import refused

from medfl.cli.docs import method_page, write_pages
from medfl.cli.main import main
from medfl.cli.run import settings_page
from medfl.contract import Capability, ReducesTo
from medfl.errors import PluginError
from medfl.hooks import MethodRecord
from medfl.plugins import load_plugins
from medfl.settings import Execution, Privacy, Settings
from medfl.toolkit.averaging import Averaging
from medfl.utils.metadata import Count, MetaField, bounded_number, list_of

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def own():
    """The registry, and the names of the methods that come with medfl."""
    registry = load_plugins()
    return registry, [
        name for name in sorted(registry.methods) if registry.plugins_listing("method", name) == ["medfl_methods"]
    ]


# ---- pages of methods


def test_the_pages_of_methods_are_what_the_code_gives_now(own, tmp_path):
    registry, names = own
    written = write_pages(registry, names, tmp_path, index=True)
    assert {path.name for path in written} == {path.name for path in (DOCS / "methods").iterdir()}
    for path in written:
        committed = (DOCS / "methods" / path.name).read_text(encoding="utf-8")
        assert committed == path.read_text(encoding="utf-8"), "run: medfl docs --out docs/methods"


def test_every_method_documents_when_to_use_it_and_every_parameter(own):
    registry, names = own
    for name in names:
        page = method_page(registry.methods[name], registry.method_class(name))
        assert "## When to use it" in page, name
        assert "|  |" not in page, f"{name} has a parameter without a description"


class Talkative(Averaging):
    """It does
    something.

    Update rule:
        Each step is

            w <- w - rate

        with any rate.

    When to use it: Never.

    Limits:
        - one,
          in two lines
        - two

    Attributes:
        rate: How fast,
            in metres.
        kinds: Which.

    Source: A. Body, 2030.
    """

    sends: ClassVar = {"proto/": "statistic", "images/": "samples"}
    sends_meta: ClassVar = {
        "count": MetaField("public", list_of(bounded_number(0, 1), "classes")),
        "size": MetaField("private", Count),
    }
    supports: ClassVar = frozenset({Capability.DIFFERENT_NETWORKS, Capability.PEER_MESSAGES})
    needs: ClassVar = frozenset({"public_data"})
    presets: ClassVar = {"paper": {"rate": 2.0}, "medfl": {}}
    reduces_to: ClassVar = (ReducesTo("fedavg", {"rate": 0.0}, {"weights": "uniform"}, {"norm_sync": "none"}),)

    rate: float | None = Field(None, gt=0, le=5)
    kinds: tuple[Literal["a", "b"], ...] = ("a",)
    steps: int = Field(ge=1)


@pytest.mark.parametrize(
    "line",
    [
        "It does something.",
        "w <- w - rate",
        "with any rate.",
        "- one, in two lines",
        "- two",
        "A. Body, 2030.",
        "| `proto/...` | statistic | numbers computed from the site's data; refused in a run with a privacy setting |",
        "| `count` | list of number, >= 0, <= 1, 'classes' entries |",
        "| `size` | whole number, >= 0 (not sent in a run with a privacy setting) |",
        "Sites also send peer messages directly to each other. A run with a privacy setting refuses them.",
        "- Networks: may differ between sites.",
        "- Public data: required (`--public FOLDER`).",
        "- Privacy setting (`--privacy`): not supported; the run is refused.",
        "| `rate` | number or `None`, > 0, <= 5 | `None` | How fast, in metres. |",
        "| `kinds` | list of `a` or `b` | `['a']` | Which. |",
        "| `steps` | whole number, >= 1 | `required` |  |",
        "- `paper`: `rate = 2.0`",
        "- `medfl`: the defaults",
        "- With `rate = 0.0`, this method equals `fedavg` with `weights = uniform` in a run with `norm_sync = none`.",
    ],
)
def test_page_contains_everything_that_the_class_declares(line):
    record = MethodRecord("talkative", "a:B", "averaging", "", summary="it talks")
    lines = method_page(record, Talkative).splitlines()
    assert line in lines
    # Inherited parameters follow the class's own, with the description of the parent class.
    rows = [row for row in lines if row.startswith(("| `steps`", "| `gradient_clip`"))]
    assert rows[1].startswith(
        "| `gradient_clip` | number or `None`, > 0 | `None` | Maximum L2 norm of a batch's gradient"
    )


def test_nothing_is_written_for_an_unknown_method(own, tmp_path):
    with refused(PluginError, "unknown_choice", what="method", choice="fedavgg"):
        write_pages(own[0], ["fedprox", "fedavgg"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_of_settings_is_what_the_code_gives_now():
    committed = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page() + "\n", "run: medfl run --help-settings > docs/settings.md"
    assert all(info.description for kind in (Settings, Execution, Privacy) for info in kind.model_fields.values())
    assert not re.search(r"^ +[<>]", committed, re.MULTILINE), "Markdown takes such a line for a quotation"


# ---- the pages about writing a method


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of all fenced blocks, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def perform(language: str, code: str) -> None:
    """Do what a reader does with a block: save a file that names itself, run Python, or type commands."""
    named = re.match(r"# (\w+\.py)\n", code)
    if language == "python" and named:
        Path(named.group(1)).write_text(code.removeprefix(named.group(0)), encoding="utf-8")
    elif language == "python":
        exec(compile(code, "page.md", "exec"), {"__name__": "__main__"})
    else:
        assert language == "sh", language
        for line in code.replace("\\\n", " ").splitlines():
            command(shlex.split(line))


def command(words: list[str]) -> None:
    """A line of a shell block; medfl itself and a file of tests run in this process, which has imported MONAI."""
    if words[0] == "medfl":
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
        assert not ended.value.code, words
    else:
        assert words[:3] == ["python", "-m", "pytest"]
        (path,) = words[3:]
        (test,) = [function for name, function in runpy.run_path(path).items() if name.startswith("test_")]
        test()


@pytest.fixture
def _logging_restored():
    """A bundle's logging.conf sets up logging for the whole process."""
    loggers = [logging.getLogger(name) for name in (None, "medfl", "monai")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("_logging_restored")
def test_the_pages_about_methods_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    languages = {
        "write_a_method.md": ["sh", "python", "sh", "python", "sh", "sh"],
        "method_exchanges.md": ["python", "sh", "python", "sh"],
        "method_details.md": ["python", "python", "sh"],
    }
    for page, expected in languages.items():
        listed = blocks((DOCS / page).read_text(encoding="utf-8"))
        assert [language for language, _ in listed] == expected, page
        for language, code in listed:
            perform(language, code)
    output = capsys.readouterr().out
    assert "own_head" in output
    for method in ("fedavg", "own_head"):
        assert len(list(Path("runs", method, "sites").glob("*/models/model.pt"))) == 4
    assert not Path("runs", "own_head", "global").exists(), "each site has a head of its own"
    for method, models in (("steered", ["global"]), ("beside", ["global", "personal"])):
        scored = {
            line.split(",")[2]
            for line in Path("runs", method, "metrics.csv").read_text().splitlines()
            if ",test," in line
        }
        assert set(models) <= scored, method
    looks = [line for line in Path("runs", "second_look", "metrics.csv").read_text().splitlines() if "right_af" in line]
    assert len(looks) == 4, "each site had a second look in one of two rounds"
    page = Path("pages", "own_head.md").read_text(encoding="utf-8")
    assert "When sites have similar images but different class shares." in page
    report = Path("counts.html").read_text(encoding="utf-8")
    assert "<li>own_head: 4 sites</li>" in report
    assert "Results of fewer than five sites predict little about a new site." in report


def test_links_lead_somewhere():
    pages = [*DOCS.rglob("*.md"), *(DOCS.parent / "bundles").rglob("*.md"), *DOCS.parent.glob("*/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_data_sets_names_every_data_set_and_bundle(own):
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    assert set(own[0].datasets) <= set(re.findall(r"medfl prep (\w+)", page))
    for bundle in (DOCS.parent / "bundles").iterdir():
        assert f"[{bundle.name}](../bundles/{bundle.name}/docs/README.md)" in page, bundle.name
