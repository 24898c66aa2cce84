"""A site's record of what was asked of it and what left it: ``audit.jsonl`` in the folder ``state`` of its file.

A line is written, flushed to the disk, before anything leaves; where it can't be written, nothing leaves. So a kill at
any moment can note one answer too many, never one too few. The lines (`medfl_flare.records.audit.AuditEntry`) hold
names of tensors, sizes and budgets; no value of any tensor, no score and nothing of a patient. Heartbeats are no lines.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from medfl.contract import PeerMessage
from medfl.errors import StoreError
from medfl.records.privacy_account import PrivacyAccount
from medfl.types import SERVER, Meta, Tensors
from medfl.utils.formats import size
from medfl_flare.backend.messages import Message
from medfl_flare.records.audit import AuditEntry, Budget, SentTensors, add_entry
from medfl_flare.records.offer import Offer
from medfl_flare.sites.file import SiteFile

logger = logging.getLogger(__name__)

AUDIT = "audit.jsonl"
"""Its file in the state folder."""


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
        self._names: tuple[str, ...] = ()

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
        request = question.meta.get("request") or question.meta.get("evaluate") or question.meta
        facts: Meta = {"round": request.get("round"), "work": request.get("op"), "bytes": length}
        facts["tells"] = tuple(sorted(name for name, value in answer.meta.items() if value not in (None, [], {})))
        if budget is not None:
            facts["budget"] = Budget(**budget.model_dump(include=set(Budget.model_fields)))
        facts |= self._sent_tensors(answer.tensors)
        self._note(sender=SERVER, kind=question.kind, outcome="answered", **facts)

    def refused(self, kind: str, why: str) -> None:
        """A message of the server is refused, `why` is what it is told. Nothing leaves: a full disk is just logged."""
        self._try_to_note(sender=SERVER, kind=kind, outcome="refused", why=why)

    def sends(self, peer_message: PeerMessage) -> None:
        """A parcel for another site leaves next.

        Raises:
            StoreError: If it can't be noted; then it must not leave.
        """
        self._note(
            receiver=peer_message.to, kind="peer_message", outcome="sent", **self._sent_tensors(peer_message.tensors)
        )

    def received(self, sender: str, why: str | None) -> None:
        """A parcel of another site came; `why` it is refused, or None. A full disk is just logged."""
        self._try_to_note(sender=sender, kind="peer_message", outcome="refused" if why else "accepted", why=why)

    def _sent_tensors(self, tensors: Tensors) -> Meta:
        """Return the fields of an entry about tensors that leave."""
        if not tensors:
            return {}
        kinds: dict[str, list[Tensor]] = {}
        for name, tensor in tensors.items():
            kinds.setdefault(name.partition("/")[0], []).append(tensor)
        names, self._names = self._names, tuple(sorted(tensors))
        return {
            "leaves": {kind: _sizes(of_kind) for kind, of_kind in kinds.items()},
            "names": () if names == self._names else self._names,
        }

    def _try_to_note(self, **facts: Any) -> None:
        try:
            self._note(**facts)
        except StoreError as error:
            logger.error("%s", error)

    def _note(self, **facts: Any) -> None:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        add_entry(audit_file(self._file), AuditEntry(time=time, site=self._file.site, **self._run, **facts))


def _sizes(tensors: Sequence[Tensor]) -> SentTensors:
    return SentTensors(
        tensors=len(tensors),
        values=sum(tensor.numel() for tensor in tensors),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def in_words(entry: AuditEntry | None) -> str:
    """Return an entry for people: when, who asked what of which run, what left, what is spent; None is no entry."""
    if entry is None:
        return "(a line that is no entry: a kill or a full disk cut it off, or somebody edited it)"
    other = f"to {entry.receiver}" if entry.sender is None else f"from {entry.sender}"
    work = entry.kind if entry.work is None else f"{entry.kind} {entry.work}"
    place = "" if entry.round is None else f" of round {entry.round}"
    text = f"{entry.time}  {entry.run or 'no run'}: {work}{place} {other}, {entry.outcome}"
    for kind, sizes in entry.leaves.items():
        text += f"; {kind}: {sizes.tensors} tensors, {size(sizes.bytes)}"
    if entry.budget is not None:
        text += f"; epsilon {entry.budget.composed} (delta {entry.budget.delta:g}) over all runs"
    return text + ("" if entry.why is None else f"; {entry.why}")
