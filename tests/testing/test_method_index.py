"""Tests of a package's method index and of the check that it is up to date."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import PluginError
from medfl.hooks import Capability, MethodRecord, read_method_index
from medfl.testing.method_index import INDEX_FILE, check_index, index_text

METHOD = """
from typing import ClassVar
from medfl.contract import Capability
from medfl.toolkit.averaging import Averaging

class First(Averaging):
    name = "first"
    family = "averaging"
    paper = "Doe, 2030"
    summary = "a mean"
    supports = frozenset({Capability.ROBUST, Capability.DP_SGD})
    needs: ClassVar = frozenset({"head"})
"""

COUNTER = itertools.count()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a package of the given modules under a new name, and return the name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(**modules: str) -> str:
        name = f"medfl_indexed_{next(COUNTER)}"
        names.append(name)
        (tmp_path / name).mkdir()
        for module, text in {"__init__": "", **modules}.items():
            (tmp_path / name / f"{module}.py").write_text(text)
        return name

    yield write
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


def test_the_index_has_the_records_of_the_classes(package: Callable[..., str], tmp_path: Path) -> None:
    name = package(one=METHOD, two="from .one import First\n\nclass Base(First):\n    supports = frozenset()\n")
    (tmp_path / name / INDEX_FILE).write_text(index_text(name))
    check_index(name)
    (record,) = read_method_index(tmp_path / name / INDEX_FILE)
    assert record == MethodRecord(
        name="first",
        target=f"{name}.one:First",
        family="averaging",
        paper="Doe, 2030",
        sends={"model/": "update"},
        supports=frozenset({Capability.ROBUST, Capability.DP_SGD}),
        summary="a mean",
        needs=frozenset({"head"}),
    )
    assert record == MethodRecord.of(sys.modules[f"{name}.one"].First)


@pytest.mark.parametrize("text", [None, "[]\n", METHOD])
def test_an_index_that_is_out_of_date_names_the_command(
    package: Callable[..., str], tmp_path: Path, text: str | None
) -> None:
    name = package(one=METHOD)
    if text is not None:
        (tmp_path / name / INDEX_FILE).write_text(text)
    with pytest.raises(AssertionError) as caught:
        check_index(name)
    assert f"run `python -m medfl.testing.method_index {name}`" in str(caught.value)


def test_a_class_does_not_inherit_the_facts_of_its_record(package: Callable[..., str]) -> None:
    second = """
from .one import First

class Second(First):
    family = "averaging"
    summary = "another mean"
"""
    name = package(one=METHOD, two=second)
    with refused(PluginError, "missing_members", method="Second", members=["name", "paper"]):
        index_text(name)
