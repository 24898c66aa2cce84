"""A site's audit record: every message that the site received, and everything that left it.

The file is ``audit.jsonl`` in the folder ``state`` of the site's own file.

An entry is written and flushed to the disk before anything leaves. If it can't be written, nothing leaves. So a killed
process may have recorded one reply that did not leave, but never omits one that did. Entries
(`medfl_flare.records.audit.AuditEntry`) contain names of tensors, sizes and budgets. They contain no value of a tensor,
no score and nothing about a patient. Heartbeats are not recorded.
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
from medfl_flare.records.audit import AuditEntry, SentTensors, SpentBudget, add_entry
from medfl_flare.records.offer import Offer
from medfl_flare.sites.site_file import SiteFile

logger = logging.getLogger(__name__)

AUDIT_FILE_NAME = "audit.jsonl"
"""Name of the audit file in the state folder."""


def audit_path(site_file: SiteFile) -> Path:
    """Return the path of a site's audit file."""
    return site_file.state / AUDIT_FILE_NAME


class AuditLog:
    """Writer of the audit record of one process of a site.

    Args:
        site_file: The site's own file.
    """

    def __init__(self, site_file: SiteFile) -> None:
        self._file = site_file
        self._run: Meta = {"run": None}
        self._names: tuple[str, ...] = ()

    def set_run(self, offer: Offer) -> None:
        """Set the run to which the following entries belong.

        Args:
            offer: Offer of the run, with its name, method and bundle.
        """
        of_bundle = {"bundle": offer.bundle, "bundle_sha256": offer.bundle_hash}
        self._run = {"run": offer.run, "method": offer.method, "given_by": offer.given_by} | of_bundle

    def set_request(self, name: str, bundle: str) -> None:
        """Set the federated statistics or evaluation, by name and bundle, as the subject of the following entries."""
        self._run = {"run": name, "bundle": bundle}

    def record_reply(self, question: Message, answer: Message, length: int, budget: PrivacyAccount | None) -> None:
        """Record a reply that leaves next.

        Args:
            question: Message of the server.
            answer: Reply of the site.
            length: Size of the packed reply in bytes.
            budget: The site's privacy account (the budget spent on its data), or None if the run has no privacy
                setting.

        Raises:
            StoreError: If the entry can't be written. Then the reply must not leave.
        """
        request = question.meta.get("request") or question.meta.get("evaluate") or question.meta
        facts: Meta = {"round": request.get("round"), "work": request.get("op"), "bytes": length}
        facts["tells"] = tuple(sorted(name for name, value in answer.meta.items() if value not in (None, [], {})))
        if budget is not None:
            facts["budget"] = SpentBudget(**budget.model_dump(include=set(SpentBudget.model_fields)))
        facts |= self._sent_tensors(answer.tensors)
        self._write(sender=SERVER, kind=question.kind, outcome="answered", **facts)

    def record_refusal(self, kind: str, why: str) -> None:
        """Record a refused message of the server, and the reason that is sent to the server.

        If the disk is full, log the error instead, as no data leave.
        """
        self._try_to_write(sender=SERVER, kind=kind, outcome="refused", why=why)

    def record_sent(self, peer_message: PeerMessage) -> None:
        """Record a peer message that leaves next.

        Raises:
            StoreError: If the entry can't be written. Then the message must not leave.
        """
        self._write(
            receiver=peer_message.to, kind="peer_message", outcome="sent", **self._sent_tensors(peer_message.tensors)
        )

    def record_received(self, sender: str, why: str | None) -> None:
        """Record a received peer message, and the reason if it is refused. If the disk is full, log the error."""
        outcome = "refused" if why else "accepted"
        self._try_to_write(sender=sender, kind="peer_message", outcome=outcome, why=why)

    def _sent_tensors(self, tensors: Tensors) -> Meta:
        """Return the fields of an entry about tensors that leave: ``leaves`` and ``names``."""
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

    def _try_to_write(self, **facts: Any) -> None:
        """Write an entry; log the error if that fails."""
        try:
            self._write(**facts)
        except StoreError as error:
            logger.error("%s", error)

    def _write(self, **facts: Any) -> None:
        """Write an entry about the current run."""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        add_entry(audit_path(self._file), AuditEntry(time=time, site=self._file.site, **self._run, **facts))


def _sizes(tensors: Sequence[Tensor]) -> SentTensors:
    """Return the number of tensors, of their values and of their bytes."""
    return SentTensors(
        tensors=len(tensors),
        values=sum(tensor.numel() for tensor in tensors),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def entry_text(entry: AuditEntry | None) -> str:
    """Return an entry as text: time, run, message, data that left, and spent budget.

    None stands for an unreadable line.
    """
    if entry is None:
        return "(an unreadable line: the process was killed, the disk was full, or someone edited the file)"
    other = f"to {entry.receiver}" if entry.sender is None else f"from {entry.sender}"
    work = entry.kind if entry.work is None else f"{entry.kind} {entry.work}"
    place = "" if entry.round is None else f" of round {entry.round}"
    text = f"{entry.time}  {entry.run or 'no run'}: {work}{place} {other}, {entry.outcome}"
    for kind, sizes in entry.leaves.items():
        text += f"; {kind}: {sizes.tensors} tensors, {size(sizes.bytes)}"
    if entry.budget is not None:
        text += f"; epsilon {entry.budget.composed} (delta {entry.budget.delta:g}) over all runs"
    return text + ("" if entry.why is None else f"; {entry.why}")
