"""Weights from which a network starts in place of random ones, with their origin, and the check that they fit it.

`medfl.engine.runs.start_source` reads them from a file, a run, a bundle or an installed package. This module compares
the names and shapes of their tensors with a network's. Every difference is an error that names the tensors, unless the
user left these tensors out by name (setting ``start_skip``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from medfl.errors import SettingsError, did_you_mean
from medfl.networks.parts import head_prefix
from medfl.networks.transfer.frozen import full_state_dict
from medfl.types import Tensors
from medfl.utils.text import names_and_more

HEAD = "head"
"""Name in ``start_skip`` that stands for the network's classifier, whatever its own name is."""

ENCLOSING_PREFIXES = ("model.", "network.", "net.")
"""Prefixes that training programs add to all names of a network's tensors. They are removed if all names have one."""

BATCH_COUNTER = "num_batches_tracked"
"""Last part of the name of batch norm's counter of batches, which files of old versions of torch do not have."""


@dataclass(frozen=True)
class Start:
    """Weights from which the default network of a run starts.

    Attributes:
        source: Source in short: the name of known weights, or a file or folder without the path to it.
        title: Name of the weights for reports.
        sha256: SHA-256 of the file that contains the weights. It is part of the run's identity.
        tensors: Maps names to finite tensors on the CPU. No one may change them.
        licence: Licence of the weights; empty if it is unknown.
        origin: Sentences on where the weights come from; empty if it is unknown.
        skip: Names, or prefixes of names, of tensors that are left out (setting ``start_skip``).
        network: Dotted name of the class whose tensor names the weights have; empty if it is unknown.
        mean: Mean of each channel that the weights expect to be subtracted from images in [0, 1]; None if unknown.
        std: Standard deviation of each channel that they expect images to be divided by; None if unknown.
        allows_missing_head: Whether the weights may lack a classifier. The network then keeps the one it has drawn.
    """

    source: str
    title: str
    sha256: str
    tensors: Mapping[str, torch.Tensor] = field(repr=False, compare=False)
    licence: str = ""
    origin: str = ""
    skip: tuple[str, ...] = ()
    network: str = ""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    allows_missing_head: bool = False

    def builder(self, build: Callable[[], nn.Module], name: str) -> Callable[[], nn.Module]:
        """Return a function that builds a network and loads the weights into it.

        Args:
            build: Function that builds the network with random weights.
            name: Name of the network, for messages.
        """

        def build_started() -> nn.Module:
            model = build()
            self.load_into(model, name)
            return model

        return build_started

    def load_into(self, model: nn.Module, name: str) -> None:
        """Load the weights into a newly built network, in place.

        Tensors in `skip` keep the network's values, and a convolution's bias becomes zero if only its weight was
        trained. The tensors are not loaded if any of them does not fit.

        Args:
            model: Network, with the frozen parameters in its state dict.
            name: Name of the network, for messages.

        Raises:
            SettingsError: If the weights do not fit the network; the message has the names of the tensors and the
                option to set.
        """
        model.load_state_dict(model.state_dict() | self.tensors_for(model, name))

    def tensors_for(self, model: nn.Module, name: str) -> Tensors:
        """Return the tensors that replace a network's, with the network's own names, shapes and types.

        Args:
            model: Network with `head`, its classifier, if ``start_skip`` names it or the weights may lack one. Its
                method `rename_weights`, if it has one, maps tensors with the names of other programs to its own.
            name: Name of the network, for messages.

        Raises:
            SettingsError: If the weights do not fit the network; the message has the names of the tensors and the
                option to set.
        """
        own = full_state_dict(model)
        loaded = _without_enclosing_prefix(self.tensors, own)
        if callable(rename := getattr(model, "rename_weights", None)):
            loaded = rename(loaded)
        head = _head_prefix(model)
        skipped = self._skipped_prefixes([*own, *loaded], head, name)
        wanted = {key: tensor for key, tensor in own.items() if not _is_within(key, skipped)}
        loaded = {key: tensor for key, tensor in loaded.items() if not _is_within(key, skipped)}
        if self.allows_missing_head and not any(key.startswith(head) for key in loaded if head):
            wanted = {key: tensor for key, tensor in wanted.items() if not head or not key.startswith(head)}
        self._check_norms(model, wanted, loaded, name)
        zeros = _untrained_biases(model, wanted, loaded)
        missing = [key for key in wanted if key not in loaded and key not in zeros and not key.endswith(BATCH_COUNTER)]
        self._check_names(missing, sorted(loaded.keys() - wanted.keys()), head, name)
        self._check_shapes(model, wanted, loaded, head, name)
        result = {key: loaded[key].to(tensor.dtype) for key, tensor in wanted.items() if key in loaded}
        return result | {key: torch.zeros_like(own[key]) for key in zeros}

    def _skipped_prefixes(self, names: Iterable[str], head: str, network: str) -> list[str]:
        """Return the names and prefixes to skip. Raise if one matches no tensor of the network and of the weights."""
        known = list(names)
        prefixes = [head if entry == HEAD and head else entry for entry in self.skip]
        for entry, prefix in zip(self.skip, prefixes, strict=True):
            if not any(_is_within(key, [prefix]) for key in known):
                tops = sorted({key.partition(".")[0] for key in known} | ({HEAD} if head else set()))
                raise SettingsError(
                    "unknown_choice",
                    f"start_skip names '{entry}', but neither the network '{network}' nor {self._where} have a tensor "
                    f"of that name, or one whose name begins with '{entry}.'. {did_you_mean(entry, tops)}",
                    what="start_skip",
                    choice=entry,
                    network=network,
                )
        return prefixes

    @property
    def _where(self) -> str:
        return f"the weights '{self.source}'"

    def _refusal(self, code: str, network: str, problem: str, **fields: object) -> SettingsError:
        """Return the error about weights that do not fit a network."""
        return SettingsError(
            code,
            f"The weights '{self.source}' don't fit network '{network}': {problem}",
            source=self.source,
            network=network,
            **fields,
        )

    def _check_norms(self, model: nn.Module, wanted: Tensors, loaded: Tensors, network: str) -> None:
        """Raise if the weights have running statistics of batch norm and the network has no batch norm.

        Weights that lack most of the network's tensors are of another network; the check of the names refuses them.
        """
        trained_with = any(key.rpartition(".")[2] == "running_mean" for key in loaded)
        if 2 * len(wanted.keys() & loaded.keys()) < len(wanted):
            return
        if trained_with and not any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise self._refusal(
                "missing_batch_norm",
                network,
                "they were trained with batch norm, which the network does not have. Set norm to 'batch' (norm_sync "
                "'frozen' then keeps the statistics of the weights), or set start to 'none'.",
            )

    def _check_names(self, missing: list[str], unknown: list[str], head: str, network: str) -> None:
        """Raise if tensors are missing in the weights or unknown to the network."""
        if not missing and not unknown:
            return
        parts = [f"they lack {names_and_more(missing, 3)}"] if missing else []
        parts += [f"{'and ' if missing else 'they '}also have {names_and_more(unknown, 3)}"] if unknown else []
        made_for = f" The weights are for the network {self.network}." if self.network else ""
        if missing and head and all(key.startswith(head) for key in missing):
            options = [HEAD, *sorted({_top(key) for key in unknown})]
            advice = f"To keep the network's own head, add {_skip_option((*self.skip, *options))}."
        else:
            advice = (
                "Choose the network of the weights (network_name), or name the tensors to leave out with "
                f"{_skip_option((*self.skip, _top((missing or unknown)[0])))}."
            )
        raise self._refusal(
            "wrong_tensor_names",
            network,
            f"{' '.join(parts)}.{made_for} {advice}",
            missing=missing,
            unknown=unknown,
        )

    def _check_shapes(self, model: nn.Module, own: Tensors, loaded: Tensors, head: str, network: str) -> None:
        """Raise if tensors have other shapes than the network's."""
        unlike = [key for key in own if key in loaded and loaded[key].shape != own[key].shape]
        if not unlike:
            return
        if head and all(key.startswith(head) for key in unlike):
            advice = (
                "The head has another number of outputs. To keep the network's own head, add "
                f"{_skip_option((*self.skip, HEAD))}."
            )
        else:
            advice = _advice(model, own, loaded)
        raise self._refusal(
            "wrong_shape", network, f"{_shape_differences(unlike, own, loaded)}. {advice}", names=unlike
        )


