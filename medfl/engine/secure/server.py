"""The server's end of a secure aggregation: it relays keys and sealed shares, and learns the sum of the updates alone.

What it needs from one operation to the next is in its state: lists of names in the meta, bytes in blobs. A round has
one aggregation. If too many participants drop out of an operation, the run stops; given the same command again, it
repeats that operation with the same lists, keys and masks, and never begins the round again with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from medfl.contract import Method, Plan, Replies, Request, Server
from medfl.engine.journal import request_digest
from medfl.engine.secure.fixed_point import signed, unpacked
from medfl.engine.secure.keys import KEY, MASK, agreed, public_key
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
    About,
    layout_of,
    mask_context,
    numbers_of,
    of_sites,
    session_digest,
    to_bytes,
)
from medfl.engine.secure.shamir import combine
from medfl.engine.secure.weights import fixed_point
from medfl.engine.store import copied
from medfl.errors import RefusedError, SettingsError
from medfl.settings import SecureAggregation
from medfl.types import Meta, Tensors
from medfl.utils import wire


@dataclass
class Aggregated:
    """Replies of all sites whose updates are in the sum, each with the mean: any weighted mean of them is it."""

    mean: Tensors
    meta: dict[str, Meta]
    missing: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site in self.meta:
            yield site, self.mean

    def __len__(self) -> int:
        return len(self.meta)


@dataclass(frozen=True)
class ServerEnd:
    """The server in one step.

    Attributes:
        server: It.
        inner: The method whose updates are summed.
    """

    server: Server
    inner: Method

    @property
    def secure(self) -> SecureAggregation:
        """The run's setting."""
        assert self.server.settings.secure_aggregation is not None
        return self.server.settings.secure_aggregation

    @property
    def kept(self) -> dict[str, Any]:
        """State of the round's aggregation. Without ``phase`` none is under way; ``done`` is the last one's round."""
        kept: dict[str, Any] = self.server.state.meta.setdefault(ABOUT, {})
        return kept

    # ---- plan

    def plan(self) -> Plan | None:
        """The next operation, or what the method plans where nothing of its replies is summed."""
        kept = self.kept
        if "phase" not in kept:
            return self._begun()
        public = self.server.blob(PUBLIC)
        about = About.named(kept)
        if kept["phase"] == SHARES:
            return self._asking(kept["keyed"], SHARES, about, dict.fromkeys(kept["keyed"], public))
        if kept["phase"] == MASKED:
            requests = [
                _with_inner(request, about, public)
                for request in self._planned().requests
                if request.to in kept["peers"]
            ]
            return self._plan(requests, kept["quorum"])
        if kept["phase"] == CONFIRM:
            return self._asking(kept["masked"], CONFIRM, about, dict.fromkeys(kept["masked"], public))
        sealed, confirmed = self.server.blob(SEALED), self.server.blob(CONFIRMED)
        tensors = {
            name: public
            | confirmed
            | {f"{SEALED}/{other}": sealed[f"{SEALED}/{other}/{name}"] for other in kept["peers"] if other != name}
            for name in kept["confirmed"]
        }
        return replace(self._asking(kept["confirmed"], UNMASK, about, tensors), ends_round=kept["ends"])

    def _begun(self) -> Plan | None:
        """The first operation for what the method plans next. Its plan is made anew for the orders themselves."""
        state = self.server.state
        plan = self.inner.plan(replace(self.server, state=copied(state)))
        if plan is None or not plan.requests or not plan.aggregates:
            return self.inner.plan(self.server)
        sites, least = sorted(request.to for request in plan.requests), self.secure.resolved_threshold
        if not least <= len(sites) < 2 * least:
            raise SettingsError(
                "wrong_participant_count",
                f"Secure aggregation with the threshold {least} is for {least} to {2 * least - 1} participants of a "
                f"round, and {len(sites)} are asked: with more, two halves could be summed one by one. Set "
                "'secure_aggregation.threshold' to more than half of them, two thirds for example, or 'fraction'.",
                found=len(sites),
                minimum=least,
                maximum=2 * least - 1,
            )
        if self.kept.get("done") == self.server.round:
            raise SettingsError(
                "second_sum",
                "Secure aggregation sums the updates of a round once, and this method sums twice in a round. Choose "
                "another method, or leave 'secure_aggregation' out.",
                round=self.server.round,
            )
        if any(not _same(request, plan.requests[0]) for request in plan.requests[1:]):
            raise SettingsError(
                "unlike_tensors",
                "Secure aggregation sums updates of one model, and this run gives sites unlike tensors. Give all one "
                "network and model, or leave 'secure_aggregation' out.",
            )
        needed = len(sites) if plan.quorum is None else max(least, plan.quorum)
        self.kept.clear()
        self.kept.update(sites=sites, quorum=needed, ends=plan.ends_round, peers=[], masked=[], phase=KEYS)
        return self._asking(sites, KEYS, About(tuple(sites)), {name: {} for name in sites})

    def _planned(self) -> Plan:
        plan = self.inner.plan(self.server)
        assert plan is not None
        return plan

    def _asking(self, sites: list[str], op: str, about: About, tensors: dict[str, Tensors]) -> Plan:
        quorum = self.secure.resolved_threshold if op in (CONFIRM, UNMASK) else self.kept["quorum"]
        return self._plan([Request(name, op, tensors[name], about.meta()) for name in sites], quorum)

    def _plan(self, requests: list[Request], quorum: int) -> Plan:
        return Plan(self.server.round, requests, ends_round=False, quorum=quorum)

    # ---- fold

    def aggregate(self, replies: Replies) -> None:
        """Take in the replies of an operation; after the last one the method folds the mean."""
        parts = {
            KEYS: self._take_keys,
            SHARES: self._take_shares,
            MASKED: self._take_numbers,
            CONFIRM: self._take_confirmed,
            UNMASK: self._take_revealed,
        }
        phase = self.kept.get("phase")
        parts[phase](replies) if phase else self.inner.aggregate(self.server, replies)

    def _take_keys(self, replies: Replies) -> None:
        held, keyed = Tensors(), []
        for site, tensors in replies:
            keyed.append(site)
            held |= {f"{what}/{site}": tensors[what] for what in (PUBLIC, SIGNATURE, CERTIFICATE) if what in tensors}
        self.server.keep_blob(PUBLIC, held)
        self.kept.update(phase=SHARES, keyed=keyed)

    def _take_shares(self, replies: Replies) -> None:
        held, peers = Tensors(), []
        for site, tensors in replies:
            peers.append(site)
            held |= {f"{SEALED}/{site}/{to}": sealed for to, sealed in of_sites(tensors, SEALED).items()}
        self.server.keep_blob(SEALED, held)
        self.kept.update(phase=MASKED, peers=peers)

    def _take_numbers(self, replies: Replies) -> None:
        total: Words | None = None
        for _, tensors in replies:
            words = unpacked(tensors[NUMBERS], self.secure.bits)
            total = words if total is None else total + words
        assert total is not None
        self.server.keep_blob(NUMBERS, {NUMBERS: torch.from_numpy(total)})
        self.kept.update(phase=CONFIRM, masked=sorted(replies.meta), metas=dict(replies.meta))

    def _take_confirmed(self, replies: Replies) -> None:
        held, sites = Tensors(), []
        for site, tensors in replies:
            sites.append(site)
            held |= {f"{what}/{site}": tensors[what] for what in (CONFIRMED, CONFIRMED_SIGNATURE) if what in tensors}
        self.server.keep_blob(CONFIRMED, held)
        self.kept.update(phase=UNMASK, confirmed=sites)

    def _take_revealed(self, replies: Replies) -> None:
        kept, request = self.kept, self._replanned().requests[0]
        total = self.server.blob(NUMBERS)[NUMBERS].numpy().copy()
        self._remove_masks(total, {site: of_sites(tensors, REVEALED) for site, tensors in replies}, request)
        metas, missing = kept["metas"], sorted({*kept["sites"]} - {*kept["masked"]})
        self.server.state.meta[ABOUT] = {"done": self.server.round}
        for name in (PUBLIC, SEALED, NUMBERS, CONFIRMED):
            self.server.state.blobs.pop(name)
        self.inner.aggregate(self.server, Aggregated(self._mean(total, request, len(kept["peers"])), metas, missing))

    def _replanned(self) -> Plan:
        """What the method planned for this round, without a change to the server's state."""
        plan = self.inner.plan(replace(self.server, state=copied(self.server.state)))
        assert plan is not None
        return plan

    def _remove_masks(self, total: Words, revealed: dict[str, dict[str, torch.Tensor]], request: Request) -> None:
        """Subtract the masks that have not cancelled: each site's own, and those with sites that dropped out."""
        kept, threshold = self.kept, self.secure.resolved_threshold
        public = {name: to_bytes(key) for name, key in of_sites(self.server.blob(PUBLIC), PUBLIC).items()}
        places = {name: place for place, name in enumerate(sorted(public), start=1)}
        session = session_digest(self.server.round, threshold, kept["sites"], public)
        context = mask_context(session, kept["peers"], request_digest(request, wire.digest(request.tensors)))
        for name in kept["peers"]:
            shares = {places[site]: to_bytes(tensors[name]) for site, tensors in revealed.items()}
            secret = combine(shares, threshold)
            if name in kept["masked"]:
                add_mask(total, secret, -1)
                continue
            if public_key(secret) != public[name][KEY:]:
                raise RefusedError(
                    "wrong_shares",
                    f"expected shares of the key of '{name}', got others: a site is not honest",
                    site=name,
                )
            for other in kept["masked"]:
                key = agreed(secret, public[other][KEY:], MASK, context)
                add_mask(total, key, -pair_sign(other, name))

    def _mean(self, total: Words, request: Request, sites: int) -> Tensors:
        """The weighted mean of the updates, float64, from the sum of their numbers and of their weights."""
        layout = layout_of(request.tensors, self.inner.sends)
        point, heaviest = fixed_point(self.inner, self.server.settings, sites, numbers_of(layout))
        weight = int(signed(total[-1:], point.bits)[0])
        values = point.values(total[:-1]) * (heaviest / weight if weight > 0 else 0.0)
        parts = values.split([count for _, _, count in layout])
        return {name: part.reshape(shape) for (name, shape, _), part in zip(layout, parts, strict=True)}


def _with_inner(request: Request, about: About, public: Tensors) -> Request:
    """The operation in which a site does the method's own order."""
    return Request(request.to, MASKED, request.tensors | public, request.meta | replace(about, op=request.op).meta())


def _same(left: Request, right: Request) -> bool:
    """Whether two orders ask for the same with the same tensors, to the last bit."""
    if (left.op, left.meta) != (right.op, right.meta) or left.tensors.keys() != right.tensors.keys():
        return False
    pairs = [(left.tensors[name], right.tensors[name]) for name in left.tensors]
    return all(
        first is second or (first.dtype == second.dtype and torch.equal(first, second)) for first, second in pairs
    )
