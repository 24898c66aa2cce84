"""Pretrained weights for a network's body from a local file, for example of ImageNet.

The file has the tensor names of torchvision's and timm's residual networks, which `medfl.networks.resnet.ResNet` also
uses: ``conv1``, ``bn1``, ``layer1.0.conv1``, ``layer2.0.downsample.0``. The classifier of the file is ignored, since it
has other classes. Files are safetensors. Pickles (``.pth``) are never opened, since loading one can run code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import safetensors.torch as st
import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from medfl.errors import SettingsError
from medfl.networks.frozen import full_state_dict
from medfl.networks.parts import head_prefix
from medfl.types import Tensors
from medfl.utils.text import names_and_more

PICKLE_PREFIXES = (b"PK", b"\x80")
"""First bytes by which a pickle is recognised and refused: `torch.save` writes a zip archive, or a pickle in old
versions."""

CONVERSION_ADVICE = (
    'Convert it once, for example with: python -c "import sys, torch, safetensors.torch as s; s.save_file({k: '
    'v.contiguous() for k, v in torch.load(sys.argv[1], weights_only=True).items()}, sys.argv[2])" weights.pth '
    "weights.safetensors"
)
"""Text for an error message: how to convert a pickle to safetensors."""


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights in a file.

    Attributes:
        path: Path of the file.
        sha256: SHA-256 of the file; a file that has changed is refused.
    """

    path: Path
    sha256: str

    def body_of(self, model: nn.Module, network: str) -> Tensors:
        """Read the file and return the tensors of a network's body.

        Args:
            model: Network with `body` and `head`. A bias of a convolution that is not in the file is set to zero.
            network: Name of the network, for messages.

        Returns:
            Parameters and running statistics with the network's own names, shapes and dtypes.

        Raises:
            SettingsError: If the file has changed or does not match the network; the message has the tensors and the
                option to set.
        """
        where = f"The weights in '{self.path.name}' don't fit network '{network}'"
        head = head_prefix(model, network)
        own = _body_tensors(full_state_dict(model), head)
        loaded = _body_tensors(_read_tensors(self.path, self.sha256), head)
        if _has_statistics(loaded) and not any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise SettingsError(
                "missing_batch_norm",
                f"{where}: they were trained with batch norm, which the network does not have. Set norm to 'batch' "
                "(norm_sync 'frozen' then keeps the file's statistics), or set no weights.",
                path=self.path,
                network=network,
            )
        biases = {f"{path}.bias" for path, module in model.named_modules() if isinstance(module, _ConvNd)}
        missing = [name for name in own if name not in loaded and name not in biases]
        extra = sorted(loaded.keys() - own.keys())
        if missing or extra:
            raise SettingsError(
                "wrong_tensor_names",
                f"{where}: the file {_verb_with_names('lacks', missing)}{' and ' * bool(missing and extra)}"
                f"{_verb_with_names('also has', extra)}. Choose the network of the file with network_name.",
                path=self.path,
                network=network,
                missing=missing,
                unknown=extra,
            )
        unlike = [name for name in own if name in loaded and loaded[name].shape != own[name].shape]
        if unlike:
            raise SettingsError(
                "wrong_shape",
                f"{where}: {_shape_differences(unlike, own, loaded)}. {_advice(model, own, loaded)}",
                path=self.path,
                network=network,
                names=unlike,
            )
        if broken := [name for name, tensor in loaded.items() if not tensor.isfinite().all()]:
            raise SettingsError(
                "not_finite",
                f"{where}: not all numbers of {names_and_more(broken, 3)} are finite. Download the file again.",
                path=self.path,
                network=network,
                names=broken,
            )
        return {name: loaded[name].to(t.dtype) if name in loaded else torch.zeros_like(t) for name, t in own.items()}


