"""What the server takes of a site's answer to a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from medfl.carriers.messages import (
    Form,
    Limits,
    Message,
    check_codec,
    check_counts,
    check_meta,
    check_tensors,
    unpack,
)
from medfl.carriers.remote_messages import UNDELIVERED, names
from medfl.carriers.rows import rows_from_json
from medfl.contract import Tensors
from medfl.errors import RefusedError
from medfl.evaluation import Row
from medfl.filters import decode
from medfl.siteside import Answer

REASON = 2000
"""Letters of a reason, at most."""


@dataclass
class Expected:
    """What answers may hold, known once the run has begun.

    Attributes:
        prefixes: Of the names of tensors in replies.
        tells: Meta keys in replies.
        shapes: Name to the forms that a tensor may have, where that is known.
        closed: Prefixes under which there are no names but those in `shapes`.
        norm_bound: Largest L2 norm of a reply, or None.
        num_classes: Of the task.
    """

    prefixes: Collection[str] = ()
    tells: Collection[str] = ()
    shapes: Mapping[str, Collection[Form]] = field(default_factory=dict)
    closed: Collection[str] = ()
    norm_bound: float | None = None
    num_classes: int = 2


def opened(blob: bytes, kind: str, limits: Limits) -> Message:
    """A site's answer to a message of some kind, from bytes that nobody has looked at yet.

    Raises:
        RefusedError: If it can't be opened, answers another kind, or is a refusal: then with the site's own reason.
    """
    message = unpack(blob, limits)
    refused = message.meta.get("refused")
    if isinstance(refused, str):
        raise RefusedError(refused[:REASON])
    if message.kind != kind:
        raise RefusedError(f"expected an answer to '{kind}', got one to '{message.kind}'")
    return message


def read_answer(
    site: str, message: Message, step: int, ordered: bool, expected: Expected, limits: Limits
) -> tuple[Answer | None, list[Row]]:
    """A site's answer to a step, if it was ordered, and its rows of the evaluation.

    Raises:
        RefusedError: If it holds anything that is not expected.
    """
    scores = rows_from_json(message.meta.get("evaluation") or [], site)
    found = message.meta.get("answer")
    if not ordered:
        return None, scores
    if not isinstance(found, dict) or found.keys() != {"step", "refused", "meta", "rows", UNDELIVERED}:
        raise RefusedError("expected an answer to the order, got none")
    if found["step"] != step:
        raise RefusedError("expected an answer to this step, got one to another")
    rows = rows_from_json(found["rows"], site)
    if found["refused"] is not None:
        return Answer(site, step, str(found["refused"])[:REASON], {}, rows), scores
    _check_reply(f"site '{site}'", message.tensors, found["meta"], expected, limits)
    undelivered = names(found, UNDELIVERED)
    return Answer(site, step, None, found["meta"] | ({UNDELIVERED: undelivered} if undelivered else {}), rows), scores


def _check_reply(who: str, tensors: Tensors, meta: Any, expected: Expected, limits: Limits) -> None:
    if not isinstance(meta, dict):
        raise RefusedError(f"expected facts by name beside the reply of {who}")
    check_codec(tensors, meta, limits)
    plain, facts = decode(tensors, meta)
    check_meta(facts, expected.tells, who)
    check_counts(facts, expected.num_classes, who)
    check_tensors(
        plain,
        prefixes=expected.prefixes,
        shapes=expected.shapes,
        norm_bound=expected.norm_bound,
        who=who,
        closed=expected.closed,
    )
