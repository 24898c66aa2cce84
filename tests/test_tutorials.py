"""Every tutorial runs as it stands, block by block in an empty folder, and prints what its page says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dicomweb_server import FolderServer, serving_dicomweb
from feature_commands import skip_without_commands_of
from orthanc import is_orthanc_installed
from PIL import Image
from warm import warm_commands

DOCS = Path(__file__).parents[1] / "docs"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PAGES = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.name != "README.md")
PAGES.append(DOCS / "write_a_dataset.md")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of ``medfl`` and ``python``."""
    with warm_commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.fixture
def shell(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield an empty folder, and put the commands in front of ``PATH``; stop all programs of a page at the end."""
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    yield tmp_path
    if (tmp_path / "orthanc.pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "orthanc.pid").read_text()), signal.SIGTERM)
    for kit in sorted(tmp_path.glob("kits/*/local")):
        subprocess.run(["medfl", "federate", "stop", str(kit.parent)], capture_output=True, check=False)


def pattern(text: str) -> str:
    """A regular expression for what a page shows: ``...`` is anything in a line, a line of it any lines or none."""
    lines = (line.rstrip().split("...") for line in text.splitlines())
    return "".join(r"(?:.*\n)*?" if line == ["", ""] else ".*".join(map(re.escape, line)) + r"[ ]*\n" for line in lines)


def perform(page: Path, folder: Path, blocks: list[tuple[str, str]] | None = None) -> None:
    """Do what a reader does, block by block; blocks of ``bash`` are about the reader's own repository."""
    printed = ""
    for number, (language, block) in enumerate(blocks or FENCED.findall(page.read_text(encoding="utf-8"))):
        if language == "bash":
            continue
        if language == "text":
            assert re.fullmatch(pattern(block), printed), f"{page.name} shows\n{block}\nand it is\n{printed}"
            continue
        if language == "python":
            (folder / f"block_{number}.py").write_text(block, encoding="utf-8")
            block = f"python -m block_{number}"
        else:
            assert language == "sh", language
        done = subprocess.run(["bash", "-e", "-c", block], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{page.name}:\n{block}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_runs_unchanged(page: Path, shell: Path) -> None:
    text = page.read_text(encoding="utf-8")
    skip_without_commands_of(text)
    if "Orthanc" in text and not is_orthanc_installed():
        pytest.skip("Orthanc with its DICOMweb plugin is not installed (apt-get install orthanc orthanc-dicomweb)")
    perform(page, shell)


@pytest.mark.slow
def test_hospitals_that_were_prepared_one_by_one_make_a_federation(shell: Path) -> None:
    section = (DOCS / "data.md").read_text(encoding="utf-8").split("### Hospitals that were prepared one by one\n")[1]
    blocks = FENCED.findall(section.split("\n### ")[0])
    skip_without_commands_of(blocks[0][1])
    for number, name in enumerate(("north", "south", "west")):
        images = np.random.default_rng(number).integers(0, 256, (20, 16, 16), np.uint8)
        images[1::2] //= 4
        (shell / "scans" / name).mkdir(parents=True)
        for image, values in enumerate(images):
            Image.fromarray(values).save(shell / "scans" / name / f"{image}.png")
        lines = [f"{image}.png,{('benign', 'malignant')[image % 2]},p{image}" for image in range(20)]
        (shell / f"{name}.csv").write_text("\n".join(["file,diagnosis,patient", *lines]), encoding="utf-8")
        prepare = f"medfl prep folder scans/{name} --table {name}.csv --image-column file --target class:diagnosis"
        perform(DOCS / "data.md", shell, [("sh", f"{prepare} --group-column patient --size 16 --out pooled/{name}")])
    perform(DOCS / "data.md", shell, blocks)
    scores = (shell / "runs" / "hospitals" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert {line.split(",")[1] for line in scores if line.startswith("5,")} >= {"north", "south", "west"}
    assert sorted(path.name for path in (shell / "runs" / "hospitals" / "sites").iterdir()) == [
        "north",
        "south",
        "west",
    ]


PACS_URL = "http://127.0.0.1:18042/dicom-web"
"""Address of Orthanc on its page."""


@pytest.mark.slow
def test_the_page_about_the_pacs_runs_with_another_pacs(shell: Path) -> None:
    if is_orthanc_installed() and "MEDFL_WITHOUT_ORTHANC" not in os.environ:
        pytest.skip("the page runs with Orthanc; MEDFL_WITHOUT_ORTHANC=1 runs it with the small server, too")
    page = DOCS / "tutorials" / "from_the_pacs.md"
    skip_without_commands_of(page.read_text(encoding="utf-8"))
    for package in ("dicomweb_client", "dicomanonymizer"):
        pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")
    blocks = [block for block in FENCED.findall(page.read_text(encoding="utf-8")) if "orthanc.pid" not in block[1]]
    perform(page, shell, blocks[:1])
    with serving_dicomweb(FolderServer.of_files(shell / "clinic")) as server:
        perform(page, shell, [(language, block.replace(PACS_URL, server.url)) for language, block in blocks[1:]])


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a ... d\n", "a b c d \n", True),
        ("...\nd\n", "d\n", True),
        ("...\nd\n", "a\nb\nd\n", True),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("a ... d\n", "a b\nd\n", False),
    ],
)
def test_dots_stand_for_what_may_differ(shown: str, printed: str, fits: bool) -> None:
    assert bool(re.fullmatch(pattern(shown), printed)) == fits
