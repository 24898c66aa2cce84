"""The server's end of a secure aggregation: it relays keys and sealed shares, and learns the sum of the updates alone.

What it needs from one operation to the next is in its state: lists of names in the meta, bytes in blobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from medfl.contract import Method, Order, Plan, Replies, Server
from medfl.core.secure.ops import (
    ABOUT,
    CERTIFICATE,
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
    numbers_of,
    of_sites,
    to_bytes,
)
from medfl.core.secure.weights import fixed_point
from medfl.core.store import copied
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.secure_aggregation.fixed_point import signed, unpacked
from medfl.privacy.secure_aggregation.keys import KEY, MASK, agreed, public_key
from medfl.privacy.secure_aggregation.masks import Words, add_mask, pair_sign
from medfl.privacy.secure_aggregation.shamir import combine
from medfl.settings import SecureAggregation
from medfl.types import Meta, Tensors


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
        """What is kept of the aggregation under way: ``turn`` always; without ``phase`` none is."""
        kept: dict[str, Any] = self.server.state.meta.setdefault(ABOUT, {"turn": 0})
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
            orders = [
                _with_inner(order, about, public) for order in self._planned().orders if order.to in kept["peers"]
            ]
            return self._plan(orders, kept["quorum"])
        sealed = self.server.blob(SEALED)
        tensors = {
            name: public
            | {f"{SEALED}/{other}": sealed[f"{SEALED}/{other}/{name}"] for other in kept["peers"] if other != name}
            for name in kept["masked"]
        }
        return replace(self._asking(kept["masked"], UNMASK, about, tensors), ends_round=kept["ends"])

    def _begun(self) -> Plan | None:
        """The first operation for what the method plans next. Its plan is made anew for the orders themselves."""
        state = self.server.state
        plan = self.inner.plan(replace(self.server, state=copied(state)))
        if plan is None or not plan.orders or not plan.folds:
            return self.inner.plan(self.server)
        sites, least = sorted(order.to for order in plan.orders), self.secure.threshold
        if not least <= len(sites) < 2 * least:
            raise SettingsError(
                f"Secure aggregation with the threshold {least} is for {least} to {2 * least - 1} participants of a "
                f"round, and {len(sites)} are asked: with more, two halves could be summed one by one. Set "
                "'secure_aggregation.threshold' to more than half of them, two thirds for example, or 'fraction'."
            )
        forms = [layout_of(order.tensors, self.inner.sends) for order in plan.orders]
        if any(form != forms[0] for form in forms):
            raise SettingsError(
                "Secure aggregation sums numbers that stand at the same places at all sites, and this run gives sites "
                "unlike tensors. Give all one network, or leave 'secure_aggregation' out."
            )
        needed = len(sites) if plan.quorum is None else max(least, plan.quorum)
        turn = self.kept["turn"] + 1
        self.kept.update(turn=turn, sites=sites, quorum=needed, ends=plan.ends_round, peers=[], masked=[], phase=KEYS)
        return self._asking(sites, KEYS, About(turn, tuple(sites)), {name: {} for name in sites})

    def _planned(self) -> Plan:
        plan = self.inner.plan(self.server)
        assert plan is not None
        return plan

    def _asking(self, sites: list[str], op: str, about: About, tensors: dict[str, Tensors]) -> Plan:
        quorum = self.secure.threshold if op == UNMASK else self.kept["quorum"]
        return self._plan([Order(name, op, tensors[name], about.meta()) for name in sites], quorum)

    def _plan(self, orders: list[Order], quorum: int) -> Plan:
        return Plan(self.server.round, orders, ends_round=False, quorum=quorum)

    # ---- fold

    def fold(self, replies: Replies) -> None:
        """Take in the replies of an operation; after the last one the method folds the mean."""
        parts = {
            KEYS: self._take_keys,
            SHARES: self._take_shares,
            MASKED: self._take_numbers,
            UNMASK: self._take_revealed,
        }
        phase = self.kept.get("phase")
        parts[phase](replies) if phase else self.inner.fold(self.server, replies)

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
        self.kept.update(phase=UNMASK, masked=sorted(replies.meta), metas=dict(replies.meta))

    def _take_revealed(self, replies: Replies) -> None:
        kept = self.kept
        total = self.server.blob(NUMBERS)[NUMBERS].numpy().copy()
        self._remove_masks(total, {site: of_sites(tensors, REVEALED) for site, tensors in replies})
        metas, missing = kept["metas"], sorted({*kept["sites"]} - {*kept["masked"]})
        self.server.state.meta[ABOUT] = {"turn": kept["turn"]}
        for name in (PUBLIC, SEALED, NUMBERS):
            self.server.state.blobs.pop(name)
        plan = self.inner.plan(replace(self.server, state=copied(self.server.state)))
        assert plan is not None
        self.inner.fold(self.server, Aggregated(self._mean(total, plan.orders[0], len(kept["peers"])), metas, missing))

    def _remove_masks(self, total: Words, revealed: dict[str, dict[str, torch.Tensor]]) -> None:
        """Subtract the masks that have not cancelled: each site's own, and those with sites that dropped out."""
        kept, public = self.kept, of_sites(self.server.blob(PUBLIC), PUBLIC)
        places = {name: place for place, name in enumerate(sorted(public), start=1)}
        for name in kept["peers"]:
            shares = {places[site]: to_bytes(tensors[name]) for site, tensors in revealed.items()}
            secret = combine(shares, self.secure.threshold)
            if name in kept["masked"]:
                add_mask(total, secret, -1)
                continue
            if public_key(secret) != to_bytes(public[name])[KEY:]:
                raise RefusedError(f"expected shares of the key of '{name}', got others: a site is not honest")
            for other in kept["masked"]:
                key = agreed(secret, to_bytes(public[other])[KEY:], MASK)
                add_mask(total, key, -pair_sign(other, name))

    def _mean(self, total: Words, order: Order, sites: int) -> Tensors:
        """The weighted mean of the updates, float64, from the sum of their numbers and of their weights."""
        layout = layout_of(order.tensors, self.inner.sends)
        point, heaviest = fixed_point(self.inner, self.server.settings, sites, numbers_of(layout))
        weight = int(signed(total[-1:], point.bits)[0])
        values = point.values(total[:-1]) * (heaviest / weight if weight > 0 else 0.0)
        parts = values.split([count for _, _, count in layout])
        return {name: part.reshape(shape) for (name, shape, _), part in zip(layout, parts, strict=True)}


def _with_inner(order: Order, about: About, public: Tensors) -> Order:
    """The operation in which a site does the method's own order."""
    return Order(order.to, MASKED, order.tensors | public, order.meta | replace(about, op=order.op).meta())
