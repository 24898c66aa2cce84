"""A site's end of a secure aggregation.

Its secrets are made anew at each operation from the site's own secret, so none of them is on the disk, in a log or in
the clear in a message. Order of what is done to an update: clip, weigh, round, noise, mask.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from medfl.contract import Method, Order, Reply, Site
from medfl.core.filters import Filters, StreamFactory
from medfl.core.reply_checks import check_sent
from medfl.core.secure.ops import (
    ABOUT,
    CERTIFICATE,
    KEYS,
    MASKED,
    NUMBERS,
    PREFIX,
    PUBLIC,
    REVEALED,
    SEALED,
    SHARES,
    SIGNATURE,
    About,
    Layout,
    layout_of,
    numbers_of,
    of_sites,
    to_bytes,
    to_tensor,
)
from medfl.core.secure.register import Register
from medfl.core.secure.weights import fixed_point, weight_of
from medfl.errors import RefusedError
from medfl.privacy.gaussian import clip_by_norm
from medfl.privacy.secure_aggregation.discrete_gaussian import discrete_gaussian
from medfl.privacy.secure_aggregation.fixed_point import FixedPoint, packed
from medfl.privacy.secure_aggregation.keys import CHANNEL, KEY, MASK, NONCE, agreed, public_key, seal, unseal
from medfl.privacy.secure_aggregation.masks import Words, add_mask, pair_sign
from medfl.privacy.secure_aggregation.shamir import BYTES, split
from medfl.types import Meta, Tensors
from medfl.utils import wire

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer

PURPOSE = "keys of secure aggregation"
"""What a signature is for."""


@dataclass(frozen=True)
class SiteTools:
    """What a site has beside what its method sees.

    Attributes:
        register: Of what its secrets were used for.
        noise: Notes a release in the site's account, then gives the secret stream of its noise.
        signer: Signs its keys and checks those of others; None on one machine, where there are no certificates.
    """

    register: Register
    noise: StreamFactory
    signer: Signer | None = None


@dataclass(frozen=True)
class SiteEnd:
    """One operation at one site.

    Attributes:
        site: The site; its settings say what it takes part in.
        order: What it is asked.
        inner: The method whose updates are summed.
        tools: The site's own.
    """

    site: Site
    order: Order
    inner: Method
    tools: SiteTools

    def work(self) -> Reply:
        """Carry the operation out.

        Raises:
            RefusedError: If it would give away more than a sum of `threshold` updates.
        """
        parts: dict[str, Callable[[], Reply]] = {KEYS: self._keys, SHARES: self._shares, MASKED: self._masked}
        return parts.get(self.order.op, self._unmask)()

    # ---- what all operations have

    @cached_property
    def about(self) -> About:
        """What the order says; checked."""
        about = About.of(self.order)
        self._check_crowd(about.sites, "participants", self.site.name in about.sites)
        return about

    @cached_property
    def secrets(self) -> tuple[bytes, bytes, bytes]:
        """The private keys of channel and masks, and the key of the site's own mask."""
        stream = self.site.secret_rng("secure aggregation", f"{self.about.turn} {self.tools.register.nonce}")
        return stream.take(KEY), stream.take(KEY), stream.take(KEY)

    @cached_property
    def public(self) -> dict[str, bytes]:
        """Site to its two public keys, as the order brings them; checked, and the same in all operations."""
        keys = {name: to_bytes(tensor) for name, tensor in sorted(of_sites(self.order.tensors, PUBLIC).items())}
        self._check_crowd(tuple(keys), "keys", keys.get(self.site.name) == self._own_public)
        if any(len(key) != 2 * KEY for key in keys.values()) or not keys.keys() <= {*self.about.sites}:
            raise RefusedError("expected two public keys of each participant, got others: the server is not honest")
        if self.tools.signer is not None:
            signatures, certificates = (of_sites(self.order.tensors, what) for what in (SIGNATURE, CERTIFICATE))
            for name, key in keys.items():
                if name not in signatures or name not in certificates:
                    raise RefusedError(f"expected signed keys of '{name}', got some without signature")
                proof = to_bytes(signatures[name]), to_bytes(certificates[name])
                self.tools.signer.verify(PURPOSE, self._statement(name, key), *proof, name)
        self.tools.register.once(self.about.turn, "keys of others", _digest(*map(str, keys.items())))
        return keys

    @property
    def _own_public(self) -> bytes:
        return public_key(self.secrets[0]) + public_key(self.secrets[1])

    def _statement(self, name: str, keys: bytes) -> bytes:
        """What a site signs: whose keys they are and for what."""
        about = [name, self.site.run_id, str(self.site.round), str(self.about.turn), keys.hex()]
        return "\n".join(about).encode()

    def _check_crowd(self, names: tuple[str, ...], what: str, mine: bool) -> None:
        """Refuse a crowd in which this site is not, or that is not one by its own setting."""
        settings = self.site.settings.secure_aggregation
        assert settings is not None
        if not mine or not settings.threshold <= len(names) < 2 * settings.threshold:
            raise RefusedError(
                f"Expected {what} of {settings.threshold} to {2 * settings.threshold - 1} sites with '"
                f"{self.site.name}' among them, as the threshold {settings.threshold} asks for; got {len(names)}."
            )

    def _channel(self, other: str) -> bytes:
        return agreed(self.secrets[0], self.public[other][:KEY], CHANNEL)

    def _bound_to(self, sender: str, receiver: str) -> bytes:
        return "\n".join([sender, receiver, str(self.about.turn), _digest(*map(str, self.public.items()))]).encode()

    def _split(self) -> tuple[dict[str, bytes], Callable[[int], bytes]]:
        """Site to its shares of both secrets, that of the masks' key first; and the stream that goes on."""
        label, threshold = "secure aggregation shares", self._threshold
        payload = f"{self.about.turn} {self.tools.register.nonce} {_digest(*map(str, self.public.items()))}"
        draw = self.site.secret_rng(label, payload).take
        halves = [split(secret, len(self.public), threshold, draw) for secret in self.secrets[1:]]
        return {name: first + second for name, first, second in zip(self.public, *halves, strict=True)}, draw

    @property
    def _threshold(self) -> int:
        assert self.site.settings.secure_aggregation is not None
        return self.site.settings.secure_aggregation.threshold

    # ---- the operations

    def _keys(self) -> Reply:
        self.tools.register.once(self.about.turn, "participants", _digest(*self.about.sites))
        tensors = {PUBLIC: to_tensor(self._own_public)}
        if self.tools.signer is not None:
            signature = self.tools.signer.sign(PURPOSE, self._statement(self.site.name, self._own_public))
            tensors |= {SIGNATURE: to_tensor(signature), CERTIFICATE: to_tensor(self.tools.signer.certificate)}
        return Reply(tensors)

    def _shares(self) -> Reply:
        shares, draw = self._split()
        return Reply(
            {
                f"{SEALED}/{name}": to_tensor(
                    seal(self._channel(name), draw(NONCE), share, self._bound_to(self.site.name, name))
                )
                for name, share in shares.items()
                if name != self.site.name
            }
        )

    def _masked(self) -> Reply:
        public, about = self.public, self.about
        self._check_peers()
        tensors = {name: tensor for name, tensor in self.order.tensors.items() if not name.startswith(PREFIX)}
        meta = {name: value for name, value in self.order.meta.items() if name != ABOUT}
        layout = layout_of(tensors, self.inner.sends)
        reply, update, public_facts = self._updated(replace(self.order, op=about.op, tensors=tensors, meta=meta))
        words, point = self._encoded(layout, update, weight_of(self.inner, reply.meta, self.site.settings))
        self.tools.register.once(about.turn, "numbers", hashlib.sha256(words.tobytes()).hexdigest())
        add_mask(words, self.secrets[2])
        for other in about.peers:
            if other != self.site.name:
                key = agreed(self.secrets[1], public[other][KEY:], MASK)
                add_mask(words, key, pair_sign(self.site.name, other))
        return Reply({NUMBERS: packed(words, point.bits)}, public_facts, log=reply.log, trained=reply.trained)

    def _unmask(self) -> Reply:
        about = self.about
        self._check_peers()
        self._check_crowd(about.masked, "numbers", self.site.name in about.masked)
        if not {*about.masked} <= {*about.peers}:
            raise RefusedError("expected numbers of sites whose shares are held, got others: the server is not honest")
        sealed = of_sites(self.order.tensors, SEALED)
        if sealed.keys() != {*about.peers} - {self.site.name}:
            raise RefusedError("expected a sealed share of each other site, got others")
        self.tools.register.once(about.turn, "drop-outs", _digest(*about.masked))
        shares = {self.site.name: self._split()[0][self.site.name]}
        for name, tensor in sealed.items():
            shares[name] = unseal(self._channel(name), to_bytes(tensor), self._bound_to(name, self.site.name))
        revealed = {
            name: share[BYTES:] if name in about.masked else share[:BYTES] for name, share in sorted(shares.items())
        }
        return Reply({f"{REVEALED}/{name}": to_tensor(share) for name, share in revealed.items()})

    # ---- pieces

    def _check_peers(self) -> None:
        """The list of sites with which masks are in common is the same in both operations that have one."""
        self._check_crowd(self.about.peers, "shares", self.site.name in self.about.peers)
        if not {*self.about.peers} <= self.public.keys():
            raise RefusedError("expected peers whose keys are known, got others: the server is not honest")
        self.tools.register.once(self.about.turn, "peers", _digest(*self.about.peers))

    def _updated(self, order: Order) -> tuple[Reply, Tensors, Meta]:
        """What the method makes of its own order: its reply, the update that may leave in a sum, and public facts."""
        site, inner, who = self.site, self.inner, f"site '{self.site.name}'"
        sent = replace(order, tensors=dict(order.tensors), meta=dict(order.meta))
        reply = inner.work(site, order)
        check_sent(inner, site.task, site.settings, sent, reply, who)
        if reply.parcels:
            raise RefusedError("secure aggregation covers updates only, and the method posts parcels")
        tells = inner.sends_meta
        update, meta = Filters(inner.sends, tells, site.settings, site.settings.rounds).checked(
            reply.tensors, reply.meta, site.name
        )
        public = {name: value for name, value in meta.items() if tells[name].kind == "public"}
        return reply, {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}, public

    def _encoded(self, layout: Layout, update: Tensors, weight: int) -> tuple[Words, FixedPoint]:
        """The numbers to mask: clipped, weighed, rounded, with this site's share of noise; the weight comes last."""
        settings, numbers = self.site.settings, numbers_of(layout)
        point, heaviest = fixed_point(self.inner, settings, len(self.about.peers), numbers)
        if weight > heaviest:
            raise RefusedError(
                f"Site '{self.site.name}' has more training images than 'secure_aggregation.largest_size', "
                f"{heaviest}: raise it for the run."
            )
        flat = [
            update[name].detach().cpu().double().flatten() if name in update else torch.zeros(count).double()
            for name, _, count in layout
        ]
        values = clip_by_norm({"update": torch.cat(flat)}, point.clip)["update"]
        steps = point.rounded(values * (weight / heaviest), self.site.rng("rounding of secure aggregation"))
        if point.noise:
            facts = {name: value for name, value in vars(point).items() if math.isfinite(value)}
            stream = self.tools.noise(wire.digest({"update": values}, facts))
            steps += discrete_gaussian(point.site_noise, numbers, stream)
        words = point.words(steps)
        return np.append(words, words.dtype.type(weight)), point


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
