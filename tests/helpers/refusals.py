"""Check errors by their code and fields, not by their wording."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from medfl.errors import MedflError


@contextlib.contextmanager
def refused(kind: type[MedflError], code: str, /, **fields: Any) -> Iterator[pytest.ExceptionInfo[MedflError]]:
    """Check that the block raises an error of this class with this code and these fields.

    Args:
        kind: Class of the error.
        code: Its code.
        fields: Fields that it must have, with their values; it may have others.

    Yields:
        The error, once the block has ended.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"{error.code}: {error}"
    assert {name: error.fields.get(name) for name in fields} == fields, str(error)
