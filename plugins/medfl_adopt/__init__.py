"""Make federations from stock MONAI bundles.

A bundle is read as text, its parts are recognized, and it is copied with an overlay.
"""

from __future__ import annotations

from medfl.hooks import CommandRecord, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
    return [
        CommandRecord(
            "adopt",
            "medfl_adopt.commands.adopt:command",
            "Make a bundle for federated learning from a stock MONAI bundle.",
            "Bundles and plugins",
        ),
    ]
