"""What a method's own filters make of tensors on their way out of a site, and how a receiver undoes it.

`medfl.contract.Filter` says what a filter is. A site encodes after all checks and before clip, noise and bits, which
are its own and always come last: a method can't weaken them. A receiver undoes the bits, then the filters in reverse.
Models in parcels from site to site pass no filter.
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

FILTERED = "_filters"
"""Meta key beside filtered tensors: for each filter of the method, what it says of the tensors of each kind."""


def kind_of(sends: Mapping[str, PayloadKind], name: str, who: str) -> PayloadKind:
    """What a tensor is, by the longest declared prefix of its name.

    Args:
        sends: `medfl.contract.Method.sends`.
        name: The tensor's.
        who: Who would send it, for the message: "Site 'site-01'".

    Raises:
        ContractError: If its name begins with no declared prefix.
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
    """Refuse filters that would do nothing, for the method sends none of their kinds.

    Args:
        method: The method.
        name: What the user calls it.

    Raises:
        ContractError: If there is one, or it names a kind that is none.
    """
    for own in method.filters():
        kinds = set(own.kinds)
        if kinds - set(get_args(PayloadKind)) or not kinds & set(method.sends.values()):
            raise ContractError(
                "wrong_filter_kinds",
                f"The filter {_name(own)} of method '{name}' is for tensors of the kinds {sorted(kinds)}: expected one "
                f"or more of those that the method sends, {sorted(set(method.sends.values()))}. Correct its `kinds`.",
                method=name,
                filter=_name(own),
                found=kinds,
                expected=set(method.sends.values()),
            )


@dataclass(frozen=True)
class Encoder:
    """A method's filters at one site in one step.

    Attributes:
        filters: `medfl.contract.Method.filters`.
        sends: `medfl.contract.Method.sends`.
        rng: From a label to a generator, the same for an order that is carried out again.
    """

    filters: tuple[Filter, ...]
    sends: Mapping[str, PayloadKind]
    rng: Callable[[str], torch.Generator]

    def encode(self, tensors: Tensors, who: str, noised: bool) -> tuple[Tensors, Meta]:
        """Apply the filters in turn, each to the tensors of each of its kinds.

        Args:
            tensors: Checked; names begin with declared prefixes.
            who: The site, for messages: "Site 'site-01'".
            noised: Whether the run hides what a site's data are by noise on the numbers that this returns. Then all
                else that a filter says, its meta and the names, shapes and dtypes of its tensors, has to be the same
                for all data, and is compared with what it says of zeros.

        Returns:
            New tensors, and the meta for `decode_filtered`; tensors as they are and no meta without filters.

        Raises:
            ContractError: If what a filter decodes has other names, shapes or dtypes than what it encoded, or it breaks
                another promise of `medfl.contract.Filter`.
            RefusedError: If a number that it makes is not finite.
            SettingsError: If `noised`, and something beside the numbers hangs on the data.
        """
        sayings: list[Meta] = []
        for number, own in enumerate(self.filters):
            sayings.append({})
            for kind in _in_turn(self.sends, own.kinds, tensors, who):
                rest, group = _parted(self.sends, kind, tensors, who)
                label = f"filter {number} {kind}"
                encoded, meta = self._encoded(own, group, kind, label, who)
                if noised:
                    blank = {name: torch.zeros_like(tensor) for name, tensor in group.items()}
                    self._check_hidden(own, encoded, meta, *self._encoded(own, blank, kind, label, who))
                tensors = rest | encoded
                sayings[-1][kind] = meta
        return tensors, {FILTERED: sayings} if self.filters else {}

    def _encoded(self, own: Filter, group: Tensors, kind: PayloadKind, label: str, who: str) -> tuple[Tensors, Meta]:
        encoded, meta = own.encode(_copies(group), self.rng(label))
        try:
            meta = json.loads(json.dumps(dict(meta), allow_nan=False))  # as it arrives
        except (TypeError, ValueError) as error:
            raise ContractError(
                "invalid_json", f"{_name(own)}.encode gives meta that is no JSON: {error}.", filter=_name(own)
            ) from None
        other = [name for name in encoded if kind_of(self.sends, name, f"{_name(own)} at {who}") != kind]
        if other:
            prefixes = sorted(prefix for prefix, other in self.sends.items() if other == kind)
            raise ContractError(
                "wrong_tensor_kind",
                f"{_name(own)}.encode makes '{other[0]}' of tensors of the kind '{kind}': expected names with prefixes "
                f"of this kind, {prefixes}.",
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
                    "What it encodes is too large for it.",
                    sender=who,
                    tensor=name,
                    filter=_name(own),
                )
        decoded, expected = _forms(own.decode(_copies(encoded), meta)), _forms(group)
        unlike = sorted(name for name in decoded.keys() | expected.keys() if decoded.get(name) != expected.get(name))
        if unlike:
            raise ContractError(
                "unlike_decoded_tensors",
                f"{_name(own)}.decode gives back other tensors than encode was given: expected '{unlike[0]}' as "
                f"{expected.get(unlike[0], 'none')}, got {decoded.get(unlike[0], 'none')}. Names, shapes and dtypes "
                "have to be those that came in.",
                filter=_name(own),
                tensor=unlike[0],
                expected=expected.get(unlike[0]),
                found=decoded.get(unlike[0]),
            )
        return encoded, meta

    @staticmethod
    def _check_hidden(own: Filter, encoded: Tensors, meta: Meta, blank: Tensors, blank_meta: Meta) -> None:
        whole = sorted(name for name, tensor in encoded.items() if not tensor.is_floating_point())
        if whole or meta != blank_meta or _forms(encoded) != _forms(blank):
            what = f"'{whole[0]}', whole numbers that can't be noised" if whole else "shapes or facts that hang on them"
            raise SettingsError(
                "unprotected_payload",
                f"Privacy with the unit 'site' hides a site's data by noise on the numbers of an update, and the "
                f"method's filter {_name(own)} would send {what} beside them. Choose another method or setting of it, "
                "or leave the setting 'privacy' out.",
                filter=_name(own),
                tensor=whole[0] if whole else None,
            )


