"""Load the model of an exported bundle, the copy of a bundle with trained weights that a run writes at its end."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.engine.runs.weights_file import read_state_dict
from medfl.errors import SettingsError, StoreError
from medfl.networks.bundle_parser import make_parser

CONFIG = Path("configs") / "train.json"
"""Path, relative to a bundle, of the configuration that defines its network."""


def load_exported(bundle: Path) -> nn.Module:
    """Return the network of an exported bundle with its weights, on the CPU.

    Args:
        bundle: Folder of the bundle, such as ``sites/site-01`` of a run folder.

    Raises:
        StoreError: If there is no bundle with a network and weights, or the weights don't fit the network.
    """
    if not (bundle / WEIGHTS).is_file() or not (bundle / CONFIG).is_file():
        raise StoreError(
            "missing_model",
            f"Expected an exported bundle with '{CONFIG}' and '{WEIGHTS}' in '{bundle}'. A run writes them at its end, "
            "for each site and, if the method has a global model, in 'global'.",
            path=bundle,
        )
    try:
        network = build_network(bundle)
        network.load_state_dict(read_state_dict(bundle / WEIGHTS))
    except (SettingsError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise StoreError(
            "unreadable_bundle",
            f"Could not load the model of the bundle '{bundle}': {error}. Restore the bundle, or repeat the run.",
            path=bundle,
        ) from None
    return network


def build_network(bundle: Path) -> nn.Module:
    """Build and return the network of a bundle without loading its weights."""
    parser = make_parser()
    parser.read_config(str(bundle / CONFIG))
    parser.update(pairs={"bundle_root": str(bundle)})
    network: nn.Module = parser.get_parsed_content("network_def")
    return network
