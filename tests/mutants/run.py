"""Put known faults into a copy of medfl, one at a time, and see that tests notice each: ``make mutants``.

The faults and the tests that must fail are in the files ``faults*.yaml`` beside this file. A fault that no test
notices, or that no longer fits the code, is an error. Tests stop at the first failure, so a fault costs as long as it
takes to be seen; the test that noticed it last (``noticed.json``) is run first. They run in forks of this process,
which has torch and MONAI at hand but nothing of medfl. What came out is the page ``docs/mutants.md``.

A run that was killed goes on with the same command: ``build/mutants.jsonl`` has what was tried in the tree as it
stands, and another tree begins anew.

    python tests/mutants/run.py [--only WORDS ...]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = tuple(sorted(Path(__file__).parent.glob("faults*.yaml")))
NOTICED = Path(__file__).with_name("noticed.json")
PAGE = ROOT / "docs" / "mutants.md"
DONE = ROOT / "build" / "mutants.jsonl"
OUTCOMES = {*FAULTS, NOTICED, PAGE}
"""Files that are no part of what is tried: a change of them restarts nothing."""

TESTS_FAILED = 1
"""pytest's status; another one than this and 0 is an error of the tests themselves."""

NO_SUCH_TEST = {4, 5}
"""pytest's statuses for a test name that does not exist or is left out."""

LIMIT = 1200
"""Seconds after which tests never end: the fault is noticed."""

HEAVY = ("torch._dynamo", "monai.bundle")
"""Modules that are imported once, for all tests; torch's optimisers import the first one."""

HEAD = """# Known faults, and the tests that notice them

On this page you look up which test notices which error in the code. Each of these faults was put into a copy of the
code, and the named test failed. Many are known from other implementations of the same methods; where it is known which,
the page says so. `make mutants` tries all of them again and writes this page: {noticed} of {total} were noticed.

| fault | in | seen elsewhere | noticed by |
| --- | --- | --- | --- |
"""

Fault = dict[str, Any]


def is_deleted(path: Path) -> bool:
    """Return True if a path below ``plugins`` or ``tests`` is in the folder of a deleted package."""
    top, *below = path.relative_to(ROOT).parts
    return top in ("plugins", "tests") and below[0].startswith("medfl_") and not (ROOT / top / below[0]).exists()


def applicable(fault: Fault) -> Fault | None:
    """Return a fault without tests of deleted packages; None if its file is in one, or if no test is left."""
    tests = [name for name in fault["tests"] if not is_deleted(ROOT / "tests" / name)]
    return None if is_deleted(ROOT / fault["file"]) or not tests else fault | {"tests": tests}


def read_faults(files: Sequence[Path] = FAULTS) -> list[Fault]:
    """Return the faults of the files, checked against the tree; those of deleted packages are left out.

    Raises:
        SystemExit: If one does not fit: its text is not there exactly once, or its tests are not there.
    """
    faults = [fitting for file in files for fault in yaml.safe_load(file.read_text()) if (fitting := applicable(fault))]
    for fault in faults:
        count = (ROOT / fault["file"]).read_text().count(fault["old"])
        if count != 1:
            sys.exit(f"'{fault['fault']}': expected its text once in {fault['file']}, got it {count} times.")
        if missing := [name for name in fault["tests"] if not (ROOT / "tests" / name).exists()]:
            sys.exit(f"'{fault['fault']}': no tests/{missing[0]}.")
    return faults


def read_noticed() -> dict[str, str]:
    """The test that noticed each fault last, by the fault's name."""
    return dict(json.loads(NOTICED.read_text())) if NOTICED.exists() else {}


def page(faults: Sequence[Fault], noticed: Mapping[str, str]) -> str:
    """The table of all faults, in Markdown."""
    rows = [
        f"| {fault['fault']} | `{fault['file']}` | {fault.get('seen', '')} | "
        + (f"`{noticed[fault['fault']]}` |" if fault["fault"] in noticed else "**none** |")
        for fault in faults
    ]
    count = sum(fault["fault"] in noticed for fault in faults)
    return HEAD.format(noticed=count, total=len(faults)) + "\n".join(rows) + "\n"


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text)
    temporary.replace(file)


