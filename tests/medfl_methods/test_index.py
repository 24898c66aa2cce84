"""Tests of the index of medfl's methods: it agrees with the classes, and lists each method file once."""

from __future__ import annotations

from pathlib import Path

import medfl_methods
from medfl.testing.method_index import check_index


def test_the_index_agrees_with_the_classes() -> None:
    check_index("medfl_methods")


def test_each_file_of_a_method_is_listed_once() -> None:
    folder = Path(medfl_methods.__file__).parent
    files = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    files += [f"{path.parent.name}.method" for path in folder.glob("*/method.py")]
    targets = [record.target.partition(":")[0] for record in medfl_methods.medfl_methods()]
    assert sorted(targets) == sorted(f"medfl_methods.{name}" for name in files)
