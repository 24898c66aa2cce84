"""What stands between a method and the way out of a site.

Every reply and parcel passes here before a carrier sees it: names are checked against what the method declares, numbers
against being finite and against the norm bound. Where the update of a whole site is hidden, the norm bound is left to
the clip, for a refusal is seen by all. A method's own filters come next (`medfl.engine.encoding`; most have none).
Updates are then clipped, noised and quantised, in this order, as the settings say; noise on clipped numbers is what the
accountant reckons with, and quantising or decoding afterwards can't weaken it. The order is not a setting: bits of an
update that is noised later would be no post-processing. No method takes part in this, so any method that replies with
updates runs under any of it. Where the unit of privacy is ``sample``, the noise is in the training
(`medfl.privacy.samples`) and updates are neither clipped nor noised here.

Under a privacy setting integer and bool tensors of an update, such as a batch counter, stay at the site: they can't be
noised, and averaging leaves what is absent as it is. Private meta keys stay, too. Parcels are checked but never
quantised. The guarantee is one for real numbers: rounding to float32 after the noise is not accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from medfl.contract import Method, PayloadKind, PeerMessage
from medfl.engine.encoding import FILTERED, Encoder, kind_of
from medfl.engine.quantization import dequantise, pack, quantise, unpack
from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.privacy.gaussian import clip_by_norm, l2_norm
from medfl.privacy.policy import payloads_beside_updates, policy_of
from medfl.settings import Settings
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.metadata import MetaField, check_schema
from medfl.utils.rng import SecretStream

CODEC = "_codec"
"""Meta key beside quantised tensors: bits, and for each tensor its minimum, maximum, dtype and shape."""

DIVERGED = "The training diverged; lower the learning rate."

StreamFactory = Callable[[str], SecretStream]
"""From the hash of a payload to the secret stream that its noise is drawn from."""


class Filters:
    """The filters of one run at one site.

    Args:
        sends: `medfl.contract.Method.sends`.
        sends_meta: `medfl.contract.Method.sends_meta`.
        settings: The settings of the run.
        releases: How many payloads the site sends at most in the whole run: the privacy budget is spread over them.
        encoder: The method's own filters, if it has any.

    Raises:
        SettingsError: If the privacy settings can't be kept.
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
        """A reply as it leaves the site.

        Args:
            tensors: Of the reply, any shapes and dtypes.
            meta: Of the reply.
            site: The site's name, for messages.
            stream_factory: Called with a hash of the update and its noise once per noised payload, before the noise is
                drawn. It gives the same stream for the same hash, so an order that is carried out again gets the same
                noise.

        Returns:
            New tensors and new meta, for `decode` and then `decode_filtered` at the receiver.

        Raises:
            ContractError: If a tensor or a meta key was not declared by the method, or one of its filters breaks a
                promise.
            RefusedError: If a number is not finite, the norm is above the bound, or privacy forbids the kind.
            SettingsError: If privacy can't be kept with a filter of the method (`Encoder.encode`).
        """
        tensors, meta = self.checked(tensors, meta, site)
        who, filtered = f"Site '{site}'", Meta()
        if self._encoder is not None:
            tensors, filtered = self._encoder.encode(tensors, who, self._sigma is not None)
        update = {name: tensors[name] for name in sorted(tensors) if kind_of(self._sends, name, who) == "update"}
        sent = {name: tensor.detach().clone() for name, tensor in tensors.items() if name not in update}
        if update and self._sigma is not None:
            update = self._noised(update, stream_factory)
        update, codec = _quantised(update, self._bits)
        return sent | {name: tensor.detach().clone() for name, tensor in update.items()}, meta | filtered | codec

    def checked(self, tensors: Tensors, meta: Meta, site: str) -> tuple[Tensors, Meta]:
        """What of a reply may leave, as it is; raises like `outgoing`."""
        kinds, meta = self._checked(tensors, meta, site)
        self._policy.check_payloads(kinds, site)
        if not self._policy.discloses_integers:
            tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        return tensors, meta

    def outgoing_peer_message(self, tensors: Tensors, meta: Meta, *, site: str) -> tuple[Tensors, Meta]:
        """A parcel as it leaves the site: checked and cloned, otherwise as it is.

        Args:
            tensors: Of the parcel.
            meta: Of the parcel; its keys are declared in `sends_meta` as well.
            site: The site's name, for messages.

        Raises:
            ContractError: If a tensor or a meta key was not declared by the method.
            RefusedError: If a number is not finite, the norm is above the bound, or a privacy setting is on.
        """
        self._policy.check_peer_message(site)
        _, meta = self._checked(tensors, meta, site)
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}, meta

    def _checked(self, tensors: Tensors, meta: Meta, site: str) -> tuple[dict[str, PayloadKind], Meta]:
        """The kind of each tensor, and the meta that may leave."""
        kinds = {name: kind_of(self._sends, name, f"Site '{site}'") for name in tensors}
        for key in meta:
            if key not in self._sends_meta or key in (CODEC, FILTERED):
                raise ContractError(
                    "undeclared_metadata",
                    f"Site '{site}' may not send the meta key '{key}': the method tells {sorted(self._sends_meta)}. "
                    "Declare it in `sends_meta`, or leave it out.",
                    site=site,
                    key=key,
                    declared=list(self._sends_meta),
                )
        self._check_numbers(tensors, site)
        schema, policy = self._sends_meta, self._policy
        return kinds, {key: value for key, value in meta.items() if policy.discloses_metadata(schema[key].visibility)}

    def _check_numbers(self, tensors: Tensors, site: str) -> None:
        for name in sorted(tensors):
            if tensors[name].is_floating_point() and not bool(torch.isfinite(tensors[name]).all()):
                raise RefusedError(
                    "not_finite",
                    f"Site '{site}' refuses to send '{name}': expected finite numbers, got NaN or infinity. {DIVERGED}",
                    site=site,
                    tensor=name,
                )
        norm, bound = l2_norm(tensors), math.inf if self._norm_bound is None else self._norm_bound
        if self._sigma is not None:  # a norm is no noised number; clipping bounds it
            if math.isinf(norm):
                raise RefusedError(
                    "norm_overflow",
                    f"Site '{site}' refuses to send a payload whose norm overflows. {DIVERGED}",
                    site=site,
                )
            return
        if math.isinf(norm) or norm > bound:
            raise RefusedError(
                "norm_too_large",
                f"Site '{site}' refuses to send a payload of L2 norm {norm:.6g}: expected a finite norm, at most "
                f"{bound:g}. Find out why it is so large, or raise the setting 'norm_bound'.",
                site=site,
                found=norm,
                maximum=self._norm_bound,
            )

    def _noised(self, floats: Tensors, stream_factory: StreamFactory) -> Tensors:
        """Clip all tensors together and add noise, in float64 until the end."""
        assert self._policy.privacy is not None
        assert self._sigma is not None
        bound = self._policy.privacy.clip
        std = self._sigma * bound
        # the same numbers under another noise have another hash: noise that differs by a factor would cancel out
        stream = stream_factory(wire.digest(floats, {"clip": bound, "std": std}))
        clipped = clip_by_norm({name: tensor.detach().cpu().double() for name, tensor in floats.items()}, bound)
        return {
            name: (tensor + std * stream.normal(tuple(tensor.shape))).to(floats[name].dtype)
            for name, tensor in clipped.items()
        }


