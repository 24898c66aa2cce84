"""Every name of medfl that a shipped bundle's configuration imports or instantiates exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

CONFIGS = sorted((Path(__file__).parents[2] / "bundles").glob("*/configs/*.json"))


def names_in(text: str) -> set[str]:
    """Return the dotted names of medfl that a configuration imports, calls or has as ``_target_``."""
    imported = {f"{module}.{name}" for module, name in re.findall(r"\$from (medfl\w*(?:\.\w+)*) import (\w+)", text)}
    targets = set(re.findall(r'"_target_": "(medfl\w*(?:\.\w+)*)"', text))
    return imported | targets | set(re.findall(r"\b(medfl\w*(?:\.\w+)+)\(", text))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_the_names_of_a_configuration_exist(path: Path) -> None:
    for name in names_in(path.read_text(encoding="utf-8")):
        module, _, attribute = name.rpartition(".")
        pytest.importorskip(module.partition(".")[0], reason="the bundle uses a plugin that is not installed")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_names_are_read() -> None:
    text = '["$from medfl.task import Task", {"_target_": "medfl.settings.Settings"}, "$medfl.plugins.load_plugins()"]'
    assert names_in(text) == {"medfl.task.Task", "medfl.settings.Settings", "medfl.plugins.load_plugins"}