def read_weights(path: str | Path | None) -> Pretrained | None:
    """Return the pretrained weights of a bundle's option ``weights``.

    Args:
        path: Path of a safetensors file, relative to the working directory; None means no weights.

    Raises:
        SettingsError: If the file can't be read.
    """
    if path is None:
        return None
    file = Path(path).expanduser().resolve()
    return Pretrained(file, hashlib.sha256(_read_bytes(file)).hexdigest())


def load_pretrained(model: nn.Module, path: str | Path | None) -> nn.Module:
    """Load the weights of a file into a network's body, in place, for training one site with plain MONAI.

    Args:
        model: Network with `body` and `head`.
        path: Path of a safetensors file, relative to the working directory; None leaves the network unchanged.

    Returns:
        `model`.

    Raises:
        SettingsError: If the weights don't match the network.
    """
    weights = read_weights(path)
    if weights is not None:
        model.load_state_dict(model.state_dict() | weights.body_of(model, type(model).__name__))
    return model


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            "unreadable_file",
            f"Could not read the weights '{path}': {error.strerror}. Expected a safetensors file; none is downloaded.",
            path=path,
            reason=error.strerror,
        ) from None


@lru_cache(maxsize=1)
def _read_tensors(path: Path, sha256: str) -> Tensors:
    """Return all tensors of a file. Callers share the cached tensors and must not change them."""
    content = _read_bytes(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SettingsError(
            "changed_file", f"The weights '{path}' have changed since the run began. Put the file back.", path=path
        )
    if content.startswith(PICKLE_PREFIXES):
        raise SettingsError(
            "unsupported_file",
            f"expected weights in a safetensors file, got a pickle, which can run code: '{path}'. {CONVERSION_ADVICE}",
            path=path,
            expected="safetensors",
            found="pickle",
        )
    try:
        tensors: Tensors = st.load(content)
    except SafetensorError as error:
        raise SettingsError(
            "damaged_file",
            f"'{path}' is not a safetensors file, or is damaged ({error}). Download it again.",
            path=path,
            expected="safetensors",
        ) from None
    return tensors


def _body_tensors(tensors: Tensors, head: str) -> Tensors:
    """Return the floating tensors outside the head.

    The others are the head and batch counters, which have no effect.
    """
    return {name: t for name, t in tensors.items() if not name.startswith(head) and t.is_floating_point()}


def _has_statistics(loaded: Tensors) -> bool:
    """Return True if the file has running statistics of batch norm."""
    return any(name.rpartition(".")[2] == "running_mean" for name in loaded)


def _verb_with_names(verb: str, names: list[str]) -> str:
    """Return a verb and names for a message; empty without names."""
    return f"{verb} {names_and_more(names, 3)}" if names else ""


def _shape_differences(names: list[str], own: Tensors, loaded: Tensors) -> str:
    """Return a description of the tensors with different shapes."""
    shapes = [f"{name} is {tuple(loaded[name].shape)} in the file and {tuple(own[name].shape)} here" for name in names]
    return "; ".join(shapes[:3]) + (f"; and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _advice(model: nn.Module, own: Tensors, loaded: Tensors) -> str:
    """Return advice on the options of a residual network, derived from the shape of the file's first convolution."""
    first = next((f"{path}.weight" for path, module in model.named_modules() if isinstance(module, _ConvNd)), "")
    if first not in loaded or own[first].dim() != loaded[first].dim():
        return "Choose the network of the file with network_name; weights of 2-D images need spatial_dims 2."
    theirs, mine = loaded[first].shape, own[first].shape
    advice = [f"width to {theirs[0]}"] * (theirs[0] != mine[0])
    advice += [f"stem_kernel to {theirs[2]}"] * (theirs[2:] != mine[2:])
    advice += [f"in_channels to {theirs[1]} (images of {theirs[1]} channels)"] * (theirs[1] != mine[1])
    hint = f"Set {', '.join(advice)}" if advice else "Choose the network of the file with network_name"
    return f"{hint}, or set no weights."
