"""Checks, clipping, noise and quantisation of every reply and peer message before it leaves a site.

The steps are, in this order:

1. Check that the method declares all tensor names and metadata keys, and that all numbers are finite.
2. Check the norm bound. If noise hides the update of a whole site, clipping bounds the norm instead, because a refusal
   is visible to the server and would leak information.
3. Apply the method's own filters (`medfl.engine.encoding`); most methods have none.
4. Clip the updates, add noise and quantise them, as the settings say.

The order is fixed. The accountant covers noise on clipped numbers. Quantising and decoding afterwards are
post-processing and can't weaken the guarantee; noise on quantised numbers would not be covered. No method takes part in
these steps, so every method that replies with updates runs under all these settings. With the privacy unit ``sample``,
the training adds the noise (`medfl.privacy.samples`), and updates are neither clipped nor noised here.

With a privacy setting, integer and bool tensors of an update (such as a batch counter) stay at the site, because they
can't be noised; averaging skips tensors that are missing. Private metadata stay at the site too. Peer messages are
checked but never quantised. The guarantee holds for real numbers: rounding to float32 after the noise is not accounted
for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from medfl.contract import Method, PayloadKind, PeerMessage
from medfl.engine.encoding import FILTERS_KEY, Encoder, kind_of
from medfl.engine.quantization import dequantise, pack, quantise, unpack
from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.privacy.gaussian import clip_by_norm, l2_norm
from medfl.privacy.policy import payloads_beside_updates, policy_of
from medfl.settings import Settings
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.metadata import MetaField, check_schema
from medfl.utils.rng import SecretStream

CODEC_KEY = "_codec"
"""Metadata key of the parameters with which the receiver undoes the quantisation.

