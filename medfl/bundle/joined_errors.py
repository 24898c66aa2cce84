"""Report several problems of a bundle or of its options in one error."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.errors import SettingsError


def join_errors(problems: Sequence[SettingsError], separator: str, start: str = "") -> SettingsError:
    """Join several errors into one, so that the user sees all problems at once.

    Args:
        problems: Errors, at least one. A single error is returned unchanged.
        separator: Text between two messages.
        start: Text before the first message if there are several.

    Returns:
        The single error, or an error with the code ``several_problems`` and the field ``problems``, which lists the
        code and the fields of each error.
    """
    if len(problems) == 1:
        return problems[0]
    return SettingsError(
        "several_problems",
        start + separator.join(map(str, problems)),
        problems=[{"code": problem.code, **problem.fields} for problem in problems],
    )
