"""Read weights from files of safetensors and of torch, without executing anything in them.

Files of torch are opened with ``weights_only``, which refuses everything but tensors and plain containers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch as st
import torch
from safetensors import SafetensorError

from medfl.errors import SettingsError
from medfl.types import Tensors
from medfl.utils.text import names_and_more

SAFETENSORS_SUFFIX = ".safetensors"
"""Suffix of files in the format of safetensors."""

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
"""Suffixes of files that torch has saved."""

WEIGHTS_SUFFIXES = (SAFETENSORS_SUFFIX, *TORCH_SUFFIXES)
"""Suffixes of files of weights."""

NESTED_KEYS = ("state_dict", "model_state_dict", "model", "network", "net", "weights")
"""Keys under which training programs save a state dict within a checkpoint, the most specific first."""

MAX_NESTING = 8
"""Maximum number of mappings in a checkpoint around its state dict."""

WRAPPER_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that torch's wrappers for several devices and for compilation add to all names of a network's tensors."""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            "unreadable_file",
            f"Could not read the weights '{path}': {error.strerror}. Check the path and the rights; none is "
            "downloaded.",
            path=path,
            reason=error.strerror,
        ) from None


def read_state_dict(path: Path) -> Tensors:
    """Return the state dict in a file that torch has saved, with the names of tensors as they are there.

    Raises:
        SettingsError: If the file can't be read, is damaged or contains no state dict.
    """
    return _state_dict_in(_read_checkpoint(read_bytes(path), path), path)


def tensors_of(content: bytes, path: Path) -> Tensors:
    """Return all tensors of a file by name, without the prefixes of torch's wrappers."""
    if path.suffix == SAFETENSORS_SUFFIX:
        tensors: Any = _read_safetensors(content, path)
    elif path.suffix in TORCH_SUFFIXES:
        tensors = _state_dict_in(_read_checkpoint(content, path), path)
    else:
        raise SettingsError(
            "unsupported_file",
            f"'{path.name}' is not a file of weights that medfl reads. Expected a file "
            f"{', '.join(WEIGHTS_SUFFIXES)}: safetensors, or a state dict of torch.",
            path=path,
            found=path.suffix,
        )
    for prefix in WRAPPER_PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _read_safetensors(content: bytes, path: Path) -> Tensors:
    """Return the tensors of a safetensors file."""
    try:
        tensors: Tensors = st.load(content)
    except (SafetensorError, KeyError) as error:  # KeyError: a number type that this torch does not have
        raise SettingsError(
            "damaged_file",
            f"'{path}' is not a safetensors file, or is damaged ({error}). Download it again.",
            path=path,
            expected="safetensors",
        ) from None
    return tensors


def _read_checkpoint(content: bytes, path: Path) -> Any:
    """Return the content of a file that torch has saved, without executing code in it."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise SettingsError(
            "unsafe_file",
            f"'{path}' is damaged or needs code to be loaded (torch.load with weights_only refuses it). medfl never "
            "executes code in a file of weights. Save the state dict alone, for example with "
            "torch.save(model.state_dict(), path), or as safetensors.",
            path=path,
        ) from None
    except Exception as error:  # a damaged file makes torch raise errors of many types
        raise SettingsError(
            "damaged_file",
            f"'{path}' is not a state dict that torch has saved, or is damaged ({_first_line(error)}). "
            "Save the network's state dict; TorchScript is not supported.",
            path=path,
            expected="state dict",
        ) from None


def _first_line(error: Exception) -> str:
    """Return the beginning of an error's message, or the name of its class if it has none."""
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _state_dict_in(loaded: Any, path: Path) -> Tensors:
    """Return the state dict in a checkpoint, which may contain it under one of `NESTED_KEYS`."""
    content: Any = loaded
    for _ in range(MAX_NESTING):  # a mapping in a file may contain itself
        content = _nested_mapping(content)
    entries = dict(content) if isinstance(content, Mapping) else {}
    others = [str(key) for key, value in entries.items() if not (isinstance(key, str) and torch.is_tensor(value))]
    if not entries or others:
        what = names_and_more(others, 3) or ("no tensor" if isinstance(content, Mapping) else type(content).__name__)
        raise SettingsError(
            "not_a_state_dict",
            f"Expected a state dict, a mapping from names to tensors, in '{path}', directly or under one of the keys "
            f"{', '.join(NESTED_KEYS)}; found {what}. Save the network's state dict alone.",
            path=path,
            found=others,
        )
    return entries


def _nested_mapping(content: Any) -> Any:
    """Return the mapping under the first of `NESTED_KEYS` that has one, or the content itself without such a key."""
    entries = content if isinstance(content, Mapping) else {}
    return next((entries[key] for key in NESTED_KEYS if isinstance(entries.get(key), Mapping)), content)


def check_tensors(tensors: Any, path: Path) -> None:
    """Raise unless all values are dense tensors of real numbers that are finite as float32."""
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise SettingsError(
            "not_a_state_dict", f"Expected tensors by name from the weights in '{path}'. Check the plugin.", path=path
        )
    if broken := [name for name, tensor in tensors.items() if not _is_finite(tensor)]:
        raise SettingsError(
            "not_finite",
            f"Expected dense tensors of real numbers that are finite as float32, got others in the weights '{path}': "
            f"{names_and_more(broken, 3)}. Get the file again.",
            path=path,
            names=broken,
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and on the CPU, and all its numbers are real and finite as float32."""
    is_dense = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    if not is_dense or tensor.device.type != "cpu" or tensor.is_complex():
        return False
    return not tensor.is_floating_point() or bool(tensor.float().isfinite().all())
