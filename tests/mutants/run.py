"""Put known faults into a copy of medfl, one at a time, and see that tests notice each: ``make mutants``.

The faults and the tests that must fail are in ``faults.yaml`` beside this file. A fault that no test notices, or that
no longer fits the code, is an error. Tests stop at the first failure, so a fault costs as long as it takes to be seen.

    python tests/mutants/run.py [--only WORDS] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.yaml")
TESTS_FAILED = 1
"""pytest's status; another one than this and 0 is an error of the tests themselves."""


def read_faults(file: Path = FAULTS) -> list[dict[str, object]]:
    """The faults of the file, checked against the tree.

    Raises:
        SystemExit: If one does not fit: its text is not there exactly once, or its tests are not there.
    """
    faults = yaml.safe_load(file.read_text())
    for fault in faults:
        count = (ROOT / fault["file"]).read_text().count(fault["old"])
        if count != 1:
            sys.exit(f"'{fault['fault']}': expected its text once in {fault['file']}, got it {count} times.")
        if missing := [name for name in fault["tests"] if not (ROOT / "tests" / name).exists()]:
            sys.exit(f"'{fault['fault']}': no tests/{missing[0]}.")
    return list(faults)


def copy_tree(folder: Path) -> None:
    """A copy of all files that git knows or does not ignore; links stay links."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def noticed_by(folder: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails in a copy of the tree; None if none does.

    Raises:
        SystemExit: If the tests can't be run.
    """
    environment = os.environ | {"PYTHONPATH": f"{folder}:{folder / 'plugins'}", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in tests:
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-m", "not flare and not slow", f"tests/{name}"]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode == TESTS_FAILED:
            line = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return line[1] if line else name
        if done.returncode:
            sys.exit(f"tests/{name} can't be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return None


def main() -> int:
    """Try the faults; the status is 1 if one went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose name holds these words")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table in Markdown of what noticed which fault")
    options = parser.parse_args()
    faults, rows, missed = read_faults(), [], 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "medfl"
        copy_tree(folder)
        for fault in (fault for fault in faults if options.only in str(fault["fault"])):
            file = folder / str(fault["file"])
            text = file.read_text()
            file.write_text(text.replace(str(fault["old"]), str(fault["new"])))
            test = noticed_by(folder, fault["tests"])  # type: ignore[arg-type]
            file.write_text(text)
            missed += test is None
            print(
                f"{'MISSED' if test is None else 'noticed'}: {fault['fault']}{f' ({test})' if test else ''}", flush=True
            )
            rows.append(f"| {fault['fault']} | `{fault['file']}` | {f'`{test}`' if test else '**none**'} |")
    if options.out is not None:
        options.out.write_text("\n".join(["| fault | in | noticed by |", "|---|---|---|", *rows]) + "\n")
    print(f"{len(rows) - missed} of {len(rows)} faults were noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
