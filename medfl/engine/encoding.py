"""Encode the tensors of a reply with the method's own filters at a site, and decode them at the receiver.

A filter of a method compresses or transforms the tensors of a reply, and can undo that. A site encodes after all checks
and before clipping, noise and quantisation. Those three belong to medfl and always come last, so a method can't weaken
them. A receiver undoes the quantisation, then the filters in reverse. Peer messages pass no filter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import get_args

import torch

from medfl.contract import Filter, Method, PayloadKind
from medfl.errors import ContractError, RefusedError, SettingsError
from medfl.types import Meta, Tensors

FILTERS_KEY = "_filters"
"""Metadata key of the data that decoding needs.

The value has one mapping for each filter of the method, from each kind of tensors to the metadata that `encode`
returned.
"""


def kind_of(sends: Mapping[str, PayloadKind], name: str, who: str) -> PayloadKind:
    """Return the payload kind of a tensor (such as ``update`` or ``statistic``), by the declared prefix of its name.

    If several declared prefixes fit, the longest one decides.

    Args:
        sends: Maps each prefix of names to the payload kind of the tensors with that prefix (`Method.sends`).
        name: Name of the tensor.
        who: Sender for messages, as in "Site 'site-01'".

    Raises:
        ContractError: If the name begins with no declared prefix.
    """
    prefix = max((prefix for prefix in sends if name.startswith(prefix)), key=len, default=None)
    if prefix is None:
        raise ContractError(
            "undeclared_tensor",
            f"{who} may not send the tensor '{name}': the method sends names that begin with {sorted(sends)}. Declare "
            "its prefix and kind in `sends`, or leave it out.",
            sender=who,
            tensor=name,
            declared=list(sends),
        )
    return sends[prefix]


def check_filters(method: Method, name: str) -> None:
    """Check that each filter of a method applies to a kind of tensors that the method sends.

    Args:
        method: The method.
        name: Name of the method, for messages.

    Raises:
        ContractError: If a filter applies to no kind that the method sends, or names an unknown kind.
    """
    for own in method.filters():
        kinds = set(own.kinds)
        if kinds - set(get_args(PayloadKind)) or not kinds & set(method.sends.values()):
            raise ContractError(
                "wrong_filter_kinds",
                f"The filter {_name(own)} of method '{name}' is for tensors of the kinds {sorted(kinds)}: expected one "
                f"or more of the kinds that the method sends, {sorted(set(method.sends.values()))}. Correct its "
                "`kinds`.",
                method=name,
                filter=_name(own),
                found=kinds,
                expected=set(method.sends.values()),
            )


@dataclass(frozen=True)
class Encoder:
    """Filters of a method at one site in one step.

    Attributes:
        filters: Filters of the method, in the order of encoding (`medfl.contract.Method.filters`).
        sends: Maps each prefix of names to the payload kind of the tensors with that prefix (`Method.sends`).
        rng: Function that returns a random generator for a label. A repeated request must get the same generators.
    """

    filters: tuple[Filter, ...]
    sends: Mapping[str, PayloadKind]
    rng: Callable[[str], torch.Generator]

    def encode(self, tensors: Tensors, who: str, noised: bool) -> tuple[Tensors, Meta]:
        """Apply the filters one after the other, each to the tensors of the payload kinds that it is for.

        Args:
            tensors: Tensors of the reply, which were checked; their names begin with declared prefixes.
            who: Sender for messages, as in "Site 'site-01'".
            noised: Whether noise on the returned numbers hides the site's data. Then everything else that a filter
                returns must be the same for all data: its metadata, and the names, shapes and dtypes of its tensors.
                To check that, each filter also encodes zeros.

        Returns:
            New tensors, and the metadata for `decode_filtered`. Without filters, the tensors unchanged and no metadata.

        Raises:
            ContractError: If a filter decodes other names, shapes or dtypes than it encoded, or breaks another promise
                of `medfl.contract.Filter`.
            RefusedError: If an encoded number is not finite.
            SettingsError: If `noised`, and something besides the numbers depends on the data.
        """
        meta_by_filter: list[Meta] = []
        for number, own in enumerate(self.filters):
            meta_by_filter.append({})
            for kind in _kinds_present(self.sends, own.kinds, tensors, who):
                rest, group = _split_by_kind(self.sends, kind, tensors, who)
                label = f"filter {number} {kind}"
                encoded, meta = self._encode_group(own, group, kind, label, who)
                if noised:
                    blank = {name: torch.zeros_like(tensor) for name, tensor in group.items()}
                    self._check_hidden(own, encoded, meta, *self._encode_group(own, blank, kind, label, who))
                tensors = rest | encoded
                meta_by_filter[-1][kind] = meta
        return tensors, {FILTERS_KEY: meta_by_filter} if self.filters else {}

    def _encode_group(
        self, own: Filter, group: Tensors, kind: PayloadKind, label: str, who: str
    ) -> tuple[Tensors, Meta]:
        """Encode the tensors of one kind with one filter, and check the result by decoding it."""
        encoded, meta = own.encode(_copies(group), self.rng(label))
        try:
            meta = json.loads(json.dumps(dict(meta), allow_nan=False))  # as the receiver reads it
        except (TypeError, ValueError) as error:
            raise ContractError(
                "invalid_json", f"{_name(own)}.encode returns metadata that are not JSON: {error}.", filter=_name(own)
            ) from None
        other = [name for name in encoded if kind_of(self.sends, name, f"{_name(own)} at {who}") != kind]
        if other:
            prefixes = sorted(prefix for prefix, other in self.sends.items() if other == kind)
            raise ContractError(
                "wrong_tensor_kind",
                f"{_name(own)}.encode returns '{other[0]}' for tensors of the kind '{kind}': expected names with "
                f"prefixes of this kind, {prefixes}.",
                filter=_name(own),
                tensor=other[0],
                expected=kind,
                prefixes=prefixes,
            )
        for name, tensor in sorted(encoded.items()):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise RefusedError(
                    "not_finite",
                    f"{who} refuses to send '{name}': expected finite numbers after {_name(own)}, got NaN or infinity. "
                    "The numbers are too large for this filter.",
                    sender=who,
                    tensor=name,
                    filter=_name(own),
                )
        decoded, expected = _forms(own.decode(_copies(encoded), meta)), _forms(group)
        unlike = sorted(name for name in decoded.keys() | expected.keys() if decoded.get(name) != expected.get(name))
        if unlike:
            raise ContractError(
                "unlike_decoded_tensors",
                f"{_name(own)}.decode returns other tensors than encode received: expected '{unlike[0]}' as "
                f"{expected.get(unlike[0], 'none')}, got {decoded.get(unlike[0], 'none')}. Names, shapes and dtypes "
                "must be those of the input.",
                filter=_name(own),
                tensor=unlike[0],
                expected=expected.get(unlike[0]),
                found=decoded.get(unlike[0]),
            )
        return encoded, meta

    @staticmethod
    def _check_hidden(own: Filter, encoded: Tensors, meta: Meta, blank: Tensors, blank_meta: Meta) -> None:
        """Raise an error if an encoding has integers, or differs from the encoding of zeros in more than numbers."""
        integers = sorted(name for name, tensor in encoded.items() if not tensor.is_floating_point())
        if integers or meta != blank_meta or _forms(encoded) != _forms(blank):
            leak = (
                f"'{integers[0]}', integers that can't be noised"
                if integers
                else "shapes or metadata that depend on the data"
            )
            raise SettingsError(
                "unprotected_payload",
                f"Privacy with the unit 'site' hides a site's data by noise on the numbers of an update, but the "
                f"method's filter {_name(own)} would also send {leak}. Choose another method or setting of it, or "
                "leave the setting 'privacy' out.",
                filter=_name(own),
                tensor=integers[0] if integers else None,
            )


def decode_filtered(method: Method, tensors: Tensors, meta: Meta) -> tuple[Tensors, Meta]:
    """Undo a method's filters at the receiver of a reply, and return the tensors and the metadata.

    Args:
        method: The method of the receiver.
        tensors: Tensors after the quantisation was undone.
        meta: Metadata that arrived with the tensors.

    Returns:
        Tensors as the sender's method returned them, up to the loss of its filters, and the metadata without the key
        `FILTERS_KEY`.

    Raises:
        RefusedError: If the tensors can't be decoded: the sender has another method or version, or is not honest.
    """
    filters = method.filters()
    if FILTERS_KEY not in meta and not filters:
        return tensors, meta
    meta_by_filter = meta.get(FILTERS_KEY)
    try:
        for own, by_kind in zip(reversed(filters), reversed(meta_by_filter or []), strict=True):
            for kind in sorted(own.kinds):
                rest, group = _split_by_kind(method.sends, kind, tensors, "A site")
                if group or kind in by_kind:
                    tensors = rest | own.decode(group, by_kind[kind])
    except Exception as error:  # the filter's code runs on input from another machine
        raise RefusedError(
            "undecodable_tensors",
            f"Expected tensors that the method's filters can decode, got {type(error).__name__}. Sender and receiver "
            "need the same method and version of medfl.",
            cause=type(error).__name__,
        ) from error
    return tensors, {key: value for key, value in meta.items() if key != FILTERS_KEY}


def _kinds_present(
    sends: Mapping[str, PayloadKind], kinds: Collection[PayloadKind], tensors: Tensors, who: str
) -> list[PayloadKind]:
    """Return the kinds of a filter that at least one tensor has, sorted."""
    present = {kind_of(sends, name, who) for name in tensors}
    return [kind for kind in sorted(get_args(PayloadKind)) if kind in present and kind in kinds]


def _split_by_kind(
    sends: Mapping[str, PayloadKind], kind: PayloadKind, tensors: Tensors, who: str
) -> tuple[Tensors, Tensors]:
    """Return the tensors of all other kinds, and the tensors of one kind sorted by name."""
    group = {name: tensors[name] for name in sorted(tensors) if kind_of(sends, name, who) == kind}
    return {name: tensor for name, tensor in tensors.items() if name not in group}, group


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _forms(tensors: Tensors) -> dict[str, str]:
    """Map each tensor to a text with its dtype and shape."""
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}


def _name(own: Filter) -> str:
    return type(own).__name__
