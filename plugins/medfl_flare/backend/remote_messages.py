"""What the server says to sites in a step, how their answers to other messages are read, and rows of metrics in JSON.

The receiver checks each row.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from medfl.contract import Request
from medfl.engine.backend import Evaluation
from medfl.engine.evaluation import Row
from medfl.engine.store import Steps
from medfl.errors import PluginError, RefusedError
from medfl.privacy.policy import mechanism_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.metadata import Count, MetaField, Text, check_metadata, dict_of, list_of, number
from medfl_flare.backend.messages import Message

WORD = re.compile(r"[A-Za-z0-9_@.-]{1,80}(/[A-Za-z0-9_@.-]{1,80}){0,2}")
"""Names of models and metrics."""


SPLITS, MOMENTS = ("train", "val", "test", "shared"), ("aggregated", "trained")


MAX_ROWS = 100_000
"""Rows in one message, at most."""


def rows_to_json(rows: list[Row]) -> list[list[Any]]:
    """Rows as lists; a value that is not finite becomes its name, as JSON knows no such number."""
    return [[*row[:-1], row.value if math.isfinite(row.value) else str(row.value)] for row in rows]


LARGEST = 1e100
"""Largest value of a row: sums over all sites and rounds stay finite, and float32 has none that is as large."""


def rows_from_json(rows: Any, site: str, round_: int | None = None) -> list[Row]:
    """The rows of a message.

    Args:
        rows: What came.
        site: Who sent it; it may tell rows of itself only.
        round_: Of which they have to be; None where the receiver made them itself.

    Raises:
        RefusedError: If a row has another form, is of another site or another round, or is there twice.
    """
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise RefusedError(
            "invalid_rows",
            f"Expected at most {MAX_ROWS} rows of scores from '{site}', got something else.",
            site=site,
            maximum=MAX_ROWS,
        )
    read = [_row(entry, site) for entry in rows]
    if round_ is not None and any(row.round != round_ for row in read):
        raise RefusedError(
            "wrong_round",
            f"Expected rows of round {round_} from '{site}', got one of another round.",
            site=site,
            expected=round_,
        )
    if len({row[:-1] for row in read}) != len(read):
        raise RefusedError("duplicate_row", f"Expected each score of '{site}' once, got one twice.", site=site)
    return read


def _row(entry: Any, site: str) -> Row:
    if not isinstance(entry, list) or len(entry) != len(Row._fields) or not _is_row(entry, site):
        raise RefusedError(
            "invalid_row",
            f"Expected rows {list(Row._fields)} of '{site}' itself, got another one. Both sides need the same version.",
            site=site,
            expected=list(Row._fields),
        )
    round_, of, model, split, moment, metric, value = entry
    return Row(round_, of, model, split, moment, metric, float(value) if isinstance(value, str) else value)


def _is_row(entry: list[Any], site: str) -> bool:
    round_, of, model, split, moment, metric, value = entry
    words = all(isinstance(word, str) and WORD.fullmatch(word) for word in (model, metric))
    return (
        type(round_) is int
        and 0 <= round_ < 2**31
        and of == site
        and words
        and split in SPLITS
        and moment in MOMENTS
        and (_is_number(value) or value in ("nan", "inf", "-inf"))
    )


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and abs(value) <= LARGEST)


REQUEST, PUBLISHED = "request/", "published/"
"""Before the names of tensors in a message to a site."""


UNDELIVERED = "undelivered"
"""In an answer: receivers that did not acknowledge their parcel."""


TASK, PROGRESS = "medfl", "medfl.progress"
"""What a job's one kind of task is called, and the command that asks how far a run is."""


AFTER, EVENTS, START = "after", "events", "start"
"""In such a question: bytes of the run's progress that are known. In its answer: those that follow, and their place."""


FACTS = {
    "trainable": MetaField("public", bool, after=("begin",)),
    "validates": MetaField("public", bool, after=("begin",)),
    "frozen": MetaField("public", Text),
    "size": MetaField("private", Count),
    "label_counts": MetaField("private", list_of(Count, "classes")),
}
"""What a site tells of its data at the start (`medfl.engine.site.SiteRunner.describe`)."""


