"""The list of faults that tests must notice fits the code, and its page the list; `make mutants` puts them in."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run():
    """The script as a module, loaded anew."""
    spec = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests" / "mutants" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fault_fits_the_code_and_names_its_tests(run):
    faults = run.read_faults()
    names = [fault["fault"] for fault in faults]
    assert len(set(names)) == len(names) >= 30
    assert all(fault["tests"] and fault["old"] != fault["new"] for fault in faults)


def test_faults_of_a_deleted_package_are_left_out(run, tmp_path, monkeypatch):
    fault = {"fault": "one", "file": "medfl/a.py", "tests": ["medfl_x", "core"], "old": "a", "new": "b"}
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "tests" / "core").mkdir(parents=True)
    assert run.applicable(fault) == fault | {"tests": ["core"]}
    assert run.applicable(fault | {"tests": ["medfl_x/test_a.py"]}) is None
    assert run.applicable(fault | {"file": "plugins/medfl_x/a.py"}) is None
    (tmp_path / "plugins" / "medfl_x").mkdir(parents=True)
    assert run.applicable(fault | {"file": "plugins/medfl_x/a.py"}) is not None, "a file alone is no package"


def test_the_page_has_every_fault_with_a_test_that_is_there(run):
    faults = [fault for file in run.FAULTS for fault in yaml.safe_load(file.read_text())]
    noticed = run.read_noticed()
    assert run.PAGE.read_text() == run.page(faults, noticed), "run: make mutants"
    assert noticed.keys() == {fault["fault"] for fault in faults}
    for test in noticed.values():
        file, _, name = test.partition("::")
        if not run.is_deleted(ROOT / file):
            assert (ROOT / file).exists(), test
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


@pytest.mark.parametrize(
    ("field", "value"), [("old", "no such text"), ("old", "import"), ("tests", ["no/such/folder"])]
)
def test_a_fault_that_does_not_fit_is_named(run, tmp_path, field, value):
    fault = run.read_faults()[0] | {field: value}
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump([fault]))
    with pytest.raises(SystemExit, match=fault["fault"]):
        run.read_faults([tmp_path / "faults.yaml"])


@pytest.fixture
def start(tmp_path):
    """Run the script on a tiny tree with two faults, one of them noticed; return its status and its output."""
    change = {"file": "sums.py", "tests": ["test_sums.py"], "old": "a + b"}
    faults = [
        change | {"fault": "minus", "new": "a - b", "seen": "Abacus"},
        change | {"fault": "turned", "new": "b + a"},
    ]
    script = (ROOT / "tests/mutants/run.py").read_text()
    files = {
        "sums.py": "def add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "import logging\n\nfrom sums import add\n\n\ndef test_add():\n"
        "    logging.error('a line of the log, which is no name of a test')\n    assert add(1, 2) == 3\n",
        "tests/mutants/run.py": script.replace('HEAVY = ("torch._dynamo", "monai.bundle")', "HEAVY = ()"),
        "tests/mutants/faults.yaml": yaml.safe_dump(faults),
        "docs/README.md": "",
        ".gitignore": "build/\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def start(*words):
        command = [sys.executable, "tests/mutants/run.py", *words]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout

    return start


@pytest.mark.slow
def test_what_was_tried_in_this_tree_is_not_tried_again(start, tmp_path):
    done = tmp_path / "build/mutants.jsonl"
    test = "tests/test_sums.py::test_add"
    assert start("--only", "min") == (0, f"noticed: minus ({test})\n1 of 1 faults were noticed\n")
    first = done.read_text()
    done.write_text(first + '["half a li')  # a kill while it was written
    status, printed = start()
    assert (status, printed) == (1, f"noticed: minus ({test})\nMISSED: turned\n1 of 2 faults were noticed\n")
    assert done.read_text().startswith(first)
    assert done.read_text().count("\n") == 2
    page = (tmp_path / "docs/mutants.md").read_text()
    assert f"| minus | `sums.py` | Abacus | `{test}` |\n| turned | `sums.py` |  | **none** |\n" in page
    assert start() == (status, printed)
    assert done.read_text().count("\n") == 2
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return 0 + a + b\n")  # another tree
    assert start("--only", "min")[0] == 0
    assert done.read_text().count("\n") == 3


@pytest.mark.slow
def test_the_test_that_noticed_a_fault_last_comes_first_if_it_is_still_there(start, tmp_path):
    noticed, more = tmp_path / "tests/mutants/noticed.json", tmp_path / "tests/test_more.py"
    more.write_text((tmp_path / "tests/test_sums.py").read_text())
    for last, first in (
        ("tests/test_more.py", "tests/test_more.py::test_add"),
        ("tests/test_sums.py::test_that_is_gone", "tests/test_sums.py::test_add"),
        ("tests/gone.py", "tests/test_sums.py::test_add"),
    ):
        (tmp_path / "build/mutants.jsonl").unlink(missing_ok=True)
        noticed.write_text(json.dumps({"minus": last}))
        assert start("--only", "min") == (0, f"noticed: minus ({first})\n1 of 1 faults were noticed\n")
        assert json.loads(noticed.read_text()) == {"minus": first}


def test_tests_that_can_not_be_run_stop_all(start, tmp_path):
    (tmp_path / "tests/test_sums.py").write_text("import no_such_module\n")
    assert start() == (1, "")
