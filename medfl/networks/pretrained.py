"""A network's body from a local file of trained weights, such as those of ImageNet.

The file has the names of torchvision's and timm's residual networks, which are those of `medfl.networks.resnet.ResNet`:
``conv1``, ``bn1``, ``layer1.0.conv1``, ``layer2.0.downsample.0``. Its classifier is left out: its classes are others.
Files are safetensors; a pickle (``.pth``) is never opened, since loading one can run code.
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
from medfl.networks.frozen import whole_state
from medfl.networks.parts import head_path
from medfl.types import Tensors
from medfl.utils.text import names_and_more

PICKLES = (b"PK", b"\x80")
"""How files of `torch.save` begin: a zip archive, or in old versions a pickle."""

CONVERT = (
    'Convert it once, for example with: python -c "import sys, torch, safetensors.torch as s; s.save_file({k: '
    'v.contiguous() for k, v in torch.load(sys.argv[1], weights_only=True).items()}, sys.argv[2])" weights.pth '
    "weights.safetensors"
)


@dataclass(frozen=True)
class Pretrained:
    """Weights in a file.

    Attributes:
        path: The file.
        sha256: Of its bytes; a file that has changed since is refused.
    """

    path: Path
    sha256: str

    def body_of(self, model: nn.Module, network: str) -> Tensors:
        """What the file says of the tensors of a network's body.

        Args:
            model: Has `body` and `head`. A bias of a convolution that the file lacks is zero, and so no bias.
            network: Its name, for messages.

        Returns:
            Parameters and running statistics by the network's own names, shapes and dtypes.

        Raises:
            SettingsError: If the file has changed, or does not fit: names the tensors, and the option to set.
        """
        where = f"The weights in '{self.path.name}' don't fit network '{network}'"
        own, loaded = (_of_body(tensors, head_path(model, network)) for tensors in (whole_state(model), self._read()))
        if _has_statistics(loaded) and not any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise SettingsError(
                "missing_batch_norm",
                f"{where}: they were made with batch norm, which the network does not have. Set norm to 'batch' "
                "(norm_sync 'frozen' then keeps the file's statistics), or give no weights.",
                path=self.path,
                network=network,
            )
        biases = {f"{path}.bias" for path, module in model.named_modules() if isinstance(module, _ConvNd)}
        missing = [name for name in own if name not in loaded and name not in biases]
        extra = sorted(loaded.keys() - own.keys())
        if missing or extra:
            raise SettingsError(
                "wrong_tensor_names",
                f"{where}: the file {_listed('lacks', missing)}{' and ' * bool(missing and extra)}"
                f"{_listed('has beyond it', extra)}. Choose the network that the file was made for with network_name.",
                path=self.path,
                network=network,
                missing=missing,
                unknown=extra,
            )
        unlike = [name for name in own if name in loaded and loaded[name].shape != own[name].shape]
        if unlike:
            raise SettingsError(
                "wrong_shape",
                f"{where}: {_shapes(unlike, own, loaded)}. {_advice(model, own, loaded)}",
                path=self.path,
                network=network,
                names=unlike,
            )
        if broken := [name for name, tensor in loaded.items() if not tensor.isfinite().all()]:
            raise SettingsError(
                "not_finite",
                f"{where}: not all numbers of {names_and_more(broken, 3)} are finite. Get the file anew.",
                path=self.path,
                network=network,
                names=broken,
            )
        return {name: loaded[name].to(t.dtype) if name in loaded else torch.zeros_like(t) for name, t in own.items()}

    def _read(self) -> Tensors:
        return _read(self.path, self.sha256)


def read_weights(path: str | Path | None) -> Pretrained | None:
    """The weights that a bundle's option ``weights`` names.

    Args:
        path: A safetensors file; a relative path begins where the command is run. None means none.

    Raises:
        SettingsError: If there is no such file.
    """
    if path is None:
        return None
    file = Path(path).expanduser().resolve()
    return Pretrained(file, hashlib.sha256(_bytes(file)).hexdigest())


def load_pretrained(model: nn.Module, path: str | Path | None) -> nn.Module:
    """Put the weights of a file into a network's body, in place; for training one site with plain MONAI.

    Args:
        model: Has `body` and `head`.
        path: As for `read_weights`.

    Returns:
        `model`.

    Raises:
        SettingsError: If they don't fit.
    """
    weights = read_weights(path)
    if weights is not None:
        model.load_state_dict(model.state_dict() | weights.body_of(model, type(model).__name__))
    return model


def _bytes(path: Path) -> bytes:
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
def _read(path: Path, sha256: str) -> Tensors:
    """All tensors of a file; they are shared by all who ask, so nobody may change them."""
    content = _bytes(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SettingsError(
            "changed_file", f"The weights '{path}' have changed since the run began. Put the file back.", path=path
        )
    if content.startswith(PICKLES):
        raise SettingsError(
            "unsupported_file",
            f"expected weights as a safetensors file, got a pickle, which can run code: '{path}'. {CONVERT}",
            path=path,
            expected="safetensors",
            found="pickle",
        )
    try:
        tensors: Tensors = st.load(content)
    except SafetensorError as error:
        raise SettingsError(
            "damaged_file",
            f"'{path}' is no safetensors file, or a damaged one ({error}). Get it anew.",
            path=path,
            expected="safetensors",
        ) from None
    return tensors


def _of_body(tensors: Tensors, head: str) -> Tensors:
    """Without the classifier, and without counters of batches, which nothing depends on."""
    return {name: t for name, t in tensors.items() if not name.startswith(head) and t.is_floating_point()}


def _has_statistics(loaded: Tensors) -> bool:
    return any(name.rpartition(".")[2] == "running_mean" for name in loaded)


def _listed(verb: str, names: list[str]) -> str:
    return f"{verb} {names_and_more(names, 3)}" if names else ""


def _shapes(names: list[str], own: Tensors, loaded: Tensors) -> str:
    shapes = [f"{name} is {tuple(loaded[name].shape)} in the file and {tuple(own[name].shape)} here" for name in names]
    return "; ".join(shapes[:3]) + (f"; and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _advice(model: nn.Module, own: Tensors, loaded: Tensors) -> str:
    """The options of a residual network to which the shape of the file's first convolution points."""
    first = next((f"{path}.weight" for path, module in model.named_modules() if isinstance(module, _ConvNd)), "")
    if first not in loaded or own[first].dim() != loaded[first].dim():
        return "Choose the network that the file was made for with network_name; files of images need spatial_dims 2."
    theirs, mine = loaded[first].shape, own[first].shape
    advice = [f"width to {theirs[0]}"] * (theirs[0] != mine[0])
    advice += [f"stem_kernel to {theirs[2]}"] * (theirs[2:] != mine[2:])
    advice += [f"in_channels to {theirs[1]} (images of {theirs[1]} channels)"] * (theirs[1] != mine[1])
    hint = f"Set {', '.join(advice)}" if advice else "Choose the network that the file was made for with network_name"
    return f"{hint}, or give no weights."
