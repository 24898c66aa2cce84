"""Parsers that share an index of components find what MONAI's own parsers find."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from monai.bundle import ConfigParser
from monai.bundle.config_item import ComponentLocator

from medfl.networks.bundle_parser import SharedLocator, make_parser, share_components

DENSE = {"_target_": "DenseNet121", "spatial_dims": 2, "in_channels": 1, "out_channels": 2}


@pytest.mark.parametrize("name", ["DenseNet121", "Compose", "load", "no_component"])
def test_components_are_those_of_monai(name: str) -> None:
    assert SharedLocator().get_component_module_name(name) == ComponentLocator().get_component_module_name(name)


def test_modules_are_scanned_once_for_all_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parser({"network_def": DENSE}).get_parsed_content("network_def")
    monkeypatch.setattr(ComponentLocator, "_find_classes_or_functions", None)
    for parser in (make_parser({"network_def": DENSE}), share_components(ConfigParser({"network_def": DENSE}))):
        assert type(parser.get_parsed_content("network_def")).__name__ == "DenseNet121"


def test_a_module_that_is_imported_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SharedLocator().get_component_module_name("LateComponent") is None
    module = ModuleType("monai.late")
    module.LateComponent = type("LateComponent", (), {"__module__": "monai.late"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "monai.late", module)
    assert SharedLocator().get_component_module_name("LateComponent") == "monai.late"
