"""Operations of a secure aggregation at the server, which relays keys and encrypted shares and learns only the sum.

The server keeps the data between two operations in its state: lists of names in the metadata, bytes in blobs. A round
has one aggregation. If too many participants drop out of an operation, the run stops. The same command then repeats
that operation with the same lists, keys and masks, and never begins the round again with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from medfl.contract import Method, Plan, Replies, Request, Server
from medfl.engine.journal import request_digest
from medfl.engine.secure.fixed_point import to_signed, unpack_words
from medfl.engine.secure.keys import KEY, MASK, agree_key, public_key
from medfl.engine.secure.masks import Words, add_mask, pair_sign
from medfl.engine.secure.ops import (
    ABOUT,
    CERTIFICATE,
    CONFIRM,
    CONFIRMED,
    CONFIRMED_SIGNATURE,
    KEYS,
    MASKED,
    NUMBERS,
    PUBLIC,
    REVEALED,
    SEALED,
    SHARES,
    SIGNATURE,
    UNMASK,
    AggregationMeta,
    by_site,
    layout_of,
    mask_context,
    numbers_of,
    session_digest,
    to_bytes,
)
from medfl.engine.secure.shamir import combine
from medfl.engine.secure.weights import fixed_point
from medfl.engine.store import copy_state
from medfl.errors import RefusedError, SettingsError
from medfl.settings import SecureAggregation
from medfl.types import Meta, Tensors
from medfl.utils import wire


@dataclass
class MeanReplies:
    """Replies of all sites whose updates are in the sum. Each reply is the mean, so every weighted mean equals it.

    Iteration yields (site, tensors).

    Attributes:
        mean: Tensors of the mean update.
        meta: Maps each site to the metadata of its reply.
        missing: Names of the sites that received a request and whose updates are not in the sum.
    """

    mean: Tensors
    meta: dict[str, Meta]
    missing: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site in self.meta:
            yield site, self.mean

    def __len__(self) -> int:
        return len(self.meta)


@dataclass(frozen=True)
class ServerOperation:
    """One operation of a secure aggregation at the server.

    Attributes:
        server: The server, whose state has the aggregation.
        inner: Method whose updates are summed.
    """

    server: Server
    inner: Method

    @property
    def secure(self) -> SecureAggregation:
        """The setting ``secure_aggregation`` of the run."""
        assert self.server.settings.secure_aggregation is not None
        return self.server.settings.secure_aggregation

    @property
    def progress(self) -> dict[str, Any]:
        """State of the round's aggregation, which is a part of the server's state.

        The keys are ``phase`` (the next operation; missing if no aggregation is in progress), ``sites``, ``keyed``,
        ``peers``, ``masked`` and ``confirmed`` (participants of each operation), ``quorum`` (minimum number of
        replies), ``ends`` (whether the aggregation ends the round) and ``metas`` (metadata of the replies). After an
        aggregation, the only key is ``done`` (its round).
        """
        progress: dict[str, Any] = self.server.state.meta.setdefault(ABOUT, {})
        return progress

    # ---- plan

    def plan(self) -> Plan | None:
        """Return the plan of the next operation, or the method's own plan if the replies to it are not summed.

        A plan has the requests of one step.
        """
        progress = self.progress
        if "phase" not in progress:
            return self._plan_first()
        public = self.server.blob(PUBLIC)
        about = AggregationMeta.from_fields(progress)
        if progress["phase"] == SHARES:
            return self._plan_operation(progress["keyed"], SHARES, about, dict.fromkeys(progress["keyed"], public))
        if progress["phase"] == MASKED:
            requests = [
                _to_masked(request, about, public)
                for request in self._plan_inner().requests
                if request.to in progress["peers"]
            ]
            return self._make_plan(requests, progress["quorum"])
        if progress["phase"] == CONFIRM:
            return self._plan_operation(progress["masked"], CONFIRM, about, dict.fromkeys(progress["masked"], public))
        sealed, confirmed = self.server.blob(SEALED), self.server.blob(CONFIRMED)
        tensors = {
            name: public
            | confirmed
            | {f"{SEALED}/{other}": sealed[f"{SEALED}/{other}/{name}"] for other in progress["peers"] if other != name}
            for name in progress["confirmed"]
        }
        return replace(self._plan_operation(progress["confirmed"], UNMASK, about, tensors), ends_round=progress["ends"])

    def _plan_first(self) -> Plan | None:
        """Return the first operation for the method's next plan. `MASKED` and `UNMASK` compute that plan again."""
        state = self.server.state
        plan = self.inner.plan(replace(self.server, state=copy_state(state)))
        if plan is None or not plan.requests or not plan.aggregates:
            return self.inner.plan(self.server)
        sites, least = sorted(request.to for request in plan.requests), self.secure.resolved_threshold
        if not least <= len(sites) < 2 * least:
            raise SettingsError(
                "wrong_participant_count",
                f"Secure aggregation with the threshold {least} is for {least} to {2 * least - 1} participants in a "
                f"round, but the round has {len(sites)}: with more, two halves could be summed separately. Set "
                "'secure_aggregation.threshold' to more than half of them, for example two thirds, or set 'fraction'.",
                found=len(sites),
                minimum=least,
                maximum=2 * least - 1,
            )
        if self.progress.get("done") == self.server.round:
            raise SettingsError(
                "second_sum",
                "Secure aggregation sums the updates of a round once, but this method sums updates twice in a round. "
                "Choose another method, or leave 'secure_aggregation' out.",
                round=self.server.round,
            )
        if any(not _are_equal(request, plan.requests[0]) for request in plan.requests[1:]):
            raise SettingsError(
                "unlike_tensors",
                "Secure aggregation sums updates of one model, but this run sends different tensors to the sites. Use "
                "one network and model for all sites, or leave 'secure_aggregation' out.",
            )
        needed = len(sites) if plan.quorum is None else max(least, plan.quorum)
        self.progress.clear()
        self.progress.update(sites=sites, quorum=needed, ends=plan.ends_round, peers=[], masked=[], phase=KEYS)
        return self._plan_operation(sites, KEYS, AggregationMeta(tuple(sites)), {name: {} for name in sites})

    def _plan_inner(self) -> Plan:
        """Return the method's own plan, and update the server's state as the method does."""
        plan = self.inner.plan(self.server)
        assert plan is not None
        return plan

    def _plan_operation(self, sites: list[str], op: str, about: AggregationMeta, tensors: dict[str, Tensors]) -> Plan:
        quorum = self.secure.resolved_threshold if op in (CONFIRM, UNMASK) else self.progress["quorum"]
        return self._make_plan([Request(name, op, tensors[name], about.meta()) for name in sites], quorum)

    def _make_plan(self, requests: list[Request], quorum: int) -> Plan:
        return Plan(self.server.round, requests, ends_round=False, quorum=quorum)

    # ---- aggregate

    def aggregate(self, replies: Replies) -> None:
        """Store the replies of an operation in the server's state. After the last operation, the method aggregates.

        The method receives the mean of all updates as the reply of each site.

        Args:
            replies: Replies of the operation.

        Raises:
            RefusedError: If the revealed shares of a site are wrong.
        """
        operations = {
            KEYS: self._take_keys,
            SHARES: self._take_shares,
            MASKED: self._take_numbers,
            CONFIRM: self._take_confirmations,
            UNMASK: self._take_revealed_shares,
        }
        phase = self.progress.get("phase")
        operations[phase](replies) if phase else self.inner.aggregate(self.server, replies)

    def _take_keys(self, replies: Replies) -> None:
        blob, keyed = Tensors(), []
        for site, tensors in replies:
            keyed.append(site)
            blob |= {f"{what}/{site}": tensors[what] for what in (PUBLIC, SIGNATURE, CERTIFICATE) if what in tensors}
        self.server.keep_blob(PUBLIC, blob)
        self.progress.update(phase=SHARES, keyed=keyed)

    def _take_shares(self, replies: Replies) -> None:
        blob, peers = Tensors(), []
        for site, tensors in replies:
            peers.append(site)
            blob |= {f"{SEALED}/{site}/{to}": sealed for to, sealed in by_site(tensors, SEALED).items()}
        self.server.keep_blob(SEALED, blob)
        self.progress.update(phase=MASKED, peers=peers)

    def _take_numbers(self, replies: Replies) -> None:
        total: Words | None = None
        for _, tensors in replies:
            words = unpack_words(tensors[NUMBERS], self.secure.bits)
            total = words if total is None else total + words
        assert total is not None
        self.server.keep_blob(NUMBERS, {NUMBERS: torch.from_numpy(total)})
        self.progress.update(phase=CONFIRM, masked=sorted(replies.meta), metas=dict(replies.meta))

    def _take_confirmations(self, replies: Replies) -> None:
        blob, sites = Tensors(), []
        for site, tensors in replies:
            sites.append(site)
            blob |= {f"{what}/{site}": tensors[what] for what in (CONFIRMED, CONFIRMED_SIGNATURE) if what in tensors}
        self.server.keep_blob(CONFIRMED, blob)
        self.progress.update(phase=UNMASK, confirmed=sites)

    def _take_revealed_shares(self, replies: Replies) -> None:
        progress, request = self.progress, self._replanned().requests[0]
        total = self.server.blob(NUMBERS)[NUMBERS].numpy().copy()
        self._remove_masks(total, {site: by_site(tensors, REVEALED) for site, tensors in replies}, request)
        metas, missing = progress["metas"], sorted({*progress["sites"]} - {*progress["masked"]})
        self.server.state.meta[ABOUT] = {"done": self.server.round}
        for name in (PUBLIC, SEALED, NUMBERS, CONFIRMED):
            self.server.state.blobs.pop(name)
        self.inner.aggregate(
            self.server, MeanReplies(self._mean(total, request, len(progress["peers"])), metas, missing)
        )

    def _replanned(self) -> Plan:
        """Return the method's own plan for this round again, without a change to the server's state."""
        plan = self.inner.plan(replace(self.server, state=copy_state(self.server.state)))
        assert plan is not None
        return plan

    def _remove_masks(self, total: Words, revealed: dict[str, dict[str, torch.Tensor]], request: Request) -> None:
        """Subtract, in place, the masks that have not cancelled.

        These are the own mask of each site in the sum, and the masks that such a site shares with a site that dropped
        out.

        Args:
            total: Sum of the masked numbers, which is changed in place.
            revealed: Maps each site that revealed shares to these, by their owner.
            request: The method's own request.

        Raises:
            RefusedError: If the shares of a site's key do not give this key.
        """
        progress, threshold = self.progress, self.secure.resolved_threshold
        public = {name: to_bytes(key) for name, key in by_site(self.server.blob(PUBLIC), PUBLIC).items()}
        places = {name: place for place, name in enumerate(sorted(public), start=1)}
        session = session_digest(self.server.round, threshold, progress["sites"], public)
        context = mask_context(session, progress["peers"], request_digest(request, wire.digest(request.tensors)))
        for name in progress["peers"]:
            shares = {places[site]: to_bytes(tensors[name]) for site, tensors in revealed.items()}
            secret = combine(shares, threshold)
            if name in progress["masked"]:
                add_mask(total, secret, -1)
                continue
            if public_key(secret) != public[name][KEY:]:
                raise RefusedError(
                    "wrong_shares",
                    f"expected shares of the key of '{name}', got others: a site is not honest",
                    site=name,
                )
            for other in progress["masked"]:
                key = agree_key(secret, public[other][KEY:], MASK, context)
                add_mask(total, key, -pair_sign(other, name))

    def _mean(self, total: Words, request: Request, sites: int) -> Tensors:
        """Return the weighted mean of the updates, float64, from the sum of the numbers and of the weights.

        Args:
            total: Unmasked sum, with the sum of the weights as its last element.
            request: The method's own request.
            sites: Number of peers, which decides the fixed-point format.
        """
        layout = layout_of(request.tensors, self.inner.sends)
        point, heaviest = fixed_point(self.inner, self.server.settings, sites, numbers_of(layout))
        weight = int(to_signed(total[-1:], point.bits)[0])
        values = point.values(total[:-1]) * (heaviest / weight if weight > 0 else 0.0)
        parts = values.split([count for _, _, count in layout])
        return {name: part.reshape(shape) for (name, shape, _), part in zip(layout, parts, strict=True)}


def _to_masked(request: Request, about: AggregationMeta, public: Tensors) -> Request:
    """Return the request of the operation `MASKED`, in which a site executes the method's own request."""
    return Request(request.to, MASKED, request.tensors | public, request.meta | replace(about, op=request.op).meta())


def _are_equal(left: Request, right: Request) -> bool:
    """Return whether two requests have equal ops, metadata and tensors, bit by bit. The sites may differ."""
    if (left.op, left.meta) != (right.op, right.meta) or left.tensors.keys() != right.tensors.keys():
        return False
    pairs = [(left.tensors[name], right.tensors[name]) for name in left.tensors]
    return all(
        first is second or (first.dtype == second.dtype and torch.equal(first, second)) for first, second in pairs
    )