DATA_FACTS = {"classes", "names", "name", "modality", "shared_test"}
"""What a site says of its data when a run begins."""


KEPT = 2
"""Earlier steps that a site is asked to keep, at most: each is a copy of its state."""


MAX_STEP = 10**8
"""Steps have numbers below it, and rounds, too: what a store can name."""


def integer(meta: Meta, name: str, low: int = 0) -> int:
    """A number of a message.

    Raises:
        RefusedError: If it is not there, no integer, or below `low`.
    """
    value = meta.get(name)
    if type(value) is not int or not low <= value < MAX_STEP:
        raise RefusedError(
            "invalid_integer",
            f"expected an integer from {low} to {MAX_STEP - 1} as '{name}'",
            name=name,
            minimum=low,
            maximum=MAX_STEP - 1,
        )
    return value


def names(meta: Meta, name: str) -> list[str]:
    """A list of names of a message.

    Raises:
        RefusedError: If it is not there, or something else.
    """
    value = meta.get(name)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise RefusedError("invalid_names", f"expected a list of names as '{name}'", name=name)
    return value


def steps(meta: Meta, name: str) -> list[int]:
    """A short list of steps of a message.

    Raises:
        RefusedError: If it is not there, or something else.
    """
    value = meta.get(name)
    if not isinstance(value, list) or len(value) > KEPT:
        raise RefusedError("invalid_steps", f"expected at most {KEPT} steps as '{name}'", name=name, maximum=KEPT)
    return [integer({name: entry}, name) for entry in value]


class StepMessages:
    """The messages of one step. Orders that share their tensors share the message, and a tensor travels once."""

    def __init__(self, step: int, round_: int, evaluation: Evaluation | None, keep: Steps) -> None:
        self._step, self._round, self._evaluation, self._keep = step, round_, evaluation, list(keep)
        self._made: dict[tuple[int, str], Message] = {}

    def message(self, request: Request | None) -> Message:
        """The message for one site."""
        key = (
            (0, "")
            if request is None
            else (id(request.tensors), json.dumps([request.op, request.meta], sort_keys=True))
        )
        if key not in self._made:
            self._made[key] = self._make(request)
        return self._made[key]

    def _make(self, request: Request | None) -> Message:
        tensors: Tensors = {}
        meta: Meta = {"request": None, "evaluate": None, "keep": self._keep}
        if request is not None:
            tensors |= wire.prefixed(request.tensors, REQUEST)
            facts = {"op": request.op, "meta": request.meta, "digest": wire.digest(request.tensors)}
            meta["request"] = facts | {"step": self._step, "round": self._round}
        if self._evaluation is not None:
            sent = {} if request is None else request.tensors
            published = self._evaluation.published
            same = [name for name, tensor in published.items() if name in sent and _equal(tensor, sent[name])]
            tensors |= {PUBLISHED + name: tensor for name, tensor in published.items() if name not in same}
            meta["evaluate"] = {"step": self._evaluation.step, "round": self._evaluation.round, "same": same}
        return Message("step", tensors, meta)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return wire.tensors_equal({"": left}, {"": right})


MAX_FACTS = 32
"""Largest number of facts about a site's machine."""


class Joining(NamedTuple):
    """Answer of a site that takes an offer.

    Attributes:
        network: Name of the network that the site's own file names, or None.
        profile: Facts about the site's machine, if the run's network assignment asks for them and the site's own file
            allows it; otherwise None.
    """

    network: str | None = None
    profile: dict[str, float] | None = None


JOINING = {
    "network": MetaField("public", Text | None, after=("hello",)),
    "profile": MetaField("public", dict_of(number(0, 1e9), MAX_FACTS) | None, after=("hello",)),
}
"""The form of `Joining`."""

NAME = MetaField("public", Text)
"""Name of a class, an output or a data set."""


def read_joining(site: str, message: Message) -> Joining:
    """What a site says of itself in its answer to ``hello``.

    Raises:
        RefusedError: If it has another form.
    """
    facts = {name: value for name, value in message.meta.items() if name != "refused"}
    check_metadata(facts, JOINING, "hello", {}, f"site '{site}'")
    return Joining(**facts)


