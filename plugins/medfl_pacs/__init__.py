"""Retrieve images from a PACS into a pseudonymised store on the site's disk.

The store contains DICOM files without identities, and a table with one row for each series. `medfl_pacs.retrieval`
describes the steps; ``docs/pacs.md`` describes the store.
"""

from __future__ import annotations

from medfl.hooks import CommandRecord, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the record of the command `medfl pacs`."""
    return [
        CommandRecord(
            "pacs",
            "medfl_pacs.commands.pacs:app",
            "Retrieve images from a PACS into a pseudonymised store.",
            "Data",
        ),
    ]
