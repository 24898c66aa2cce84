"""Every shell block in the README is run, in order, in a copy of the project's layout; `make` itself is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from feature_commands import skip_without_commands_of
from warm import warm_commands

ROOT = Path(__file__).parents[1]
QUICK = {
    "--rounds 5": "--rounds 1 --steps 1",
    "--rounds 3": "--rounds 1 --steps 1",
    "--steps 100": "--steps 5",
    "--sites 20": "--sites 6",
    "breastmnist pneumoniamnist adrenalmnist3d": "adrenalmnist3d",
}
"""Fewer rounds and sites, and of a loop over data sets the volumes: the commands are the same."""

KEPT = 25
"""One image in so many is in the files that the commands read."""


def blocks() -> list[str]:
    """The shell blocks but the one that calls make."""
    shell = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [block for block in shell if not block.startswith("make ")]


def test_the_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}\n" in text
        assert re.search(rf"^{target}:", makefile, re.M)


def test_the_files_that_the_readme_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out like the project, with the data sets that the README speaks of."""
    if "MEDFL_DATA" not in os.environ:
        pytest.skip("MEDFL_DATA does not name a folder of real data")
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "bundles", folder / "bundles", ignore=shutil.ignore_patterns("models", "runs", "eval"))
    (folder / "downloads").mkdir()
    for flag in ("bloodmnist", "adrenalmnist3d"):
        with np.load(Path(os.environ["MEDFL_DATA"]) / "medmnist" / f"{flag}.npz") as whole:
            np.savez(folder / "downloads" / f"{flag}.npz", **{name: whole[name][::KEPT] for name in whole})
    return folder


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of ``medfl`` and ``python``."""
    with warm_commands(tmp_path_factory.mktemp("commands")) as folder:
        yield folder


@pytest.mark.parametrize("number", range(len(blocks())))
def test_the_readme_commands_run(place: Path, commands: Path, number: int) -> None:
    block = blocks()[number]
    skip_without_commands_of(block)
    for slow, quick in QUICK.items():
        block = block.replace(slow, quick)
    block = re.sub(r"(monai\.bundle .*)--steps", r"\1--settings#steps", block)
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", block]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def test_the_readme_leads_to_what_it_says(place: Path) -> None:
    pytest.importorskip("medfl_report")
    for run, sites in {"fedavg": 6, "fedprox": 6, "local": 6, "adrenalmnist3d": 4}.items():
        folder = place / "runs" / run
        assert {"metrics.csv", "summary.json", "run.json", "report.html"} <= {path.name for path in folder.iterdir()}
        assert len(list((folder / "sites").glob("site-*/models/model.pt"))) == sites
    home = place / "runs" / "fedavg" / "sites" / "site-01"
    scores = json.loads((place / "runs" / "fedavg" / "summary.json").read_text())["scores"]["global"]["test"]
    line = next(line for line in (home / "eval" / "metrics.csv").read_text().splitlines() if "accuracy," in line)
    assert float(line.split(",")[1]) == pytest.approx(scores["accuracy"]["sites"]["site-01"], abs=1e-6)
    assert (home / "models" / "model.ts").stat().st_size > 1_000_000
    assert "who_holds_what.svg" in {path.name for path in (place / "data" / "blood20").iterdir()}
