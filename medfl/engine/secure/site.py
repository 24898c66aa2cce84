"""Operations of a secure aggregation at a site.

An update is clipped, multiplied by its weight, rounded, noised and masked, in this order. The secrets of an aggregation
are derived from the site's own secret at each operation. So no secret is on the disk, in a log, or in the clear in a
message.

Threat model: the site does not trust the server. It takes part in one aggregation of a round and trains a model once
(`SecretUseRegister`). Its secrets are derived from the lists of participants and keys that it received. It reveals a
share only if enough participants have signed that they received the same lists.
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
from medfl.engine.reply_checks import check_before_sending
from medfl.engine.secure.discrete_gaussian import discrete_gaussian
from medfl.engine.secure.fixed_point import FixedPoint, pack_words
from medfl.engine.secure.keys import CHANNEL, KEY, MASK, NONCE, agree_key, public_key, seal, unseal
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
    AggregationMeta,
    Layout,
    by_site,
    digest,
    layout_of,
    mask_context,
    numbers_of,
    session_digest,
    to_bytes,
    to_tensor,
)
from medfl.engine.secure.register import SecretUseRegister
from medfl.engine.secure.shamir import SHARE_BYTES, split
from medfl.engine.secure.weights import fixed_point, weight_of
from medfl.errors import RefusedError
from medfl.privacy.gaussian import clip_by_norm
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.rng import SecretStream

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer

KEYS_PURPOSE, SURVIVORS_PURPOSE = "keys of secure aggregation", "survivors of secure aggregation"
"""Purposes of signatures.

`KEYS_PURPOSE`: signature of a site's public keys. `SURVIVORS_PURPOSE`: signature of the list of participants that sent
an update.
"""

NoiseFactory = Callable[[str, str], SecretStream]
"""Function ``make(payload, turn)`` that records a release in the site's privacy account and returns its noise stream.

