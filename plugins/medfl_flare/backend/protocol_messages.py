"""Contents of the messages between server and sites: step messages, checks of the sites' replies, scores as JSON.

A row of scores (`MetricRow`) is one row of ``metrics.csv``: round, site, model, split, moment, metric, value. The
receiver checks every row.

Kinds of messages whose contents are defined here:

* ``hello``: the offer of a run. A site that accepts it returns a `HelloReply`.
* ``begin``: the start of the run. A site loads its data and returns information about them.
* ``feature_sums`` and ``feature_moments``: see `medfl_flare.backend.feature_messages`.
* ``step``: a request, an evaluation of the previous round, or both.
* ``send_model`` and ``score_model``: cross-site evaluation, in which each site scores the models of the others.
* ``install``: the end of the run. A site exports its bundle and returns its privacy account.
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
from medfl.engine.evaluation import MetricRow
from medfl.engine.store import StepNumbers
from medfl.errors import PluginError, RefusedError, validation_message
from medfl.privacy.policy import mechanism_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.metadata import Count, MetaField, Text, bounded_number, check_metadata, dict_of, list_of
from medfl_flare.backend.messages import Message

SCORE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_@.-]{1,80}(/[A-Za-z0-9_@.-]{1,80}){0,2}")
"""Pattern of the names of models and metrics in a row: one to three parts with slashes between them."""

SPLITS, MOMENTS = ("train", "val", "test", "shared"), ("aggregated", "trained")
"""Values that a row of a site may contain.

* ``SPLITS``: splits of the data; ``shared`` is the test set that all sites share.
* ``MOMENTS``: times of a score in a round, after aggregation or directly after the site's training.
"""


MAX_ROWS = 100_000
"""Maximum number of rows of scores in one message."""


def rows_to_json(rows: list[MetricRow]) -> list[list[Any]]:
    """Return rows as lists. A value that is not finite becomes a string, as JSON has no such numbers."""
    return [[*row[:-1], row.value if math.isfinite(row.value) else str(row.value)] for row in rows]


MAX_ABSOLUTE_SCORE = 1e100
"""Largest absolute value of a score. Sums over all sites and rounds stay finite, and no float32 number is as large."""


def rows_from_json(rows: Any, site: str, round_: int | None = None) -> list[MetricRow]:
    """Return the rows in a message, after a check of each row.

    Args:
        rows: JSON value of the rows.
        site: Name of the sender, which may send only rows about itself.
        round_: Required round of the rows; None if the receiver made the rows itself.

    Raises:
        RefusedError: If a row has another form, is about another site or round, or is a duplicate.
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


def _row(entry: Any, site: str) -> MetricRow:
    """Return one row, or raise if it is invalid."""
    if not isinstance(entry, list) or len(entry) != len(MetricRow._fields) or not _is_row(entry, site):
        raise RefusedError(
            "invalid_row",
            f"Expected rows {list(MetricRow._fields)} of '{site}' itself, got another one. Both sides need the same "
            "version.",
            site=site,
            expected=list(MetricRow._fields),
        )
    round_, of, model, split, moment, metric, value = entry
    return MetricRow(round_, of, model, split, moment, metric, float(value) if isinstance(value, str) else value)


def _is_row(entry: list[Any], site: str) -> bool:
    """Return whether the values of a row are valid and about this site."""
    round_, of, model, split, moment, metric, value = entry
    words = all(isinstance(word, str) and SCORE_NAME_PATTERN.fullmatch(word) for word in (model, metric))
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
    """Return whether a value is a finite number of acceptable size."""
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and abs(value) <= MAX_ABSOLUTE_SCORE)


REQUEST_PREFIX, PUBLISHED_PREFIX = "request/", "published/"
"""Prefixes of the tensor names in a message to a site.

* ``REQUEST_PREFIX``: tensors of the request.
* ``PUBLISHED_PREFIX``: tensors of the state that the server published for an evaluation.
"""


UNDELIVERED = "undelivered"
"""Key in a site's result: names of the receivers that did not acknowledge the site's peer message."""


TASK_NAME, PROGRESS_COMMAND = "medfl", "medfl.progress"
"""Names that medfl uses in NVFlare.

* ``TASK_NAME``: name of the only kind of task in a job.
* ``PROGRESS_COMMAND``: command to a job that returns the progress of its run.
"""


KNOWN_BYTES_KEY, LINES_KEY, POSITION_KEY = "after", "events", "start"
"""Keys of a request for parts of a run's progress file, and of the response.

* ``KNOWN_BYTES_KEY``: in the request, number of bytes of the file that the client already has.
* ``LINES_KEY``: in the response, the lines that follow.
* ``POSITION_KEY``: in the response, position of these lines in the file in bytes.
"""


