"""Commands of feature packages: tests that use one are skipped where its package was deleted."""

from __future__ import annotations

import re

import pytest

PACKAGES = {
    **dict.fromkeys(("card", "compare", "report", "score", "status", "verify", "monitor"), "medfl_report"),
    **dict.fromkeys(("demo", "study", "results", "tune"), "medfl_studies"),
    "attack": "medfl_attacks",
    **dict.fromkeys(("federate", "site"), "medfl_flare"),
    "adopt": "medfl_adopt",
    "pacs": "medfl_pacs",
}
"""Maps each command of a feature package to the package."""


def skip_without(*commands: str) -> None:
    """Skip the test if the package of a command was deleted."""
    for name in commands:
        if name in PACKAGES:
            pytest.importorskip(PACKAGES[name])


def skip_without_commands_of(shell: str) -> None:
    """Skip the test if the package of a ``medfl`` command or of a bundle in lines of a shell was deleted."""
    if "medfl run own_images" in shell:
        pytest.importorskip("medfl_encoders")
    skip_without(*re.findall(r"\bmedfl ([\w-]+)", shell))