The parameters are ``bits``, and the minimum, maximum, dtype and shape of each quantised tensor.
"""

DIVERGED_HINT = "The training diverged; lower the learning rate."
"""Hint in the messages about numbers that are not finite."""

StreamFactory = Callable[[str], SecretStream]
"""Type of a function that returns the secret stream of random numbers for the noise of a payload, given its hash."""


class Filters:
    """Checks and transformations of a site's outgoing messages in one run.

    Args:
        sends: Maps each prefix of names to the payload kind of the tensors with that prefix (`Method.sends`).
        sends_meta: Schema of the metadata: maps each allowed key to its type and visibility (`Method.sends_meta`).
        settings: Settings of the run.
        releases: Maximum number of noised payloads that the site sends in the whole run. The privacy budget covers all
            of them together.
        encoder: The method's own filters, or None.

    Raises:
        SettingsError: If no noise keeps the privacy budget.
    """

    def __init__(
        self,
        sends: Mapping[str, PayloadKind],
        sends_meta: Mapping[str, MetaField],
        settings: Settings,
        releases: int,
        encoder: Encoder | None = None,
    ) -> None:
        self._encoder = encoder
        self._sends = sends
        self._sends_meta = sends_meta
        self._policy = policy_of(settings)
        self._bits = settings.compression.bits if settings.compression else None
        self._norm_bound = settings.norm_bound
        self._sigma = self._policy.update_noise(releases)

    def outgoing(
        self, tensors: Tensors, meta: Meta, *, site: str, stream_factory: StreamFactory
    ) -> tuple[Tensors, Meta]:
        """Check a reply, and return it filtered, clipped, noised and quantised, as it leaves the site.

        Args:
            tensors: Tensors of the reply, any shapes and dtypes.
            meta: Metadata of the reply.
            site: Name of the site, for messages.
            stream_factory: Called once for each noised payload before its noise is drawn, with a hash of the update and
                the noise parameters. The same hash must give the same stream, so that a repeated request gets the same
                noise.

        Returns:
            Tensors and new metadata. The receiver undoes them with `decode` and then `decode_filtered`. Tensors that
            nothing changes share memory with those of the reply.

        Raises:
            ContractError: If the method did not declare a tensor or a metadata key, or one of its filters breaks its
                contract.
            RefusedError: If a number is not finite, the norm is above the bound, or the privacy setting forbids a kind
                of tensor.
            SettingsError: If a filter of the method would break the privacy guarantee (`Encoder.encode`).
        """
        tensors, meta = self.check_reply(tensors, meta, site)
        who, filtered = f"Site '{site}'", Meta()
        if self._encoder is not None:
            tensors, filtered = self._encoder.encode(tensors, who, self._sigma is not None)
        update = {name: tensors[name] for name in sorted(tensors) if kind_of(self._sends, name, who) == "update"}
        sent = {name: tensor.detach() for name, tensor in tensors.items() if name not in update}
        if update and self._sigma is not None:
            update = self._clip_and_noise(update, stream_factory)
        update, codec = _quantise_update(update, self._bits)
        return sent | {name: tensor.detach() for name, tensor in update.items()}, meta | filtered | codec

    def check_reply(self, tensors: Tensors, meta: Meta, site: str) -> tuple[Tensors, Meta]:
        """Check a reply, and return the tensors and metadata that may leave the site, unchanged.

        Unlike `outgoing`, the method does not filter, clip, noise or quantise.

        Args:
            tensors: Tensors of the reply.
            meta: Metadata of the reply.
            site: Name of the site, for messages.

        Raises:
            ContractError: If the method did not declare a tensor or a metadata key.
            RefusedError: If a number is not finite, the norm is above the bound, or the privacy setting forbids a kind
                of tensor.
        """
        kinds, meta = self._check_message(tensors, meta, site)
        self._policy.check_payloads(kinds, site)
        if not self._policy.discloses_integers:
            tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        return tensors, meta

    def outgoing_peer_message(self, tensors: Tensors, meta: Meta, *, site: str) -> tuple[Tensors, Meta]:
        """Check a peer message, and return its tensors and the metadata that may leave the site.

        Args:
            tensors: Tensors of the message.
            meta: Metadata of the message, with keys of `sends_meta`.
            site: Name of the site, for messages.

        Raises:
            ContractError: If the method did not declare a tensor or a metadata key.
            RefusedError: If a number is not finite, the norm is above the bound, or the run has a privacy setting.
        """
        self._policy.check_peer_message(site)
        _, meta = self._check_message(tensors, meta, site)
        return {name: tensor.detach() for name, tensor in tensors.items()}, meta

    def _check_message(self, tensors: Tensors, meta: Meta, site: str) -> tuple[dict[str, PayloadKind], Meta]:
        """Check names and numbers, and return the kind of each tensor and the metadata that may leave the site."""
        kinds = {name: kind_of(self._sends, name, f"Site '{site}'") for name in tensors}
        for key in meta:
            if key not in self._sends_meta or key in (CODEC_KEY, FILTERS_KEY):
                raise ContractError(
                    "undeclared_metadata",
                    f"Site '{site}' may not send the metadata key '{key}': the method declares "
                    f"{sorted(self._sends_meta)}. Declare the key in `sends_meta`, or leave it out.",
                    site=site,
                    key=key,
                    declared=list(self._sends_meta),
                )
        self._check_numbers(tensors, site)
        schema, policy = self._sends_meta, self._policy
        return kinds, {key: value for key, value in meta.items() if policy.discloses_metadata(schema[key].visibility)}

    def _check_numbers(self, tensors: Tensors, site: str) -> None:
        if self._norm_bound is None and self._sigma is None:  # only infinity matters, and single precision is faster
            floats = [tensor.detach() for tensor in tensors.values() if tensor.is_floating_point()]
            if bool(nn.utils.get_total_norm(floats).isfinite()):
                return
        norm, bound = l2_norm(tensors), math.inf if self._norm_bound is None else self._norm_bound
        for name in [] if math.isfinite(norm) else sorted(tensors):
            if tensors[name].is_floating_point() and not bool(torch.isfinite(tensors[name]).all()):
                raise RefusedError(
                    "not_finite",
                    f"Site '{site}' refuses to send '{name}': expected finite numbers, got NaN or infinity. "
                    f"{DIVERGED_HINT}",
                    site=site,
                    tensor=name,
                )
        if self._sigma is not None:  # a refusal would depend on the norm, which has no noise; clipping bounds it
            if math.isinf(norm):
                raise RefusedError(
                    "norm_overflow",
                    f"Site '{site}' refuses to send a payload whose norm overflows. {DIVERGED_HINT}",
                    site=site,
                )
            return
        if math.isinf(norm) or norm > bound:
            raise RefusedError(
                "norm_too_large",
                f"Site '{site}' refuses to send a payload of L2 norm {norm:.6g}: expected a finite norm, at most "
                f"{bound:g}. Find out why the norm is so large, or raise the setting 'norm_bound'.",
                site=site,
                found=norm,
                maximum=self._norm_bound,
            )

    def _clip_and_noise(self, floats: Tensors, stream_factory: StreamFactory) -> Tensors:
        """Clip all tensors by their joint L2 norm and add Gaussian noise, in float64, then round to the dtypes."""
        assert self._policy.privacy is not None
        assert self._sigma is not None
        bound = self._policy.privacy.clip
        std = self._sigma * bound
        # The hash covers the noise parameters: two noises that differ by a factor only would reveal the numbers.
        stream = stream_factory(wire.digest(floats, {"clip": bound, "std": std}))
        clipped = clip_by_norm({name: tensor.detach().cpu().double() for name, tensor in floats.items()}, bound)
        return {
            name: (tensor + std * stream.normal(tuple(tensor.shape))).to(floats[name].dtype)
            for name, tensor in clipped.items()
        }


def decode(tensors: Tensors, meta: Meta) -> tuple[Tensors, Meta]:
    """Undo the quantisation at the receiver of a reply, and return the tensors and the metadata.

    Args:
        tensors: Tensors as they left the site.
        meta: Metadata as they left the site.

    Returns:
        Tensors of the dtypes and shapes that the method sent, and the metadata without the key `CODEC_KEY`.

    Raises:
        ContractError: If the parameters under `CODEC_KEY` do not fit the tensors.
    """
    if CODEC_KEY not in meta:
        return tensors, meta
    codec: Any = meta[CODEC_KEY]
    decoded = dict(tensors)
    try:
        for name, (lo, hi, dtype, shape) in codec["tensors"].items():
            codes = unpack(tensors[name], codec["bits"], shape)
            decoded[name] = dequantise(codes, lo, hi, codec["bits"], getattr(torch, dtype))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ContractError(
            "invalid_codec",
            f"Expected meta['{CODEC_KEY}'] to describe the quantised tensors, got {type(error).__name__} ({error}). "
            "Sender and receiver need the same version of medfl.",
            cause=type(error).__name__,
        ) from error
    return decoded, {key: value for key, value in meta.items() if key != CODEC_KEY}


def unquantised_bytes(tensors: Tensors, meta: Meta) -> int:
    """Return the size in bytes of a message without quantisation, that is, after `decode`.

    Args:
        tensors: Tensors as they left the site.
        meta: Metadata as they left the site.
    """
    quantised = meta.get(CODEC_KEY, {"tensors": {}})["tensors"]
    others = {name: tensor for name, tensor in tensors.items() if name not in quantised}
    sizes = (int(math.prod(shape)) * int(getattr(torch, dtype).itemsize) for _, _, dtype, shape in quantised.values())
    return wire.payload_bytes(others) + sum(sizes)


def check_method(method: Method, settings: Settings, name: str | None = None) -> None:
    """Check before the run that a method's messages are possible with the privacy and compression settings.

    Args:
        method: The method.
        settings: Settings of the run.
        name: Name of the method for messages; by default the name of its class.

    Raises:
        SettingsError: If the run has a privacy setting and the method sends other tensors than updates, sends peer
            messages, pools data, or needs metadata that stay at the site. Or if the run has compression and the method
            sends no updates.
    """
    name = name or type(method).__name__
    check_schema(method.sends_meta, name)
    policy_of(settings).check_method(method, name)
    sends: Mapping[str, PayloadKind] = method.sends
    if settings.compression is not None and sends and "update" not in sends.values():
        other = payloads_beside_updates(method)
        raise SettingsError(
            "method_not_supported",
            f"Compression quantises updates, but method '{name}' sends no updates, only {', '.join(other)}: the "
            "setting would have no effect. Leave 'compression' out.",
            feature="compression",
            method=name,
            sends=other,
        )


def check_receivers(
    peer_messages: Sequence[PeerMessage], allowed: bool, site: str, peers: Collection[str] | None
) -> None:
    """Check the receivers of the peer messages that a site would send.

    Args:
        peer_messages: The peer messages.
        allowed: Whether the method supports `Capability.PEER_MESSAGES`.
        site: Name of the sender, for messages.
        peers: Names of the possible receivers; None accepts every name.

    Raises:
        ContractError: If the method may not send peer messages, a receiver is unknown, or a receiver would get two
            messages.
    """
    if not peer_messages:
        return
    receivers = sorted(peer_message.to for peer_message in peer_messages)
    unknown = sorted(set(receivers) - set(receivers if peers is None else peers))
    if not allowed or unknown or len(set(receivers)) != len(receivers):
        raise ContractError(
            "wrong_receivers",
            f"Site '{site}' sends peer messages to {receivers}: expected at most one for each site of the run, and "
            "none unless the method's `supports` contains `Capability.PEER_MESSAGES`.",
            site=site,
            receivers=receivers,
            is_allowed=allowed,
        )


def _quantise_update(update: Tensors, bits: int | None) -> tuple[Tensors, Meta]:
    """Replace each floating tensor by its codes if these are smaller, and return the metadata for `decode`."""
    if bits is None:
        return update, {}
    sent, codec = dict(update), {}
    for name, tensor in update.items():
        if tensor.is_floating_point() and tensor.element_size() * 8 > bits:
            codes, lo, hi = quantise(tensor, bits)
            sent[name] = pack(codes, bits)
            codec[name] = [lo, hi, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    return sent, {CODEC_KEY: {"bits": bits, "tensors": codec}}
