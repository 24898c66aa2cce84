"""Check a site's replies at the server, and store the accepted ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.contract import Method, Request
from medfl.engine.backend import SiteResult
from medfl.engine.encoding import decode_filtered
from medfl.engine.evaluation import MetricRow
from medfl.engine.filters import decode
from medfl.engine.reply_checks import check_reply
from medfl.errors import MedflError, RefusedError, StoreError
from medfl.task import Task
from medfl.types import Meta, Tensors
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.messages import (
    Limits,
    Message,
    check_codec,
    check_tensors,
    unpack,
)
from medfl_flare.backend.protocol_messages import UNDELIVERED, read_names, rows_from_json

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 2000
"""Maximum number of characters of a site's reason for a refusal."""


@dataclass
class ReplyRules:
    """Rules for the sites' replies, known once the run has begun.

    Attributes:
        method: Method that declares the tensors and the metadata of a reply.
        task: Task of the run.
        norm_bound: Largest L2 norm of a reply, or None for no bound.
        private: Whether the run has a privacy setting.
    """

    method: Method
    task: Task
    norm_bound: float | None = None
    private: bool = False


def unpack_reply(blob: Blob, kind: str, limits: Limits) -> Message:
    """Unpack a site's reply to a message of the given kind. The bytes are untrusted.

    Raises:
        RefusedError: If the bytes can't be unpacked, if the reply is to another kind of message, or if the site refused
            the message. In the last case the error contains the site's own reason.
    """
    message = unpack(blob, limits)
    refused = message.meta.get("refused")
    if isinstance(refused, str):
        raise RefusedError("site_refusal", one_line(refused, MAX_REASON_CHARACTERS))
    if message.kind != kind:
        raise RefusedError(
            "unexpected_message_kind",
            f"expected a reply to '{kind}', got a reply to '{message.kind}'",
            expected=kind,
            found=message.kind,
        )
    return message


@dataclass(frozen=True)
class RequestedStep:
    """Identification of the work that the server requested of the sites in one step.

    Attributes:
        number: Step number.
        round: Round of the step's requests.
        evaluated: Round whose models the sites were to score, or None if no evaluation was requested.
    """

    number: int
    round: int
    evaluated: int | None


def read_step_reply(
    site: str, message: Message, step: RequestedStep, request: Request | None, expected: ReplyRules, limits: Limits
) -> tuple[SiteResult | None, list[MetricRow]]:
    """Return a site's result of a step and the site's scores from the evaluation.

    Args:
        site: Name of the site.
        message: Reply of the site.
        step: Step that the server requested.
        request: Request that the site got, or None if the site only had to score models.
        expected: Rules for the reply.
        limits: Limits of a message.

    Returns:
        The result, or None if the site got no request; the scores of the evaluation.

    Raises:
        RefusedError: If the reply contains anything that is not expected.
    """
    scores = rows_from_json(message.meta.get("evaluation") or [], site, step.evaluated)
    if scores and step.evaluated is None:
        raise RefusedError("unexpected_scores", "expected no scores, as none were requested, got some", site=site)
    content = message.meta.get("answer")
    if request is None:
        return None, scores
    if not isinstance(content, dict) or content.keys() != {"step", "refused", "meta", "rows", UNDELIVERED}:
        raise RefusedError("missing_reply", "expected a reply to the request, got none", site=site)
    if content["step"] != step.number:
        raise RefusedError(
            "wrong_step", "expected a reply to this step, got a reply to another step", site=site, expected=step.number
        )
    rows = rows_from_json(content["rows"], site, step.round)
    if content["refused"] is not None:
        return SiteResult(site, step.number, one_line(content["refused"], MAX_REASON_CHARACTERS), {}, rows), scores
    _check_reply(f"site '{site}'", request, message.tensors, content["meta"], expected, limits)
    undelivered = read_names(content, UNDELIVERED)
    return SiteResult(
        site, step.number, None, content["meta"] | ({UNDELIVERED: undelivered} if undelivered else {}), rows
    ), scores


def store_reply(path: Path, blob: Blob) -> list[StoreError]:
    """Write a reply to a file, where it stays until the server aggregates it.

    Returns:
        A list with the error if the file can't be written, else an empty list. The caller raises it later, as no site
        is at fault.
    """
    try:
        path.write_bytes(blob)
    except OSError as error:
        return [unwritable_reply_error(path, error)]
    return []


def unwritable_reply_error(path: Path, error: OSError) -> StoreError:
    """Return the error for a reply that the server could not write to its disk."""
    return StoreError(
        "unwritable_file",
        f"The server could not write '{path}': {error.strerror}. No site is at fault and the saved steps are valid: "
        "free some space at the server, then resume the run.",
        path=path,
        reason=error.strerror,
    )


def _check_reply(who: str, request: Request, tensors: Tensors, meta: Any, expected: ReplyRules, limits: Limits) -> None:
    """Raise if the tensors or the metadata of a reply break the rules of the method, the task or the limits."""
    if not isinstance(meta, dict):
        raise RefusedError("invalid_metadata", f"expected a dict as the metadata in the reply of {who}", sender=who)
    check_codec(tensors, meta, limits)
    method = expected.method
    plain, facts = decode_filtered(method, *decode(tensors, meta))
    check_tensors(plain, prefixes=tuple(method.sends), shapes={}, norm_bound=expected.norm_bound, who=who)
    check_reply(method, expected.task, request, plain, facts, who, expected.private)


def reply_handler(
    kind: str, limits: Limits, use: Callable[[str, Message], None], missing: dict[str, str]
) -> Callable[[str, Blob], None]:
    """Return a function that passes a site's valid reply to `use`, or stores the reason of a refusal in `missing`.

    Args:
        kind: Kind of the request.
        limits: Limits of a reply.
        use: Function that checks and stores the reply of a site.
        missing: Maps the sites without a valid reply to the reason; changed in place.
    """

    def take(site: str, blob: Blob) -> None:
        try:
            use(site, unpack_reply(blob, kind, limits))
        except MedflError as error:
            missing[site] = str(error)
        except Exception as error:  # an unexpected error in one reply must not affect the others
            logger.exception("A reply of %s caused an error.", site)
            missing[site] = f"its reply could not be read ({type(error).__name__})"

    return take


def write_replies(path: Path, sites: Mapping[str, Meta], missing: Mapping[str, str]) -> None:
    """Write the replies of the sites, and the reasons of the sites without one, into a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"sites": dict(sorted(sites.items())), "missing": dict(sorted(missing.items()))}
    path.write_text(json.dumps(content), encoding="utf-8")
