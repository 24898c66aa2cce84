"""Every command in the README is run, in order, in a copy of the project's layout; `make` itself is not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    """The lines of all shell blocks but the one that calls make."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("make ")]


def test_the_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}\n" in text
        assert re.search(rf"^{target}:", makefile, re.M)


@pytest.mark.skipif("MEDFL_DATA" not in os.environ, reason="MEDFL_DATA does not name a folder of real data")
def test_the_readme_commands_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bundles", tmp_path / "bundles")
    (tmp_path / "downloads").symlink_to(Path(os.environ["MEDFL_DATA"]) / "medmnist")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path
    lines = commands()
    assert any("monai.bundle run" in line for line in lines)
    for line in lines:
        if line.startswith("cd "):
            folder = tmp_path / line.removeprefix("cd ")
            continue
        quick = line.replace("--rounds 5", "--rounds 1 --fraction 0.1 --batch_size 50")
        environment = os.environ | {"PATH": path}
        done = subprocess.run(
            quick, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        folder = tmp_path if line.startswith("python -m monai") else folder
    for method in ("fedavg", "fedprox"):
        run = tmp_path / "runs" / method
        assert {"metrics.csv", "summary.json", "run.json"} <= {path.name for path in run.iterdir()}
        assert len(list((run / "sites").glob("site-*/models/model.pt"))) == 20
