"""Page about the Python API: its smallest program runs, and every function on it exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import medfl

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
LINES = 15
"""Largest number of lines of the smallest federation, without blank ones."""


def test_the_smallest_federation_is_short_and_runs(tmp_path: Path) -> None:
    program = BLOCKS[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= LINES
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"round +site +model +split +moment +metric +value", done.stdout)
    assert list(tmp_path.iterdir()) == [], "it leaves no files"


def test_the_names_on_the_page_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = set(re.findall(r"\bmedfl\.(\w+)", text)) - {"md"}
    assert {name for name in names if not hasattr(medfl, name)} == set()
    run = set(re.findall(r"\bfedprox\.(\w+)", BLOCKS[0]))
    assert {name for name in run if name not in {*dir(medfl.Run), *medfl.Run.__dataclass_fields__}} == set()
