"""The list of faults that tests must notice fits the code; `make mutants` puts them in."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

run = runpy.run_path(str(Path(__file__).parent / "mutants" / "run.py"))
ROOT = Path(__file__).parents[1]


def test_every_fault_fits_the_code_and_names_its_tests():
    faults = run["read_faults"]()
    names = [fault["fault"] for fault in faults]
    assert len(set(names)) == len(names) >= 30
    assert all(fault["tests"] and fault["old"] != fault["new"] for fault in faults)


@pytest.mark.parametrize(
    ("field", "value"), [("old", "no such text"), ("old", "import"), ("tests", ["no/such/folder"])]
)
def test_a_fault_that_does_not_fit_is_named(tmp_path, field, value):
    import yaml

    fault = run["read_faults"]()[0] | {field: value}
    (tmp_path / "faults.yaml").write_text(yaml.safe_dump([fault]))
    with pytest.raises(SystemExit, match=fault["fault"]):
        run["read_faults"](tmp_path / "faults.yaml")


def test_a_fault_is_noticed_or_not(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_good.py").write_text("def test_good():\n    assert True\n")
    (tmp_path / "tests" / "test_bad.py").write_text("def test_bad():\n    assert False\n")
    assert run["noticed_by"](tmp_path, ["test_good.py"]) is None
    assert run["noticed_by"](tmp_path, ["test_good.py", "test_bad.py"]) == "tests/test_bad.py::test_bad"
