"""Selection of the parameters that learn: the setting ``train_part`` of a run.

All other parameters are frozen (`medfl.networks.transfer.frozen`): they are not trained, sent, averaged, noised or
stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

from medfl.errors import SettingsError
from medfl.networks.norms import NORM_LAYERS
from medfl.networks.parts import head_names
from medfl.networks.transfer.adapters.layers import AdapterOptions, add_adapters
from medfl.utils.text import names_and_more

ALL = "all"
"""Value of the setting ``train_part`` with which all parameters learn."""

LORA = "lora"
"""Value of the setting ``train_part`` with which low-rank adapters and the head learn."""

KEYWORDS = (ALL, "head", "norms", LORA)
"""Values of the setting ``train_part`` that are not regular expressions."""


def build_with_frozen_rest(
    build: Callable[[], nn.Module], train_part: str, network: str, adapters: AdapterOptions
) -> nn.Module:
    """Build a network, and freeze all parameters that the setting ``train_part`` doesn't select.

    Args:
        build: Constructor of the network.
        train_part: Value of the setting. With ``lora`` the network gets adapters.
        network: Name of the network, for messages.
        adapters: Options of the adapters.

    Raises:
        SettingsError: If the selection doesn't fit the network (`freeze_rest`, `add_adapters`).
    """
    model = build()
    if train_part == LORA:
        add_adapters(model, adapters, network)
    else:
        freeze_rest(model, train_part, network)
    return model


def freeze_rest(model: nn.Module, train_part: str, network: str) -> None:
    """Freeze all parameters of a network, in place, that the setting ``train_part`` doesn't select.

    A parameter that the network's constructor has frozen stays frozen.

    Args:
        model: The network.
        train_part: Value of the setting: ``all``; ``head``, the network's classifier; ``norms``, the weights and
            biases of normalisation layers, and the head if the network has one; or a regular expression that is
            searched in the parameters' names.
        network: Name of the network, for messages.

    Raises:
        SettingsError: If the network has no head, or no parameter matches the expression.
    """
    if train_part == ALL:
        return
    selected = _selected_names(model, train_part, network)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in selected:
            parameter.requires_grad_(False)


def _selected_names(model: nn.Module, train_part: str, network: str) -> set[str]:
    """Return the names of the parameters that the setting selects."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if train_part == "head":
        return set(head_names(model, network))
    if train_part == "norms":
        selected = _norm_parameters(model)
        return selected | (
            set(head_names(model, network)) if isinstance(getattr(model, "head", None), nn.Module) else set()
        )
    selected = {name for name in names if re.search(train_part, name)}
    if not selected:
        raise SettingsError(
            "no_match",
            f"The setting 'train_part' ({train_part!r}) selects no parameter of network '{network}': expected "
            f"{', '.join(KEYWORDS)}, or a regular expression that is found in at least one of its parameters' names: "
            f"{names_and_more(names, 6)}.",
            setting="train_part",
            network=network,
            names=names,
        )
    return selected


def _norm_parameters(model: nn.Module) -> set[str]:
    """Return the names of the weights and biases of all normalisation layers."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, NORM_LAYERS)
        for name, _ in module.named_parameters(recurse=False)
    }
