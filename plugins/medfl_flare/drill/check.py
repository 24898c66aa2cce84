"""The lines of ``medfl site check --drill``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from medfl.errors import MedflError, SettingsError
from medfl_flare.drill.at_site import Ask, drill, in_words
from medfl_flare.drill.line import open_line
from medfl_flare.sites.check import Line
from medfl_flare.sites.file import read_site_file

Opener = Callable[[Path, str], AbstractContextManager[Ask]]
"""Opens a site's line to the server: (kit, name of the site)."""

LONG = 600.0
"""Seconds for the messages of one round, beyond which a line is slow: an hour of silence and a site is missing."""


def check_drill(path: Path, bundle: str | None, kit: Path | None, opener: Opener = open_line) -> Iterator[Line]:
    """Rehearse a run with the server, and say what it showed.

    Args:
        path: The site's own file.
        bundle: Which bundle; None takes the first that is listed.
        kit: NVFlare's startup kit of the site.
        opener: Opens the line to the server.
    """
    try:
        file = read_site_file(path)
        if kit is None or file.is_server:
            raise SettingsError("missing_setting", "a drill needs --kit, the startup kit of a site", setting="kit")
        if not file.bundles:
            raise SettingsError("no_bundles", "no bundle is listed; write a table [bundles.NAME]")
        name = bundle or sorted(file.bundles)[0]
        with opener(kit, file.site) as ask:
            measured = drill(file, name, ask)
    except MedflError as error:
        yield Line(False, f"drill: {' '.join(str(error).split())}")
        return
    for title, text in in_words(measured):
        slow = title == "a round" and measured.transfer > LONG
        mend = "; slow: choose a smaller network or the setting 'compression', or have a faster line" if slow else ""
        yield Line(True, f"drill, {title}: {text}{mend}", warns=slow)
