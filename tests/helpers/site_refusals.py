"""The errors with which sites refuse requests of secure aggregation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from medfl.contract import Reply, Request, Site
from medfl.engine.backend import SiteResult
from medfl.engine.secure.method import SecureMethod
from medfl.errors import RefusedError


@contextlib.contextmanager
def recorded_refusals() -> Iterator[list[RefusedError]]:
    """Record the refusals of the method's part of a site. An answer has their text alone, not their codes.

    Yields:
        The errors, in the order in which they were raised.
    """
    errors: list[RefusedError] = []
    execute = SecureMethod.execute

    def recorded(method: SecureMethod, site: Site, request: Request) -> Reply:
        try:
            return execute(method, site, request)
        except RefusedError as error:
            errors.append(error)
            raise

    with mock.patch.object(SecureMethod, "execute", recorded):
        yield errors


def raise_refusal(answer: SiteResult, errors: list[RefusedError]) -> None:
    """Raise the error that an answer tells of, if it is a refusal.

    Args:
        answer: The site's answer.
        errors: From `recorded_refusals`.
    """
    if answer.refused is not None:
        assert answer.refused == str(errors[-1])
        raise errors[-1]