def decode_filtered(method: Method, tensors: Tensors, meta: Meta) -> tuple[Tensors, Meta]:
    """Undo a method's filters at the receiver.

    Args:
        method: The method, as the receiver has it.
        tensors: After the bits were undone.
        meta: That came with them.

    Returns:
        Tensors as the method sent them, but for what its filters lose, and the meta without the filters'.

    Raises:
        RefusedError: If they can't be decoded: whoever sent them has another method, or is not honest.
    """
    filters = method.filters()
    if FILTERED not in meta and not filters:
        return tensors, meta
    sayings = meta.get(FILTERED)
    try:
        for own, by_kind in zip(reversed(filters), reversed(sayings or []), strict=True):
            for kind in sorted(own.kinds):
                rest, group = _parted(method.sends, kind, tensors, "A site")
                if group or kind in by_kind:
                    tensors = rest | own.decode(group, by_kind[kind])
    except Exception as error:  # the filter's own code, on what another machine claims
        raise RefusedError(
            "undecodable_tensors",
            f"Expected tensors that the method's filters can decode, got {type(error).__name__}. Sender and receiver "
            "need the same method and version of medfl.",
            cause=type(error).__name__,
        ) from error
    return tensors, {key: value for key, value in meta.items() if key != FILTERED}


def _in_turn(
    sends: Mapping[str, PayloadKind], kinds: Collection[PayloadKind], tensors: Tensors, who: str
) -> list[PayloadKind]:
    """The kinds of a filter that there are any tensors of."""
    there = {kind_of(sends, name, who) for name in tensors}
    return [kind for kind in sorted(get_args(PayloadKind)) if kind in there and kind in kinds]


def _parted(sends: Mapping[str, PayloadKind], kind: PayloadKind, tensors: Tensors, who: str) -> tuple[Tensors, Tensors]:
    """Tensors of other kinds, and those of this one, by name."""
    mine = {name: tensors[name] for name in sorted(tensors) if kind_of(sends, name, who) == kind}
    return {name: tensor for name, tensor in tensors.items() if name not in mine}, mine


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _forms(tensors: Tensors) -> dict[str, str]:
    """Shape and dtype of each tensor."""
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}


def _name(own: Filter) -> str:
    return type(own).__name__
