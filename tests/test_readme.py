"""Every shell block of the README and of the guide is run, in order, in a copy of the project's layout."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from feature_commands import skip_without_commands_of
from warm import warm_commands

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/guide.md")
MARKS = {"README.md": (), "docs/guide.md": pytest.mark.slow}
"""Marks of the tests of each page; the guide's commands take half a minute."""

QUICK = {
    "--rounds 5": "--rounds 1 --steps 1",
    "--rounds 3": "--rounds 1 --steps 1",
    "--steps 100": "--steps 5",
    "--sites 20": "--sites 6",
    "breastmnist pneumoniamnist adrenalmnist3d": "adrenalmnist3d",
}
"""Replacements that shorten the commands: fewer rounds and sites, and only the volumes in a loop over data sets."""

RUNS = {
    "README.md": {"fedprox": 6, "local": 6},
    "docs/guide.md": {"fedavg": 6, "fedprox": 6, "local": 6, "adrenalmnist3d": 4},
}
"""Maps each page to the runs that its commands leave and their numbers of sites."""

STRIDES = {"bloodmnist": 25, "adrenalmnist3d": 50}
"""Maps each data set to n: the files that the commands read contain every n-th image."""


def blocks(page: str) -> list[str]:
    """Return the shell blocks of a page, except blocks that call make."""
    shell = re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    return [block for block in shell if not block.startswith("make ")]


def test_the_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"^make {target}\b", text, re.M)
        assert re.search(rf"^{target}:", makefile, re.M)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def without_docstrings(code: str) -> dict[str, str]:
    """Return the classes and functions of a module by name, without imports and docstrings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {node.name: ast.unparse(node) for node in definitions}


def test_the_method_of_the_readme_is_that_of_the_tree() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```python\n(class FedProx.*?)^```$", text, re.M | re.S)
    pytest.importorskip("medfl_methods")
    file = ROOT / "plugins" / "medfl_methods" / "fedprox.py"
    assert without_docstrings(shown) == without_docstrings(file.read_text(encoding="utf-8"))


def test_the_program_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(import medfl.*?)^```$", text, re.M | re.S)
    exec(program, {"__name__": "__main__"})  # noqa: S102
    assert "accuracy" in capsys.readouterr().out


def test_the_files_that_the_readme_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Create a folder for each page, laid out like the project, with the data sets that the page uses."""
    if "MEDFL_DATA" not in os.environ:
        pytest.skip("MEDFL_DATA does not name a folder of real data")
    folders = {page: tmp_path_factory.mktemp(Path(page).stem.lower()) for page in PAGES}
    for folder in folders.values():
        shutil.copytree(ROOT / "bundles", folder / "bundles", ignore=shutil.ignore_patterns("models", "runs", "eval"))
        (folder / "downloads").mkdir()
    for flag, stride in STRIDES.items():
        with np.load(Path(os.environ["MEDFL_DATA"]) / "medmnist" / f"{flag}.npz") as whole:
            arrays = {name: whole[name][::stride] for name in whole}
        for folder in folders.values():
            np.savez(folder / "downloads" / f"{flag}.npz", **arrays)
    return folders


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide the folder with the commands ``medfl`` and ``python``."""
    with warm_commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.mark.parametrize(
    ("page", "number"),
    [pytest.param(page, number, marks=MARKS[page]) for page in PAGES for number in range(len(blocks(page)))],
)
@pytest.mark.usefixtures("run_reports")
def test_the_commands_of_a_page_run(
    places: dict[str, Path],
    page: str,
    number: int,
    medfl: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Run plain commands of medfl in this process, and other blocks in a shell."""
    block = blocks(page)[number]
    skip_without_commands_of(block)
    for slow, quick in QUICK.items():
        block = block.replace(slow, quick)
    lines = block.replace("\\\n", " ").splitlines()
    if all(line.startswith("medfl ") and not re.search("[|&<>$]", line) for line in lines):
        monkeypatch.chdir(places[page])
        for line in lines:
            status, out, err = medfl(*shlex.split(line, comments=True)[1:])
            assert status == 0, f"{line}\n{out}\n{err}"
        return
    commands = request.getfixturevalue("commands")
    block = re.sub(r"(monai\.bundle .*)--steps", r"\1--settings#steps", block)
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", block]
    done = subprocess.run(command, cwd=places[page], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS[page]) for page in PAGES])
def test_the_commands_of_a_page_leave_runs_and_exported_bundles(places: dict[str, Path], page: str) -> None:
    pytest.importorskip("medfl_report")
    place = places[page]
    for run, sites in RUNS[page].items():
        folder = place / "runs" / run
        assert {"metrics.csv", "summary.json", "run.json", "report.html"} <= {path.name for path in folder.iterdir()}
        assert len(list((folder / "sites").glob("site-*/models/model.pt"))) == sites
    assert (place / "runs" / "report.html").is_file()
    assert any((place / "data").glob("*/image_counts.svg"))
    if "monai.bundle run" not in "".join(blocks(page)):
        return
    exported = place / "runs" / "fedavg" / "sites" / "site-01"
    scores = json.loads((place / "runs" / "fedavg" / "summary.json").read_text())["scores"]["global"]["test"]
    line = next(line for line in (exported / "eval" / "metrics.csv").read_text().splitlines() if "accuracy," in line)
    assert float(line.split(",")[1]) == pytest.approx(scores["accuracy"]["sites"]["site-01"], abs=1e-6)
    if "ckpt_export" in "".join(blocks(page)):
        assert (exported / "models" / "model.ts").stat().st_size > 1_000_000
