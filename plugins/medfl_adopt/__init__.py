"""Federations from stock MONAI bundles: read as text, recognised, and copied with an overlay and a page."""

from __future__ import annotations

from medfl.hooks import CommandRecord, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
    return [
        CommandRecord(
            "adopt",
            "medfl_adopt.commands.adopt:command",
            "Make a federation's bundle of a stock MONAI bundle.",
            "Bundles and plugins",
        ),
    ]