def read_facts(site: str, message: Message, classes: int, outputs: int, frozen: str | None = None) -> Meta:
    """Return what a site tells when a run begins: ``facts``, ``newest`` and ``data``.

    Args:
        site: Its name.
        message: Its answer.
        classes: How many classes there are.
        outputs: Of a network, which a site may name where cases are of no class.
        frozen: Digest of the frozen parameters of the site's network at the server; None if it has none.

    Raises:
        RefusedError: If it has another form, or the site has other frozen parameters. What is said of the data may
            stand in a bundle's files in the end, so there is no text in it that MONAI would evaluate.
    """
    facts, data = message.meta.get("facts"), message.meta.get("data")
    if not isinstance(facts, dict) or not isinstance(data, dict) or data.keys() != DATA_FACTS:
        raise RefusedError("missing_site_facts", "expected what the site tells of its data", site=site)
    check_metadata(facts, FACTS, "begin", {"classes": classes}, f"site '{site}'")
    facts = dict(facts)
    if (theirs := facts.pop("frozen", None)) != frozen:
        raise RefusedError(
            "unlike_frozen_parameters",
            "the frozen parameters of the site's network, which are never sent, differ from the server's: expected the "
            f"digest {_short(frozen)}, got {_short(theirs)}. Give the site the same file of weights for its network",
            site=site,
            expected=_short(frozen),
            found=_short(theirs),
        )
    if not isinstance(data["classes"], list) or len(data["classes"]) != classes:
        raise RefusedError("wrong_class_count", f"expected the names of {classes} classes", site=site, expected=classes)
    if not isinstance(data["names"], list) or len(data["names"]) not in (0, outputs):
        raise RefusedError(
            "wrong_output_count", f"expected the names of {outputs} outputs, or none", site=site, expected=outputs
        )
    for name in (*data["classes"], *data["names"], data["name"], data["modality"]):
        if NAME.problem_of(name, {}) or name.lstrip()[:1] in (*"$@%",):
            raise RefusedError(
                "unsafe_name",
                "expected plain names of classes and data, which begin with none of '$', '@' and '%'",
                site=site,
            )
    shared = data["shared_test"]
    if shared is not None and not (isinstance(shared, str) and re.fullmatch(r"[0-9a-f]{64}", shared)):
        raise RefusedError("invalid_fingerprint", "expected the fingerprint of the shared test set, or none", site=site)
    return {"facts": facts, "newest": integer(message.meta, "newest"), "data": data}


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def read_rows(site: str, message: Message, round_: int) -> list[Row]:
    """The scores in an answer to ``post`` or ``guest``, of a round."""
    return rows_from_json(message.meta.get("rows"), site, round_)


def read_account(site: str, message: Message) -> PrivacyAccount | None:
    """Return the privacy account in a site's answer to ``install``, or None if the site keeps none.

    Args:
        site: Name of the site.
        message: Its answer.

    Raises:
        RefusedError: If the account does not validate, or no mechanism has its unit. The message names the field and
            shows nothing of its value.
    """
    account = message.meta.get("privacy")
    if account is None:
        return None
    try:
        checked = PrivacyAccount.model_validate(account, strict=True)
        mechanism_of(checked.unit)
        return checked
    except PluginError:
        raise RefusedError(
            "wrong_metadata",
            f"The privacy account of site '{site}' was refused in its field 'unit': no plugin here has such a unit. "
            "Server and site need the same plugins; if they have them, the site is not honest.",
            sender=f"site '{site}'",
            key="privacy",
            expected="a known privacy unit",
        ) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        place = f" in its field '{name}'" if name in PrivacyAccount.model_fields else ""
        raise RefusedError(
            "wrong_metadata",
            f"The privacy account of site '{site}' was refused{place}: {first['msg']}. Server and site need the same "
            "version of medfl; if they have it, the site is not honest.",
            sender=f"site '{site}'",
            key="privacy",
            expected=first["msg"],
        ) from None