def _skip_option(names: Iterable[str]) -> str:
    """Return the option that leaves tensors out, as the user types it."""
    return f"--start-skip {','.join(dict.fromkeys(names))}"


def _top(name: str) -> str:
    """Return the name of the module that holds a tensor, without the module's own parts."""
    return name.rpartition(".")[0] or name


def _head_prefix(model: nn.Module) -> str:
    """Return the prefix of the names of a network's head, such as ``fc.``; empty if the network declares no head."""
    return head_prefix(model, "") if isinstance(getattr(model, "head", None), nn.Module) else ""


def _is_within(name: str, prefixes: Collection[str]) -> bool:
    """Return whether a name is one of the given names, or within a module with one of these names."""
    return any(name == prefix or name.startswith(prefix.rstrip(".") + ".") for prefix in prefixes)


def _without_enclosing_prefix(tensors: Mapping[str, torch.Tensor], own: Collection[str]) -> Tensors:
    """Return tensors without a prefix in `ENCLOSING_PREFIXES` that all their names and none of the network's have."""
    for prefix in ENCLOSING_PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors) and not any(n.startswith(prefix) for n in own):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _untrained_biases(model: nn.Module, own: Tensors, loaded: Tensors) -> list[str]:
    """Return the names of the biases of convolutions that were trained without one; a bias of zero has no effect."""
    paths = [path for path, module in model.named_modules() if isinstance(module, _ConvNd)]
    return [
        f"{path}.bias"
        for path in paths
        if f"{path}.bias" in own and f"{path}.bias" not in loaded and f"{path}.weight" in loaded
    ]


def _shape_differences(names: list[str], own: Tensors, loaded: Tensors) -> str:
    """Return a description of the tensors with different shapes."""
    shapes = [
        f"{name} is {tuple(loaded[name].shape)} in the weights and {tuple(own[name].shape)} in the network"
        for name in names
    ]
    return "; ".join(shapes[:3]) + (f"; and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _advice(model: nn.Module, own: Tensors, loaded: Tensors) -> str:
    """Return advice on the options of a residual network, derived from the shape of the file's first convolution."""
    first = next((f"{path}.weight" for path, module in model.named_modules() if isinstance(module, _ConvNd)), "")
    if first not in loaded or first not in own or own[first].dim() != loaded[first].dim():
        return "Choose the network of the weights with network_name; weights of 2-D images need spatial_dims 2."
    theirs, mine = loaded[first].shape, own[first].shape
    advice = [f"width to {theirs[0]}"] * (theirs[0] != mine[0])
    advice += [f"stem_kernel to {theirs[2]}"] * (theirs[2:] != mine[2:])
    advice += [f"in_channels to {theirs[1]} (images of {theirs[1]} channels)"] * (theirs[1] != mine[1])
    hint = f"Set {', '.join(advice)}" if advice else "Choose the network of the weights with network_name"
    return f"{hint}, or set start to 'none'."
