"""A site's end of a secure aggregation.

Its secrets are made anew at each operation from the site's own secret, so none of them is on the disk, in a log or in
the clear in a message. Order of what is done to an update: clip, weigh, round, noise, mask.

The site does not trust the server. It takes part in one aggregation of a round and trains a model once (`Register`);
its secrets are derived from the list of participants and keys that it was given; and it reveals a share only if enough
participants have signed that they were given the same lists.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from medfl.contract import Method, Reply, Request, Site
from medfl.engine.filters import Filters
from medfl.engine.journal import request_digest
from medfl.engine.reply_checks import check_sent
from medfl.engine.secure.discrete_gaussian import discrete_gaussian
from medfl.engine.secure.fixed_point import FixedPoint, packed
from medfl.engine.secure.keys import CHANNEL, KEY, MASK, NONCE, agreed, public_key, seal, unseal
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
    PREFIX,
    PUBLIC,
    REVEALED,
    SEALED,
    SHARES,
    SIGNATURE,
    About,
    Layout,
    digest,
    layout_of,
    mask_context,
    numbers_of,
    of_sites,
    session_digest,
    to_bytes,
    to_tensor,
)
from medfl.engine.secure.register import Register
from medfl.engine.secure.shamir import BYTES, split
from medfl.engine.secure.weights import fixed_point, weight_of
from medfl.errors import RefusedError
from medfl.privacy.gaussian import clip_by_norm
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.rng import SecretStream

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer

PURPOSE, CONFIRMING = "keys of secure aggregation", "survivors of secure aggregation"
"""What a signature is for."""

NoiseFactory = Callable[[str, str], SecretStream]
"""Records a release in the site's account, then returns the secret stream of its noise: ``make(payload, turn)``. The
noise depends on the payload, and the account counts each pair of payload and turn."""


@dataclass(frozen=True)
class SiteTools:
    """What a site has beside what its method sees.

    Attributes:
        register: Of what its secrets were used for.
        noise: Records a release in the site's account, then returns the secret stream of its noise.
        signer: Signs its keys and checks those of others; None on one machine, where there are no certificates.
        sites: Names of the run's sites; None accepts any.
    """

    register: Register
    noise: NoiseFactory
    signer: Signer | None = None
    sites: Collection[str] | None = None


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
    request: Request
    inner: Method
    tools: SiteTools

    def execute(self) -> Reply:
        """Carry the operation out.

        Raises:
            RefusedError: If it would give away more than a sum of `threshold` updates.
        """
        self._check_participants()
        parts: dict[str, Callable[[], Reply]] = {
            KEYS: self._keys,
            SHARES: self._shares,
            MASKED: self._masked,
            CONFIRM: self._confirm,
        }
        return parts.get(self.request.op, self._unmask)()

    # ---- what all operations have

    @cached_property
    def about(self) -> About:
        """What the order says of its aggregation."""
        return About.of(self.request)

    def _check_participants(self) -> None:
        """Refuse participants that the run does not have, that are too few or too many, or that the round had not."""
        sites = self.about.sites
        self._check_crowd(sites, "participants", self.site.name in sites)
        if self.tools.sites is not None and not {*sites} <= {*self.tools.sites}:
            raise RefusedError(
                "unknown_participants",
                "expected participants among the run's sites, got others: the server is not honest",
                sites=sites,
            )
        self.tools.register.once(self.site.round, "participants", digest(sites))

    @cached_property
    def secrets(self) -> tuple[bytes, bytes]:
        """The private keys of channel and masks, before the other participants are known."""
        stream = self.site.secret_rng("secure aggregation", self.tools.register.nonce)
        return stream.take(KEY), stream.take(KEY)

    @cached_property
    def own_mask(self) -> bytes:
        """The key of the site's own mask; another list of participants and keys gives another one."""
        payload = f"{self.tools.register.nonce} {self.session}"
        return self.site.secret_rng("own mask of secure aggregation", payload).take(KEY)

    @cached_property
    def public(self) -> dict[str, bytes]:
        """Maps each participant to its two public keys, as the order has them; checked, and the same in each order."""
        keys = {name: to_bytes(tensor) for name, tensor in sorted(of_sites(self.request.tensors, PUBLIC).items())}
        self._check_crowd(tuple(keys), "keys", keys.get(self.site.name) == self._own_public)
        if any(len(key) != 2 * KEY for key in keys.values()) or not keys.keys() <= {*self.about.sites}:
            raise RefusedError(
                "wrong_public_keys",
                "expected two public keys of each participant, got others: the server is not honest",
            )
        for name, key in keys.items():
            self._verify(PURPOSE, self._statement(name, key), SIGNATURE, name)
        self.tools.register.once(self.site.round, "keys of others", digest({name: keys[name].hex() for name in keys}))
        return keys

    @cached_property
    def session(self) -> str:
        """Digest of the participants and keys that this site was given."""
        return session_digest(self.site.round, self._threshold, self.about.sites, self.public)

    @property
    def _own_public(self) -> bytes:
        return public_key(self.secrets[0]) + public_key(self.secrets[1])

    def _statement(self, name: str, keys: bytes) -> bytes:
        """Return what a site signs in `KEYS`: whose keys they are, and for which round of which run."""
        return digest("keys", name, self.site.run_id, self.site.round, keys.hex()).encode()

    def _survivors(self, name: str) -> bytes:
        """Return what a site signs in `CONFIRM`: the lists that it was given, in this round of this run."""
        peers, masked = list(self.about.peers), list(self.about.masked)
        return digest("survivors", name, self.site.run_id, self.site.round, self.session, peers, masked).encode()

    def _verify(self, purpose: str, statement: bytes, signature: str, name: str) -> None:
        """Refuse a statement that a participant has not signed. On one machine no participant has a certificate.

        Args:
            purpose: What the signature must have been made for.
            statement: What must be signed.
            signature: Prefix of the names of the signatures in the order.
            name: The participant.
        """
        if self.tools.signer is None:
            return
        signatures, certificates = (of_sites(self.request.tensors, what) for what in (signature, CERTIFICATE))
        if name not in signatures or name not in certificates:
            raise RefusedError(
                "missing_signature",
                f"expected a signature and a certificate of '{name}' ({purpose}), got none",
                site=name,
                purpose=purpose,
            )
        proof = to_bytes(signatures[name]), to_bytes(certificates[name])
        self.tools.signer.verify_site(purpose, statement, *proof, name)

    def _check_crowd(self, names: tuple[str, ...], what: str, mine: bool) -> None:
        """Refuse a crowd in which this site is not, or that is not one by its own setting."""
        threshold = self._threshold
        if not mine or not threshold <= len(names) < 2 * threshold:
            raise RefusedError(
                "wrong_participant_count",
                f"Expected {what} of {threshold} to {2 * threshold - 1} sites with '{self.site.name}' among them, as "
                f"the threshold {threshold} asks for; got {len(names)}.",
                what=what,
                found=len(names),
                minimum=threshold,
                maximum=2 * threshold - 1,
            )

    def _channel(self, other: str) -> bytes:
        return agreed(self.secrets[0], self.public[other][:KEY], CHANNEL, self.session.encode())

    def _bound_to(self, sender: str, receiver: str) -> bytes:
        return digest(sender, receiver, self.session).encode()

    def _split(self) -> tuple[dict[str, bytes], Callable[[int], bytes]]:
        """Site to its shares of both secrets, that of the masks' key first; and the stream that goes on."""
        payload = f"{self.tools.register.nonce} {self.session}"
        draw = self.site.secret_rng("secure aggregation shares", payload).take
        secrets = self.secrets[1], self.own_mask
        halves = [split(secret, len(self.public), self._threshold, draw) for secret in secrets]
        return {name: first + second for name, first, second in zip(self.public, *halves, strict=True)}, draw

    @property
    def _threshold(self) -> int:
        assert self.site.settings.secure_aggregation is not None
        return self.site.settings.secure_aggregation.resolved_threshold

    # ---- the operations

    def _keys(self) -> Reply:
        assert self.site.name in self.about.sites, "checked"
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
        public, about, round_ = self.public, self.about, self.site.round
        self._check_peers()
        tensors = {name: tensor for name, tensor in self.request.tensors.items() if not name.startswith(PREFIX)}
        meta = {name: value for name, value in self.request.meta.items() if name != ABOUT}
        request = replace(self.request, op=about.op, tensors=tensors, meta=meta)
        model = wire.digest(tensors)
        payload = request_digest(request, model)
        self.tools.register.model_once(round_, model)
        self.tools.register.once(round_, "orders", payload)
        layout = layout_of(tensors, self.inner.sends)
        reply, update, public_facts = self._updated(request)
        words, point = self._encoded(layout, update, weight_of(self.inner, reply.meta, self.site.settings))
        self.tools.register.once(round_, "numbers", hashlib.sha256(words.tobytes()).hexdigest())
        add_mask(words, self.own_mask)
        context = mask_context(self.session, about.peers, payload)
        for other in about.peers:
            if other != self.site.name:
                key = agreed(self.secrets[1], public[other][KEY:], MASK, context)
                add_mask(words, key, pair_sign(self.site.name, other))
        return Reply({NUMBERS: packed(words, point.bits)}, public_facts, log=reply.log, trained=reply.trained)

    def _confirm(self) -> Reply:
        self._check_masked()
        statement = self._survivors(self.site.name)
        tensors = {CONFIRMED: to_tensor(bytes.fromhex(statement.decode()))}
        if self.tools.signer is not None:
            tensors[CONFIRMED_SIGNATURE] = to_tensor(self.tools.signer.sign(CONFIRMING, statement))
        return Reply(tensors)

    def _unmask(self) -> Reply:
        about = self.about
        self._check_masked()
        self._check_confirmed()
        sealed = of_sites(self.request.tensors, SEALED)
        if sealed.keys() != {*about.peers} - {self.site.name}:
            raise RefusedError("wrong_sealed_shares", "expected a sealed share of each other site, got others")
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
            raise RefusedError(
                "unknown_peers", "expected peers whose keys are known, got others: the server is not honest"
            )
        self.tools.register.once(self.site.round, "peers", digest(self.about.peers))

    def _check_masked(self) -> None:
        """Refuse a list of participants that sent numbers if it is not one, or not the round's first."""
        about = self.about
        self._check_peers()
        self._check_crowd(about.masked, "numbers", self.site.name in about.masked)
        if not {*about.masked} <= {*about.peers}:
            raise RefusedError(
                "unknown_senders",
                "expected numbers of sites whose shares are held, got others: the server is not honest",
            )
        self.tools.register.once(self.site.round, "drop-outs", digest(about.masked))

    def _check_confirmed(self) -> None:
        """Refuse to reveal shares unless at least `threshold` participants signed the lists that this site was given.

        It is the consistency check of Bonawitz et al. (CCS 2017) against servers that do not follow the protocol.
        """
        confirmed = of_sites(self.request.tensors, CONFIRMED)
        if len(confirmed) < self._threshold or not confirmed.keys() <= {*self.about.masked}:
            raise RefusedError(
                "too_few_confirmations",
                f"Expected at least {self._threshold} participants that confirm who sent numbers in round "
                f"{self.site.round}, got {len(confirmed)}: nothing is revealed.",
                round=self.site.round,
                found=len(confirmed),
                minimum=self._threshold,
            )
        for name, lists in confirmed.items():
            statement = self._survivors(name)
            if to_bytes(lists).hex().encode() != statement:
                raise RefusedError(
                    "inconsistent_participants",
                    f"'{name}' was given other lists of participants than '{self.site.name}' in round "
                    f"{self.site.round}: the server is not honest. Nothing is revealed.",
                    site=name,
                    round=self.site.round,
                )
            self._verify(CONFIRMING, statement, CONFIRMED_SIGNATURE, name)

    def _updated(self, request: Request) -> tuple[Reply, Tensors, Meta]:
        """What the method makes of its own order: its reply, the update that may leave in a sum, and public facts."""
        site, inner, who = self.site, self.inner, f"site '{self.site.name}'"
        sent = replace(request, tensors=dict(request.tensors), meta=dict(request.meta))
        reply = inner.execute(site, request)
        check_sent(inner, site.task, site.settings, sent, reply, who)
        if reply.peer_messages:
            raise RefusedError(
                "unexpected_parcels", "secure aggregation covers updates only, and the method posts parcels"
            )
        schema = inner.sends_meta
        update, meta = Filters(inner.sends, schema, site.settings, site.settings.rounds).checked(
            reply.tensors, reply.meta, site.name
        )
        public = {name: value for name, value in meta.items() if schema[name].visibility == "public"}
        return reply, {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}, public

    def _encoded(self, layout: Layout, update: Tensors, weight: int) -> tuple[Words, FixedPoint]:
        """The numbers to mask: clipped, weighed, rounded, with this site's share of noise; the weight comes last."""
        settings, numbers = self.site.settings, numbers_of(layout)
        point, heaviest = fixed_point(self.inner, settings, len(self.about.peers), numbers)
        if weight > heaviest:
            raise RefusedError(
                "too_many_images",
                f"Site '{self.site.name}' has more training images than 'secure_aggregation.largest_size', "
                f"{heaviest}: raise it for the run.",
                site=self.site.name,
                setting="secure_aggregation.largest_size",
                maximum=heaviest,
            )
        flat = [
            update[name].detach().cpu().double().flatten() if name in update else torch.zeros(count).double()
            for name, _, count in layout
        ]
        values = clip_by_norm({"update": torch.cat(flat)}, point.clip)["update"]
        steps = point.rounded(values * (weight / heaviest), self.site.rng("rounding of secure aggregation"))
        if point.noise:
            facts = {name: value for name, value in vars(point).items() if math.isfinite(value)}
            facts |= {"sites": list(self.about.sites), "peers": list(self.about.peers)}
            stream = self.tools.noise(wire.digest({"update": values}, facts), self.session)
            steps += discrete_gaussian(point.site_noise, numbers, stream)
        words = point.words(steps)
        return np.append(words, words.dtype.type(weight)), point
