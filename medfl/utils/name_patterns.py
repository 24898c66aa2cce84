"""Regular expressions over the names of parameters, safe to search although another machine may have sent them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MAX_PATTERN_CHARACTERS = 200
"""Maximum length of an expression."""

MAX_PATTERN_CHOICES = 3
"""Maximum number of the repetitions ``*``, ``+``, ``?`` and ``{}`` and of groups in an expression, counted together."""


def check_name_pattern(pattern: str) -> str:
    """Return a regular expression if it is valid and its search is fast for every name.

    Each repetition and each group multiplies the time of a search, and a repeated group can make it exponential.

    Raises:
        ValueError: If the expression is not valid or too long, has a repeated group or a group with options such as
            ``(?x)``, or has more than `MAX_PATTERN_CHOICES` repetitions and groups.
    """
    if not 0 < len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise ValueError(
            f"expected a regular expression of 1 to {MAX_PATTERN_CHARACTERS} characters, got {len(pattern)} characters"
        )
    groups = pattern.replace("(?:", "(").replace("(?!", "(").replace("(?=", "(")
    choices = len(re.findall(r"[*+?{(]", groups))
    if choices > MAX_PATTERN_CHOICES or "(?" in groups or re.search(r"\)[*+?{]", groups):
        raise ValueError(
            f"expected a regular expression with at most {MAX_PATTERN_CHOICES} repetitions *, +, ?, {{}} and groups, "
            f"no repeated group and no options such as (?x), got {pattern!r}"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"expected a regular expression, got {pattern!r}: {error}") from None
    return pattern


NamePattern = Annotated[str, AfterValidator(check_name_pattern)]
"""Type of a setting that is a regular expression, searched in the names of parameters."""
