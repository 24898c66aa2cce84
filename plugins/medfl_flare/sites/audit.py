"""A site's record of what was asked of it and what left it: ``audit.jsonl`` in the folder ``state`` of its file.

A line is written, flushed to the disk, before anything leaves; where it can't be written, nothing leaves. So a kill at
any moment can note one answer too many, never one too few. The lines are chained (`medfl.utils.chain`). They hold names
of tensors, sizes and budgets; no value of any tensor, no score and nothing of a patient.

Each line has ``time`` (UTC), ``site``, ``from`` or ``to``, ``asked`` (the message's kind), ``run`` and ``outcome``
(``answered``, ``accepted``, ``sent`` or ``refused``), and as far as they are known ``method``, ``bundle``,
``bundle_sha256``, ``given_by``, ``round``, ``work`` (an order's operation), ``leaves`` (first part of a tensor's name
to the number of tensors, of values and of bytes), ``names`` of these (once, until they are others), ``tells`` (which
facts are in the message), ``bytes`` of the message, ``budget`` (the account of privacy after it) and ``why`` it was
refused. Heartbeats are no lines.
"""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

from medfl.contract import PeerMessage
from medfl.errors import StoreError
from medfl.records.privacy_account import PrivacyAccount
from medfl.types import SERVER, Meta, Tensors
from medfl.utils.chain import add_line
from medfl.utils.formats import size
from medfl_flare.backend.messages import Message
from medfl_flare.records.offer import Offer
from medfl_flare.sites.file import SiteFile

logger = logging.getLogger(__name__)

AUDIT = "audit.jsonl"
"""Its file in the state folder."""

BUDGET = {"unit", "adjacency", "delta", "epsilon", "composed", "total_epsilon"}
"""Fields of a site's privacy account that a line holds."""


def audit_file(site_file: SiteFile) -> Path:
    """Where a site's record is."""
    return site_file.state / AUDIT


class Audit:
    """Notes down what one process of a site is asked, and what leaves.

    Args:
        site_file: The site's own file.
    """

    def __init__(self, site_file: SiteFile) -> None:
        self._file = site_file
        self._run: Meta = {"run": None}
        self._names: list[str] = []

    def offered(self, offer: Offer) -> None:
        """From now on lines are about this run."""
        of_bundle = {"bundle": offer.bundle, "bundle_sha256": offer.bundle_hash}
        self._run = {"run": offer.run, "method": offer.method, "given_by": offer.given_by} | of_bundle

    def described(self, name: str, bundle: str) -> None:
        """From now on lines are about a description of this name."""
        self._run = {"run": name, "bundle": bundle}

    def answered(self, question: Message, answer: Message, length: int, budget: PrivacyAccount | None) -> None:
        """An answer leaves next.

        Args:
            question: What the server asked.
            answer: The answer.
            length: Its bytes.
            budget: The site's privacy account, or None if the run has no privacy setting.

        Raises:
            StoreError: If it can't be noted; then it must not leave.
        """
        order = question.meta.get("order") or question.meta.get("evaluate") or question.meta
        about = {"round": order.get("round"), "work": order.get("op")}
        fact_names = sorted(name for name, value in answer.meta.items() if value not in (None, [], {}))
        facts = {name: value for name, value in about.items() if value is not None} | self._leaves(answer.tensors)
        facts |= {"tells": fact_names} if fact_names else {}
        facts |= {} if budget is None else {"budget": budget.model_dump(mode="json", include=BUDGET)}
        self._note({"from": SERVER, "asked": question.kind, "outcome": "answered"}, facts | {"bytes": length})

    def refused(self, kind: str, why: str) -> None:
        """A message of the server is refused, `why` is what it is told. Nothing leaves: a full disk is just logged."""
        self._try_to_note({"from": SERVER, "asked": kind, "outcome": "refused"}, {"why": why})

    def sends(self, parcel: PeerMessage) -> None:
        """A parcel for another site leaves next.

        Raises:
            StoreError: If it can't be noted; then it must not leave.
        """
        self._note({"to": parcel.to, "asked": "parcel", "outcome": "sent"}, self._leaves(parcel.tensors))

    def received(self, sender: str, why: str | None) -> None:
        """A parcel of another site came; `why` it is refused, or None. A full disk is just logged."""
        facts = {} if why is None else {"why": why}
        self._try_to_note({"from": sender, "asked": "parcel", "outcome": "refused" if why else "accepted"}, facts)

    def _leaves(self, tensors: Tensors) -> Meta:
        if not tensors:
            return {}
        kinds: dict[str, dict[str, int]] = {}
        for name, tensor in tensors.items():
            kind = kinds.setdefault(name.partition("/")[0], {"tensors": 0, "values": 0, "bytes": 0})
            kind["tensors"] += 1
            kind["values"] += tensor.numel()
            kind["bytes"] += tensor.numel() * tensor.element_size()
        names, self._names = self._names, sorted(tensors)
        return {"leaves": kinds} | ({} if names == self._names else {"names": self._names})

    def _try_to_note(self, who: Meta, facts: Meta) -> None:
        try:
            self._note(who, facts)
        except StoreError as error:
            logger.error("%s", error)

    def _note(self, who: Meta, facts: Meta) -> None:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        add_line(audit_file(self._file), {"time": time, "site": self._file.site} | who | self._run | facts)


def in_words(entry: Meta) -> str:
    """A line for people: when, who asked what of which run, what left, what is spent.

    Args:
        entry: As read (`medfl.utils.chain.read`): empty for a torn line, anything for one that was edited.
    """
    try:
        return _in_words(entry) if entry else "(a line that was cut off by a kill or a full disk)"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "(a line of another form: somebody edited it)"


def _in_words(entry: Meta) -> str:
    other = f"from {entry['from']}" if "from" in entry else f"to {entry['to']}"
    work = " ".join(str(entry[name]) for name in ("asked", "work") if name in entry)
    place = f" of round {entry['round']}" if "round" in entry else ""
    text = f"{entry['time']}  {entry['run'] or 'no run'}: {work}{place} {other}, {entry['outcome']}"
    for kind, sizes in entry.get("leaves", {}).items():
        text += f"; {kind}: {sizes['tensors']} tensors, {size(sizes['bytes'])}"
    if "budget" in entry:
        text += f"; epsilon {entry['budget']['composed']} (delta {entry['budget']['delta']:g}) over all runs"
    return text + (f"; {entry['why']}" if "why" in entry else "")