SITE_INFO_SCHEMA = {
    "trainable": MetaField("public", bool, after=("begin",)),
    "validates": MetaField("public", bool, after=("begin",)),
    "frozen": MetaField("public", Text),
    "start": MetaField("public", Text),
    "size": MetaField("private", Count),
    "label_counts": MetaField("private", list_of(Count, "classes")),
}
"""Schema of the information that a site discloses when a run begins (`medfl.engine.site.SiteRunner.site_info`).

* ``trainable``: whether the site has cases to train on.
* ``validates``: whether the site has validation cases.
* ``frozen``: digest of the frozen parameters of the site's network.
* ``start``: SHA-256 of the weights from which the site's network starts.
* ``size``: number of training cases.
* ``label_counts``: number of training cases of each class.
"""


DATA_INFO_KEYS = {"classes", "names", "name", "modality", "shared_test"}
"""Keys of the description of the data that a site returns when a run begins.

* ``classes``: names of the classes.
* ``names``: names of the network's outputs.
* ``name``: name of the data set.
* ``modality``: imaging modality.
* ``shared_test``: digest of the test set that all sites share, or None if the site does not score it.
"""


MAX_KEPT_STEPS = 2
"""Maximum number of earlier steps whose state the server may ask a site to keep; each is a copy of the site's state."""


MAX_STEP = 10**8
"""Exclusive upper limit of step and round numbers, so that file names have room for them."""


def read_integer(meta: Meta, name: str, low: int = 0) -> int:
    """Return an integer from a message's metadata.

    Args:
        meta: Metadata of the message.
        name: Key of the integer.
        low: Smallest allowed value.

    Raises:
        RefusedError: If the key is absent, or if the value is not an integer or is out of range.
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


def read_names(meta: Meta, name: str) -> list[str]:
    """Return a list of names from a message's metadata.

    Raises:
        RefusedError: If the key is absent, or if the value is not a list of strings.
    """
    value = meta.get(name)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise RefusedError("invalid_names", f"expected a list of names as '{name}'", name=name)
    return value


def read_steps(meta: Meta, name: str) -> list[int]:
    """Return a short list of steps from a message's metadata.

    Raises:
        RefusedError: If the key is absent, or if the value is not a list of at most `MAX_KEPT_STEPS` step numbers.
    """
    value = meta.get(name)
    if not isinstance(value, list) or len(value) > MAX_KEPT_STEPS:
        raise RefusedError(
            "invalid_steps", f"expected at most {MAX_KEPT_STEPS} steps as '{name}'", name=name, maximum=MAX_KEPT_STEPS
        )
    return [read_integer({name: entry}, name) for entry in value]


class MessagePosition(NamedTuple):
    """Position in the run that a message is about.

    Attributes:
        round: Round of the request or of the evaluated models; None if the message is about neither.
        step: Step of the request, or last step of the evaluated round; None if the message is about neither.
    """

    round: int | None = None
    step: int | None = None


def read_position(meta: Meta) -> MessagePosition:
    """Return the position in the run that a message of the server is about.

    Args:
        meta: Metadata of the message.

    Raises:
        RefusedError: If the round or the step is not a valid integer.
    """
    about = meta.get("request") or meta.get("evaluate") or meta
    if not isinstance(about, dict) or "step" not in about:
        return MessagePosition()
    return MessagePosition(read_integer(about, "round"), read_integer(about, "step"))


class StepMessages:
    """Builder of the messages that the server sends to the sites in one step.

    Sites with equal requests share one message. A tensor that is both in the request and published is sent once.

    Args:
        step: Step number.
        round_: Round of the requests.
        evaluation: Evaluation of the previous round, with the state that the server published for it, or None.
        keep: Numbers of the earlier steps whose state the sites must keep.
    """

    def __init__(self, step: int, round_: int, evaluation: Evaluation | None, keep: StepNumbers) -> None:
        self._step, self._round, self._evaluation, self._keep = step, round_, evaluation, list(keep)
        self._made: dict[tuple[int, str], Message] = {}

    def message(self, request: Request | None) -> Message:
        """Return the message for one site.

        Args:
            request: Request to the site, or None if the site only evaluates.
        """
        key = (
            (0, "")
            if request is None
            else (id(request.tensors), json.dumps([request.op, request.meta], sort_keys=True))
        )
        if key not in self._made:
            self._made[key] = self._make(request)
        return self._made[key]

    def _make(self, request: Request | None) -> Message:
        """Build the message for a request."""
        tensors: Tensors = {}
        meta: Meta = {"request": None, "evaluate": None, "keep": self._keep}
        if request is not None:
            tensors |= wire.prefixed(request.tensors, REQUEST_PREFIX)
            facts = {"op": request.op, "meta": request.meta, "digest": wire.digest(request.tensors)}
            meta["request"] = facts | {"step": self._step, "round": self._round}
        if self._evaluation is not None:
            sent = {} if request is None else request.tensors
            published = self._evaluation.published
            same = [name for name, tensor in published.items() if name in sent and _equal(tensor, sent[name])]
            tensors |= {PUBLISHED_PREFIX + name: tensor for name, tensor in published.items() if name not in same}
            meta["evaluate"] = {"step": self._evaluation.step, "round": self._evaluation.round, "same": same}
        return Message("step", tensors, meta)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and values."""
    return wire.tensors_equal({"": left}, {"": right})