def copy_tree(folder: Path) -> str:
    """A copy of all files that git knows or does not ignore; links stay links.

    Returns:
        The SHA-256 of what was copied, but for `OUTCOMES`.
    """
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed)):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
            if source not in OUTCOMES:
                content = os.readlink(source).encode() if source.is_symlink() else source.read_bytes()
                digest.update(json.dumps([name, hashlib.sha256(content).hexdigest()]).encode())
    return digest.hexdigest()


def run_tests(folder: Path, name: str) -> tuple[int, str]:
    """pytest's status on a file, a folder or a test of a copy of the tree, and what it printed."""
    words = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", "not flare and not slow", name]
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if not child:
            status = -1
            try:
                signal.alarm(LIMIT)
                os.chdir(folder)
                places = [str(folder), str(folder / "plugins")]
                sys.path[:0] = places
                os.environ |= {"PYTHONPATH": ":".join(places), "PYTHONDONTWRITEBYTECODE": "1"}
                sys.dont_write_bytecode = True  # a fault of the same size and second would live on in it
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                sys.stdout = sys.stderr = printed
                status = int(pytest.main(words))
                printed.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return status, printed.read()


def noticed_by(folder: Path, tests: Sequence[str], last: str | None = None) -> str | None:
    """The first test that fails in a copy of the tree; None if none does.

    Args:
        folder: Of the copy.
        tests: Files or folders of its ``tests``.
        last: A test to run before them.

    Raises:
        SystemExit: If the tests can't be run.
    """
    for name in [*([last] if last else []), *(f"tests/{name}" for name in tests)]:
        status, printed = run_tests(folder, name)
        if status == -signal.SIGALRM:
            return name
        if status == TESTS_FAILED:
            line = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", printed, re.MULTILINE)
            return line[1] if line else name
        if status and not (name == last and status in NO_SUCH_TEST):
            sys.exit(f"{name} can't be run:\n{printed[-4000:]}")
    return None


def main() -> int:
    """Try the faults; the status is 1 if one went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="those whose name or file has WORDS")
    options = parser.parse_args()
    faults, noticed = read_faults(), read_noticed()
    noticed = {fault["fault"]: noticed[fault["fault"]] for fault in faults if fault["fault"] in noticed}
    chosen = [
        fault for fault in faults if any(words in fault["fault"] or words in fault["file"] for words in options.only)
    ]
    for module in HEAVY:
        importlib.import_module(module)
    DONE.parent.mkdir(exist_ok=True)
    missed = 0
    with tempfile.TemporaryDirectory() as place, DONE.open("a+") as done:
        folder = Path(place) / "medfl"
        tree = copy_tree(folder)
        done.seek(0)
        lines = [line for line in done if line.endswith("\n")]  # the last one may have been cut off
        tried = dict(json.loads(line) for line in lines)
        done.truncate(sum(len(line.encode()) for line in lines))
        for fault in chosen:
            name, file = fault["fault"], folder / fault["file"]
            key = hashlib.sha256(json.dumps([tree, fault], sort_keys=True).encode()).hexdigest()
            if key not in tried:
                text = file.read_text()
                file.write_text(text.replace(fault["old"], fault["new"]))
                tried[key] = noticed_by(folder, fault["tests"], noticed.get(name))
                file.write_text(text)
                done.write(json.dumps([key, tried[key]]) + "\n")
                done.flush()
            test = tried[key]
            missed += test is None
            noticed = {other: by for other, by in noticed.items() if other != name} | ({name: test} if test else {})
            write(NOTICED, json.dumps(noticed, indent=1, sort_keys=True) + "\n")
            write(PAGE, page(faults, noticed))
            print(f"noticed: {name} ({test})" if test else f"MISSED: {name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults were noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
