"""Several faults of a bundle or of options, reported in one error."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.errors import SettingsError


def joined(problems: Sequence[SettingsError], separator: str, start: str = "") -> SettingsError:
    """Join errors into one, so that the user sees all faults at once.

    Args:
        problems: At least one error. An only one is returned as it is.
        separator: Text between two messages.
        start: Text before the first message if there are several.

    Returns:
        The only error, or one with the code ``several_problems``. Its field ``problems`` lists the code and the fields
        of each.
    """
    if len(problems) == 1:
        return problems[0]
    return SettingsError(
        "several_problems",
        start + separator.join(map(str, problems)),
        problems=[{"code": problem.code, **problem.fields} for problem in problems],
    )