def decode(tensors: Tensors, meta: Meta) -> tuple[Tensors, Meta]:
    """Undo the quantisation at the receiver, so that a method sees floats only.

    Args:
        tensors: As they left a site.
        meta: As it left with them.

    Returns:
        Tensors of the dtypes and shapes that the method sent, and the meta without the codec.

    Raises:
        ContractError: If the codec does not fit the tensors.
    """
    if CODEC not in meta:
        return tensors, meta
    codec: Any = meta[CODEC]
    decoded = dict(tensors)
    try:
        for name, (lo, hi, dtype, shape) in codec["tensors"].items():
            codes = unpack(tensors[name], codec["bits"], shape)
            decoded[name] = dequantise(codes, lo, hi, codec["bits"], getattr(torch, dtype))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ContractError(
            "invalid_codec",
            f"Expected meta['{CODEC}'] to describe the quantised tensors, got {type(error).__name__} ({error}). "
            "Sender and receiver need the same version of medfl.",
            cause=type(error).__name__,
        ) from error
    return decoded, {key: value for key, value in meta.items() if key != CODEC}


def plain_bytes(tensors: Tensors, meta: Meta) -> int:
    """Bytes of what left a site, had it not been quantised: what `decode` makes of it.

    Args:
        tensors: As they left a site.
        meta: As it left with them.
    """
    facts = meta.get(CODEC, {"tensors": {}})["tensors"]
    kept = {name: tensor for name, tensor in tensors.items() if name not in facts}
    sizes = (int(math.prod(shape)) * int(getattr(torch, dtype).itemsize) for _, _, dtype, shape in facts.values())
    return wire.payload_bytes(kept) + sum(sizes)


