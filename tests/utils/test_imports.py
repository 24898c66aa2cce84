"""Tests of imports without the garbage collector, and of the refusal of the other project `medfl`."""

import gc
import importlib
import subprocess
import sys

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl.utils.imports import quick_imports, refuse_other_distribution


@pytest.fixture
def freezes(monkeypatch):
    """Record one entry per call of `gc.freeze`. Frozen objects may still be freed, so their number shows nothing."""
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    return calls


def test_the_collector_rests_until_monai_is_there_and_continues_also_after_an_error(monkeypatch, freezes):
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


# ---- the other project


def installed(folder, metadata, file, text):
    """Create a folder for the path with the metadata of a distribution."""
    (folder / metadata).mkdir(parents=True)
    (folder / metadata / file).write_text(text, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("metadata", "file", "text"),
    [
        ("medfl-2.0.10.dist-info", "top_level.txt", "MEDfl\nalembic\n"),  # as its wheel has it
        ("medfl-2.0.10.dist-info", "RECORD", "MEDfl/__init__.py,sha256=x,1\nalembic/env.py,sha256=y,1\n"),
        ("MEDfl.egg-info", "SOURCES.txt", "setup.py\nMEDfl/__init__.py\n"),  # an editable install of its clone
    ],
)
def test_the_other_project_is_refused_wherever_it_is_on_the_path(monkeypatch, tmp_path, metadata, file, text):
    refuse_other_distribution()
    monkeypatch.syspath_prepend(installed(tmp_path / "other", metadata, file, text))
    with refused(SettingsError, "foreign_distribution", path=str(tmp_path / "other" / metadata)) as caught:
        refuse_other_distribution()
    assert "pip uninstall medfl" in str(caught.value)


def test_this_project_under_its_former_name_and_plugins_are_not_refused(monkeypatch, tmp_path):
    former = "medfl\nmedfl_datasets\nmedfl_methods\nmedfl_mlflow\n"
    monkeypatch.syspath_prepend(installed(tmp_path / "a", "medfl-0.1.0.dist-info", "top_level.txt", former))
    monkeypatch.syspath_prepend(installed(tmp_path / "b", "medfl_my_prox-1.dist-info", "RECORD", "MEDfl/x.py,,\n"))
    monkeypatch.syspath_prepend(str(tmp_path / "missing"))
    refuse_other_distribution()


def test_the_command_line_refuses_it_before_anything_heavy_is_imported(tmp_path):
    installed(tmp_path, "medfl-2.0.10.dist-info", "top_level.txt", "MEDfl\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n" + (
        "from medfl.cli.main import main\n"
        "try: main(['list'])\n"
        "finally: print(sorted({'torch', 'monai', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "[]\n"), done.stderr
    assert done.stderr.startswith("error: Expected no distribution 'medfl'")
