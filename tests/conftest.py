"""The order of the tests."""

from __future__ import annotations

import pytest

LONG = ("test_readme.py", "test_wheel.py", "test_site_bundles.py")
"""Files that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that workers that share the files end at about the same time."""
    items.sort(key=lambda item: item.path.name not in LONG)