``payload`` is a hash of the noised content, on which the noise depends. The account counts each pair of payload and
turn as one release, a noised value that leaves the site.
"""


@dataclass(frozen=True)
class SiteTools:
    """Resources of a site for secure aggregation that its method does not see.

    Attributes:
        register: Register of the uses of the site's secrets.
        noise: Function that records a release in the site's privacy account and returns the stream of its noise.
        signer: Object that signs the site's keys and verifies other sites' keys; None on one machine, where no site
            has a certificate.
        sites: Names of the run's sites; None accepts every name.
    """

    register: SecretUseRegister
    noise: NoiseFactory
    signer: Signer | None = None
    sites: Collection[str] | None = None


@dataclass(frozen=True)
class SiteOperation:
    """One operation of a secure aggregation at one site.

    Attributes:
        site: The site, with the settings of the run.
        request: Request of the operation.
        inner: Method whose updates are summed.
        tools: Resources of the site that the method does not see.
    """

    site: Site
    request: Request
    inner: Method
    tools: SiteTools

    def execute(self) -> Reply:
        """Execute the operation.

        Raises:
            RefusedError: If the reply would reveal more than a sum of at least as many updates as the setting
                ``secure_aggregation.threshold`` says.
        """
        self._check_participants()
        operations: dict[str, Callable[[], Reply]] = {
            KEYS: self._send_keys,
            SHARES: self._send_shares,
            MASKED: self._send_masked_update,
            CONFIRM: self._send_confirmation,
        }
        return operations.get(self.request.op, self._reveal_shares)()

    # ---- common parts of the operations

    @cached_property
    def about(self) -> AggregationMeta:
        """Metadata of the aggregation in the request: the participants of each operation so far."""
        return AggregationMeta.of(self.request)

    def _check_participants(self) -> None:
        """Check the number and names of the participants, and record that the round has exactly these.

        Raises:
            RefusedError: If there are too few or too many, one is not a site of the run, or the round had others.
        """
        sites = self.about.sites
        self._check_group(sites, "participants", self.site.name in sites)
        if self.tools.sites is not None and not {*sites} <= {*self.tools.sites}:
            raise RefusedError(
                "unknown_participants",
                "expected participants among the run's sites, got others: the server is not honest",
                sites=sites,
            )
        self.tools.register.once(self.site.round, "participants", digest(sites))

    @cached_property
    def secrets(self) -> tuple[bytes, bytes]:
        """Two private keys of this site: for encrypted messages to other sites, and for the masks that pairs share.

        The keys do not depend on the other participants.
        """
        stream = self.site.secret_rng("secure aggregation", self.tools.register.nonce)
        return stream.take(KEY), stream.take(KEY)

    @cached_property
    def own_mask(self) -> bytes:
        """Key of the mask that only this site adds, besides the masks that it shares with other sites.

        The key depends on the lists of participants and keys.
        """
        payload = f"{self.tools.register.nonce} {self.session}"
        return self.site.secret_rng("own mask of secure aggregation", payload).take(KEY)

    @cached_property
    def public(self) -> dict[str, bytes]:
        """Maps each participant to its two public keys in the request.

        Raises:
            RefusedError: If a key is not valid or not signed, or differs from the key in an earlier request.
        """
        keys = {name: to_bytes(tensor) for name, tensor in sorted(by_site(self.request.tensors, PUBLIC).items())}
        self._check_group(tuple(keys), "keys", keys.get(self.site.name) == self._own_public)
        if any(len(key) != 2 * KEY for key in keys.values()) or not keys.keys() <= {*self.about.sites}:
            raise RefusedError(
                "wrong_public_keys",
                "expected two public keys of each participant, got others: the server is not honest",
            )
        for name, key in keys.items():
            self._verify(KEYS_PURPOSE, self._keys_statement(name, key), SIGNATURE, name)
        self.tools.register.once(self.site.round, "keys of others", digest({name: keys[name].hex() for name in keys}))
        return keys

    @cached_property
    def session(self) -> str:
        """Digest of the participants and keys that this site received, from which shared keys and masks are derived."""
        return session_digest(self.site.round, self._threshold, self.about.sites, self.public)

    @property
    def _own_public(self) -> bytes:
        return public_key(self.secrets[0]) + public_key(self.secrets[1])

    def _keys_statement(self, name: str, keys: bytes) -> bytes:
        """Return the bytes that a site signs in `KEYS`: a digest of its name, run, round and public keys."""
        return digest("keys", name, self.site.run_id, self.site.round, keys.hex()).encode()

    def _survivors_statement(self, name: str) -> bytes:
        """Return the bytes that a site signs in `CONFIRM`: a digest of its name, the run, the round and its lists."""
        peers, masked = list(self.about.peers), list(self.about.masked)
        return digest("survivors", name, self.site.run_id, self.site.round, self.session, peers, masked).encode()

    def _verify(self, purpose: str, statement: bytes, signature: str, name: str) -> None:
        """Check that a participant has signed a statement. Skip the check on one machine, without certificates.

        Args:
            purpose: Purpose that the signature must have.
            statement: Bytes that must be signed.
            signature: Prefix of the names of the signatures in the request.
            name: Name of the participant.

        Raises:
            RefusedError: If the signature or the certificate is missing or not valid.
        """
        if self.tools.signer is None:
            return
        signatures, certificates = (by_site(self.request.tensors, prefix) for prefix in (signature, CERTIFICATE))
        if name not in signatures or name not in certificates:
            raise RefusedError(
                "missing_signature",
                f"expected a signature and a certificate of '{name}' ({purpose}), got none",
                site=name,
                purpose=purpose,
            )
        proof = to_bytes(signatures[name]), to_bytes(certificates[name])
        self.tools.signer.verify_site(purpose, statement, *proof, name)

    def _check_group(self, names: tuple[str, ...], what: str, contains_self: bool) -> None:
        """Check that a group of sites contains this site, and that its size fits the threshold.

        With 2 * threshold sites or more, two disjoint halves could each be summed.

        Args:
            names: Names of the sites.
            what: Noun for messages, such as ``participants``.
            contains_self: Whether the group contains this site with its own keys.

        Raises:
            RefusedError: If it does not.
        """
        threshold = self._threshold
        if not contains_self or not threshold <= len(names) < 2 * threshold:
            raise RefusedError(
                "wrong_participant_count",
                f"Expected {what} of {threshold} to {2 * threshold - 1} sites with '{self.site.name}' among them, "
                f"because the threshold is {threshold}; got {len(names)}.",
                what=what,
                found=len(names),
                minimum=threshold,
                maximum=2 * threshold - 1,
            )

    def _channel_key(self, other: str) -> bytes:
        """Return the key that this site and another one share for encrypted messages between them."""
        return agree_key(self.secrets[0], self.public[other][:KEY], CHANNEL, self.session.encode())

    def _associated_data(self, sender: str, receiver: str) -> bytes:
        """Return the associated data of an encrypted message, which bind it to its sender, receiver and session."""
        return digest(sender, receiver, self.session).encode()

    def _split_secrets(self) -> tuple[dict[str, bytes], Callable[[int], bytes]]:
        """Split both secrets into shares.

        Returns:
            A mapping from each site to its share of the masks' key, followed by its share of the own mask's key; and
            the function that draws further bytes of the same stream.
        """
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

    def _send_keys(self) -> Reply:
        assert self.site.name in self.about.sites, "checked"
        tensors = {PUBLIC: to_tensor(self._own_public)}
        if self.tools.signer is not None:
            signature = self.tools.signer.sign(KEYS_PURPOSE, self._keys_statement(self.site.name, self._own_public))
            tensors |= {SIGNATURE: to_tensor(signature), CERTIFICATE: to_tensor(self.tools.signer.certificate)}
        return Reply(tensors)

    def _send_shares(self) -> Reply:
        shares, draw = self._split_secrets()
        return Reply(
            {
                f"{SEALED}/{name}": to_tensor(
                    seal(self._channel_key(name), draw(NONCE), share, self._associated_data(self.site.name, name))
                )
                for name, share in shares.items()
                if name != self.site.name
            }
        )

    def _send_masked_update(self) -> Reply:
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
        reply, update, public_meta = self._execute_inner(request)
        words, point = self._encode(layout, update, weight_of(self.inner, reply.meta, self.site.settings))
        self.tools.register.once(round_, "numbers", hashlib.sha256(words.tobytes()).hexdigest())
        add_mask(words, self.own_mask)
        context = mask_context(self.session, about.peers, payload)
        for other in about.peers:
            if other != self.site.name:
                key = agree_key(self.secrets[1], public[other][KEY:], MASK, context)
                add_mask(words, key, pair_sign(self.site.name, other))
        return Reply({NUMBERS: pack_words(words, point.bits)}, public_meta, log=reply.log, trained=reply.trained)

    def _send_confirmation(self) -> Reply:
        self._check_survivors()
        statement = self._survivors_statement(self.site.name)
        tensors = {CONFIRMED: to_tensor(bytes.fromhex(statement.decode()))}
        if self.tools.signer is not None:
            tensors[CONFIRMED_SIGNATURE] = to_tensor(self.tools.signer.sign(SURVIVORS_PURPOSE, statement))
        return Reply(tensors)

    def _reveal_shares(self) -> Reply:
        about = self.about
        self._check_survivors()
        self._check_confirmations()
        sealed = by_site(self.request.tensors, SEALED)
        if sealed.keys() != {*about.peers} - {self.site.name}:
            raise RefusedError("wrong_sealed_shares", "expected a sealed share of each other site, got others")
        shares = {self.site.name: self._split_secrets()[0][self.site.name]}
        for name, tensor in sealed.items():
            associated_data = self._associated_data(name, self.site.name)
            shares[name] = unseal(self._channel_key(name), to_bytes(tensor), associated_data)
        revealed = {
            name: share[SHARE_BYTES:] if name in about.masked else share[:SHARE_BYTES]
            for name, share in sorted(shares.items())
        }
        return Reply({f"{REVEALED}/{name}": to_tensor(share) for name, share in revealed.items()})

    # ---- checks and encoding

    def _check_peers(self) -> None:
        """Check the list of sites with which this site shares masks, and record that the round has exactly this list.

        Raises:
            RefusedError: If the list is not valid, or differs from the list in an earlier operation of the round.
        """
        self._check_group(self.about.peers, "shares", self.site.name in self.about.peers)
        if not {*self.about.peers} <= self.public.keys():
            raise RefusedError(
                "unknown_peers", "expected peers whose keys are known, got others: the server is not honest"
            )
        self.tools.register.once(self.site.round, "peers", digest(self.about.peers))

    def _check_survivors(self) -> None:
        """Check the list of participants that sent an update, and record that the round has exactly this list.

        Raises:
            RefusedError: If the list is not valid, or differs from an earlier list of the round.
        """
        about = self.about
        self._check_peers()
        self._check_group(about.masked, "numbers", self.site.name in about.masked)
        if not {*about.masked} <= {*about.peers}:
            raise RefusedError(
                "unknown_senders",
                "expected numbers of sites whose shares are held, got others: the server is not honest",
            )
        self.tools.register.once(self.site.round, "drop-outs", digest(about.masked))

    def _check_confirmations(self) -> None:
        """Check that at least `threshold` participants signed the same lists that this site received.

        This is the consistency check of Bonawitz et al. (CCS 2017) against servers that do not follow the protocol.

        Raises:
            RefusedError: If they did not; then no share is revealed.
        """
        confirmed = by_site(self.request.tensors, CONFIRMED)
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
            statement = self._survivors_statement(name)
            if to_bytes(lists).hex().encode() != statement:
                raise RefusedError(
                    "inconsistent_participants",
                    f"'{name}' received other lists of participants than '{self.site.name}' in round "
                    f"{self.site.round}: the server is not honest. Nothing is revealed.",
                    site=name,
                    round=self.site.round,
                )
            self._verify(SURVIVORS_PURPOSE, statement, CONFIRMED_SIGNATURE, name)

    def _execute_inner(self, request: Request) -> tuple[Reply, Tensors, Meta]:
        """Execute the method's own request, and check its reply.

        Returns:
            The reply, the tensors of the update that may leave the site in a sum, and the public metadata.
        """
        site, inner, who = self.site, self.inner, f"site '{self.site.name}'"
        sent = replace(request, tensors=dict(request.tensors), meta=dict(request.meta))
        reply = inner.execute(site, request)
        check_before_sending(inner, site.task, site.settings, sent, reply, who)
        if reply.peer_messages:
            raise RefusedError(
                "unexpected_parcels", "secure aggregation covers updates only, and the method sends peer messages"
            )
        schema = inner.sends_meta
        update, meta = Filters(inner.sends, schema, site.settings, site.settings.rounds).check_reply(
            reply.tensors, reply.meta, site.name
        )
        public = {name: value for name, value in meta.items() if schema[name].visibility == "public"}
        return reply, {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}, public

    def _encode(self, layout: Layout, update: Tensors, weight: int) -> tuple[Words, FixedPoint]:
        """Clip, weight and round an update, and add this site's share of noise.

        Args:
            layout: Names and shapes of the tensors.
            update: Tensors of the update; a missing one counts as zeros.
            weight: Weight of the update.

        Returns:
            The numbers to mask, with the weight as the last one; and their fixed-point format.
        """
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
            noise_meta = {name: value for name, value in vars(point).items() if math.isfinite(value)}
            noise_meta |= {"sites": list(self.about.sites), "peers": list(self.about.peers)}
            stream = self.tools.noise(wire.digest({"update": values}, noise_meta), self.session)
            steps += discrete_gaussian(point.site_noise, numbers, stream)
        words = point.words(steps)
        return np.append(words, words.dtype.type(weight)), point
