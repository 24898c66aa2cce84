"""What the server takes of a site's answer to a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.contract import Method, Request
from medfl.engine.backend import SiteResult
from medfl.engine.encoding import decode_filtered
from medfl.engine.evaluation import Row
from medfl.engine.filters import decode
from medfl.engine.reply_checks import check_reply
from medfl.errors import RefusedError, StoreError
from medfl.task import Task
from medfl.types import Tensors
from medfl.utils.text import one_line
from medfl.utils.wire import Blob
from medfl_flare.backend.messages import (
    Limits,
    Message,
    check_codec,
    check_tensors,
    unpack,
)
from medfl_flare.backend.remote_messages import UNDELIVERED, names, rows_from_json

REASON = 2000
"""Letters of a reason, at most."""


@dataclass
class Expected:
    """What answers may hold, known once the run has begun.

    Attributes:
        method: Declares what a reply holds.
        task: The run's.
        norm_bound: Largest L2 norm of a reply, or None.
        private: Whether the run has a privacy setting.
    """

    method: Method
    task: Task
    norm_bound: float | None = None
    private: bool = False


def opened(blob: Blob, kind: str, limits: Limits) -> Message:
    """A site's answer to a message of some kind, from bytes that nobody has looked at yet.

    Raises:
        RefusedError: If it can't be opened, answers another kind, or is a refusal: then with the site's own reason.
    """
    message = unpack(blob, limits)
    refused = message.meta.get("refused")
    if isinstance(refused, str):
        raise RefusedError("site_refusal", one_line(refused, REASON))
    if message.kind != kind:
        raise RefusedError(
            "unexpected_message_kind",
            f"expected an answer to '{kind}', got one to '{message.kind}'",
            expected=kind,
            found=message.kind,
        )
    return message


@dataclass(frozen=True)
class Step:
    """What a site was asked in a step.

    Attributes:
        number: Of the step.
        round: Of the step's orders.
        evaluated: The round whose models were to be scored; None for none.
    """

    number: int
    round: int
    evaluated: int | None


def read_answer(
    site: str, message: Message, step: Step, request: Request | None, expected: Expected, limits: Limits
) -> tuple[SiteResult | None, list[Row]]:
    """A site's answer to a step, if it got an order, and its rows of the evaluation.

    Raises:
        RefusedError: If it holds anything that is not expected.
    """
    scores = rows_from_json(message.meta.get("evaluation") or [], site, step.evaluated)
    if scores and step.evaluated is None:
        raise RefusedError("unexpected_scores", "expected no scores, as none were asked for", site=site)
    content = message.meta.get("answer")
    if request is None:
        return None, scores
    if not isinstance(content, dict) or content.keys() != {"step", "refused", "meta", "rows", UNDELIVERED}:
        raise RefusedError("missing_reply", "expected an answer to the order, got none", site=site)
    if content["step"] != step.number:
        raise RefusedError(
            "wrong_step", "expected an answer to this step, got one to another", site=site, expected=step.number
        )
    rows = rows_from_json(content["rows"], site, step.round)
    if content["refused"] is not None:
        return SiteResult(site, step.number, one_line(content["refused"], REASON), {}, rows), scores
    _check_reply(f"site '{site}'", request, message.tensors, content["meta"], expected, limits)
    undelivered = names(content, UNDELIVERED)
    return SiteResult(
        site, step.number, None, content["meta"] | ({UNDELIVERED: undelivered} if undelivered else {}), rows
    ), scores


def lay_down(path: Path, blob: Blob) -> list[StoreError]:
    """Write an answer into a file until it is folded; returns what was wrong, which is no fault of the site."""
    try:
        path.write_bytes(blob)
    except OSError as error:
        return [unwritten(path, error)]
    return []


def unwritten(path: Path, error: OSError) -> StoreError:
    """What is wrong where the server can't write an answer."""
    return StoreError(
        "unwritable_file",
        f"The server could not write '{path}': {error.strerror}. No site is at fault and what was saved is valid: "
        "free some space at the server, then resume the run.",
        path=path,
        reason=error.strerror,
    )


def _check_reply(who: str, request: Request, tensors: Tensors, meta: Any, expected: Expected, limits: Limits) -> None:
    if not isinstance(meta, dict):
        raise RefusedError("invalid_metadata", f"expected facts by name beside the reply of {who}", sender=who)
    check_codec(tensors, meta, limits)
    method = expected.method
    plain, facts = decode_filtered(method, *decode(tensors, meta))
    check_tensors(plain, prefixes=tuple(method.sends), shapes={}, norm_bound=expected.norm_bound, who=who)
    check_reply(method, expected.task, request, plain, facts, who, expected.private)
