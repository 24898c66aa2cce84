"""The rows of a study as a table: how each method weighs sites, and the settings that differ between rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from medfl.plugins import Registry
from medfl.utils.formats import table_lines
from medfl_studies.schema import Study

HEADING = "### Rows"
"""Heading of the table in a study's Markdown page."""


def rows_markdown(study: Study, registry: Registry) -> str:
    """Return the table of a study's rows in Markdown; empty without rows.

    The column ``sites weigh by`` is the method's `weighting` with the row's settings: rows that weigh sites differently
    differ in more than their method.

    Args:
        study: A study whose rows are valid.
        registry: Builds the methods.
    """
    if not study.rows:
        return ""
    head = ["row", "method", "sites weigh by", "settings of the method", "settings of the run"]
    lines = [
        [
            name,
            row.method,
            getattr(registry.make_method(row.method, row.method_args), "weighting", "not stated"),
            _settings(row.method_args),
            _settings(row.settings),
        ]
        for name, row in study.rows.items()
    ]
    return f"{HEADING}\n\n{table_lines([head, *lines])}\n"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())
