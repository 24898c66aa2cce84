"""Heavy imports go without the garbage collector, and everything else with it."""

import gc
import importlib
import sys

import pytest

from medfl.utils.imports import quick_imports


@pytest.fixture
def freezes(monkeypatch):
    """One entry for each `gc.freeze`. Frozen objects may still die, so their count shows nothing."""
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    return calls


def test_the_collector_rests_until_monai_is_there_and_goes_on_also_after_an_error(monkeypatch, freezes):
    monkeypatch.delitem(sys.modules, "monai", raising=False)

    def fail():
        with quick_imports():
            assert not gc.isenabled()
            importlib.import_module("no_such_module")

    with pytest.raises(ImportError, match="no_such_module"):
        fail()
    assert gc.isenabled()
    assert len(freezes) == 1


def test_it_is_left_alone_where_monai_is_there_or_somebody_has_switched_it_off(monkeypatch, freezes):
    monkeypatch.setitem(sys.modules, "monai", sys)
    with quick_imports():
        assert gc.isenabled()
    monkeypatch.delitem(sys.modules, "monai")
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert freezes == []
