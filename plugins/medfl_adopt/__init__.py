"""Make federations from stock MONAI bundles.

A bundle is read as text, its parts are recognized, and it is copied together with an overlay: a configuration file
that describes the federation. The copy is called an adopted bundle.
"""

from __future__ import annotations

from medfl.hooks import CommandRecord, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the record of the command `medfl adopt`."""
    return [
        CommandRecord(
            "adopt",
            "medfl_adopt.commands.adopt:command",
            "Make a federated bundle from a stock MONAI bundle.",
            "Bundles and plugins",
        ),
    ]
