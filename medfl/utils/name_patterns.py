"""Regular expressions over the names of parameters, safe to search although another machine may have sent them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_PATTERN_CHARACTERS = 200
"""Maximum length of an expression."""

MAX_PATTERN_REPEATS = 3
"""Maximum number of the repetitions ``*``, ``+`` and ``{}`` in an expression."""


def check_name_pattern(pattern: str) -> str:
    """Return a regular expression if it is valid and its search is fast for every name.

    The time of a search can grow exponentially if a group is repeated, and with the number of repetitions otherwise.

    Raises:
        ValueError: If the expression is not valid, too long, or has too many repetitions or a repeated group.
    """
    if not 0 < len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise ValueError(
            f"expected a regular expression of 1 to {MAX_PATTERN_CHARACTERS} characters, got {len(pattern)} characters"
        )
    if len(re.findall(r"[*+{]", pattern)) > MAX_PATTERN_REPEATS or re.search(r"\)[*+{]", pattern):
        raise ValueError(
            f"expected a regular expression with at most {MAX_PATTERN_REPEATS} of the repetitions *, + and {{}}, and "
            f"no repeated group, got {pattern!r}"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"expected a regular expression, got {pattern!r}: {error}") from None
    return pattern


NamePattern = Annotated[str, AfterValidator(check_name_pattern)]
"""Type of a setting that is a regular expression, searched in the names of parameters."""