MAX_PROFILE_ENTRIES = 32
"""Maximum number of properties in the profile of a site's machine."""


class HelloReply(NamedTuple):
    """A site's acceptance of an offer, the server's proposal of a run.

    Attributes:
        network: Network that the site's own file names, or None.
        profile: Maps each property of the site's machine to its value, if the run's network assignment requests it and
            the site's own file allows it; otherwise None.
    """

    network: str | None = None
    profile: dict[str, float] | None = None


HELLO_REPLY_SCHEMA = {
    "network": MetaField("public", Text | None, after=("hello",)),
    "profile": MetaField("public", dict_of(bounded_number(0, 1e9), MAX_PROFILE_ENTRIES) | None, after=("hello",)),
}
"""Schema of the metadata from which `read_hello_reply` makes a `HelloReply`."""

NAME_FIELD = MetaField("public", Text)
"""Schema of the name of a class, an output or a data set."""


def read_hello_reply(site: str, message: Message) -> HelloReply:
    """Return a site's reply to ``hello``.

    Raises:
        RefusedError: If the reply does not match the schema.
    """
    facts = {name: value for name, value in message.meta.items() if name != "refused"}
    check_metadata(facts, HELLO_REPLY_SCHEMA, "hello", {}, f"site '{site}'")
    return HelloReply(**facts)


def read_begin_reply(
    site: str, message: Message, classes: int, outputs: int, frozen: str | None = None, start: str | None = None
) -> Meta:
    """Return a site's reply to ``begin`` as a dict, after a check.

    The keys are ``facts`` (information in the form of `SITE_INFO_SCHEMA`, without ``frozen`` and ``start``),
    ``newest`` (the newest step on the site's disk) and ``data`` (a dict with the keys `DATA_INFO_KEYS`).

    Args:
        site: Name of the site.
        message: Reply of the site.
        classes: Number of classes.
        outputs: Number of outputs of a network. A site whose cases have no class may send a name for each output.
        frozen: Digest of the frozen parameters of the site's network at the server; None if the network has no frozen
            parameters.
        start: SHA-256 of the weights from which the run starts at the server; None if they are random.

    Raises:
        RefusedError: If the reply has another form, or if the site starts from other weights or has other frozen
            parameters. Names of classes and
            data are written to the files of a bundle, so names that MONAI would evaluate are refused.
    """
    facts, data = message.meta.get("facts"), message.meta.get("data")
    if not isinstance(facts, dict) or not isinstance(data, dict) or data.keys() != DATA_INFO_KEYS:
        raise RefusedError("missing_site_facts", "expected what the site tells of its data", site=site)
    check_metadata(facts, SITE_INFO_SCHEMA, "begin", {"classes": classes}, f"site '{site}'")
    facts = dict(facts)
    if (digest := facts.pop("start", None)) != start:
        raise RefusedError(
            "unlike_start",
            f"the site starts from other weights than the server: expected the SHA-256 {_short(start)}, got "
            f"{_short(digest)}. Give the site the same file of weights",
            site=site,
            expected=_short(start),
            found=_short(digest),
        )
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
        if NAME_FIELD.problem_of(name, {}) or name.lstrip()[:1] in (*"$@%",):
            raise RefusedError(
                "unsafe_name",
                "expected plain names of classes and data, which begin with none of '$', '@' and '%'",
                site=site,
            )
    shared = data["shared_test"]
    if shared is not None and not (isinstance(shared, str) and re.fullmatch(r"[0-9a-f]{64}", shared)):
        raise RefusedError("invalid_fingerprint", "expected the fingerprint of the shared test set, or none", site=site)
    return {"facts": facts, "newest": read_integer(message.meta, "newest"), "data": data}


def _short(digest: str | None) -> str:
    """Return the first characters of a digest for an error message."""
    return "none" if digest is None else digest[:12]


def read_scores(site: str, message: Message, round_: int) -> list[MetricRow]:
    """Return the scores in a reply to ``send_model`` or ``score_model``; all must be of the given round."""
    return rows_from_json(message.meta.get("rows"), site, round_)


def read_privacy_account(site: str, message: Message) -> PrivacyAccount | None:
    """Return the privacy account in a site's reply to ``install``, or None if the site keeps none.

    Args:
        site: Name of the site.
        message: Reply of the site.

    Raises:
        RefusedError: If the account does not validate, or if no mechanism has its unit. The error names the field but
            never contains its value.
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
            f"The privacy account of site '{site}' was refused{place}: {validation_message(first)}. Server and site "
            "need the same version of medfl; if they have it, the site is not honest.",
            sender=f"site '{site}'",
            key="privacy",
            expected=validation_message(first),
        ) from None