def check_method(method: Method, settings: Settings, name: str | None = None) -> None:
    """Refuse at the start what the filters would have to refuse later.

    Args:
        method: The method.
        settings: The settings of the run.
        name: What the user calls the method; by default the name of its class.

    Raises:
        SettingsError: If the run asks for privacy and the method sends anything but updates, posts parcels, pools
            data, or needs facts that stay at home; or if the run asks for compression and the method sends things of
            which none is an update.
    """
    name = name or type(method).__name__
    check_schema(method.sends_meta, name)
    policy_of(settings).check_method(method, name)
    sends: Mapping[str, PayloadKind] = method.sends
    if settings.compression is not None and sends and "update" not in sends.values():
        other = payloads_beside_updates(method)
        raise SettingsError(
            "method_not_supported",
            f"Compression quantises updates, and method '{name}' sends none, only {', '.join(other)}: the setting "
            "would do nothing. Leave 'compression' out.",
            feature="compression",
            method=name,
            sends=other,
        )


def check_peer_messages(
    peer_messages: Sequence[PeerMessage], allowed: bool, site: str, peers: Collection[str] | None
) -> None:
    """Refuse parcels that a method may not post.

    Args:
        parcels: What a site would post.
        allowed: Whether the method supports `Capability.PEER_MESSAGES`.
        site: Who posts, for the message.
        peers: Sites that parcels can be sent to; None checks no names.

    Raises:
        ContractError: If there may be none, a receiver is unknown, or gets two.
    """
    receivers = sorted(peer_message.to for peer_message in peer_messages)
    unknown = sorted(set(receivers) - set(receivers if peers is None else peers))
    if peer_messages and not allowed or unknown or len(set(receivers)) != len(receivers):
        raise ContractError(
            "wrong_receivers",
            f"Site '{site}' posts parcels to {receivers}: expected one at most for each site of the run, and none "
            "unless the method's `supports` contains `Capability.PEER_MESSAGES`.",
            site=site,
            receivers=receivers,
            is_allowed=allowed,
        )


def _quantised(update: Tensors, bits: int | None) -> tuple[Tensors, Meta]:
    """Codes instead of floating tensors, where that is fewer bytes, and the meta to decode them."""
    if bits is None:
        return update, {}
    sent, facts = dict(update), {}
    for name, tensor in update.items():
        if tensor.is_floating_point() and tensor.element_size() * 8 > bits:
            codes, lo, hi = quantise(tensor, bits)
            sent[name] = pack(codes, bits)
            facts[name] = [lo, hi, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    return sent, {CODEC: {"bits": bits, "tensors": facts}}
