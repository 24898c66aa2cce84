"""A stand-in for a GPU: a device named ``standin`` that computes on the CPU, and refuses to mix with CPU tensors.

`install` registers it as torch's device for other backends (PrivateUse1), so ``torch.zeros(3, device="standin")``,
``module.to("standin")`` and backward passes work as on a GPU, with real numbers. An operation raises where CUDA would
raise: if it also has a CPU tensor, with CUDA's exceptions (CPU scalars, CPU indices, copies). The registration can't be
undone, so install it only in a process of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

DEVICE = "standin"
"""Name of the device."""

_aten = torch.ops.aten

COPIES = frozenset({_aten.copy_.default, _aten._to_copy.default})
"""Operations that copy from one device to another."""

INDEXING = frozenset(
    {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
)
"""Operations with the arguments (tensor, indices, ...), whose indices may be on the CPU."""

JOINS = frozenset({_aten.cat.default, _aten.stack.default})
"""Operations that accept no CPU scalar."""


class MixedDevicesError(RuntimeError):
    """An operation received tensors of the stand-in and of the CPU."""


class StandinTensor(torch.Tensor):
    """Tensor on the stand-in device, with its values in a CPU tensor.

    Args:
        values: The CPU tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> StandinTensor:
        tensor: StandinTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=f"{DEVICE}:0",
            dispatch_sizes_strides_policy="sizes",  # operations in place, such as squeeze_, change the shape
        )
        tensor.values_on_cpu = values
        return tensor

    def tolist(self) -> Any:
        """Return the values, which torch refuses for subclasses and copies from a GPU."""
        return self.values_on_cpu.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"StandinTensor({self.values_on_cpu})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _on_cpu(value: Any) -> Any:
    """Return the CPU tensor of a stand-in tensor, the CPU for a device, and any other value unchanged."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.values_on_cpu if isinstance(value, StandinTensor) else value


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operation with the values on the CPU, and return its results on the stand-in."""
    _check_devices(func, args, kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    results = func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
    target = kwargs.get("device")
    if func is _aten._to_copy.default and target is not None and target.type != DEVICE:
        return results
    by_values = {id(_on_cpu(tensor)): tensor for tensor in tensors}  # operations in place return their argument

    def wrap(result: Any) -> Any:
        return by_values.get(id(result), StandinTensor(result)) if isinstance(result, torch.Tensor) else result

    return tree_map(wrap, results)


def _check_devices(func: Any, args: Any, kwargs: Any) -> None:
    """Raise if CUDA would refuse the operation, because a tensor is on the CPU and another one is not."""
    if func in COPIES:
        return
    checked = (args[0], args[2:], kwargs) if func in INDEXING else (args, kwargs)
    tensors = [leaf for leaf in tree_leaves(checked) if isinstance(leaf, torch.Tensor)]
    changed = args[:1] if func._schema.name.endswith("_") else ()
    wrong = [
        tensor
        for tensor in tensors
        if not isinstance(tensor, StandinTensor)
        and (tensor.dim() or func in JOINS or any(tensor is argument for argument in changed))
    ]
    if wrong:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in wrong)
        raise MixedDevicesError(f"{func} mixes tensors on '{DEVICE}' with tensors of shape {shapes} on the CPU")


class _Module(_DummyBackendModule):
    """Functions that torch expects in the module of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers of the stand-in come from the CPU's generator."""


_LIBRARIES: list[torch.library.Library] = []
"""Registered kernels; torch removes them when the object is deleted."""


def install() -> None:
    """Register the device in this process."""
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")

    def on_standin(function: Any) -> Any:
        """Return a kernel that creates a tensor on the CPU and returns it on the stand-in."""

        def create(*args: Any, layout: Any = None, device: Any = None, pin_memory: Any = None, **options: Any) -> Any:
            return StandinTensor(
                function(*args, **{name: value for name, value in options.items() if value is not None})
            )

        return create

    for name, function in {"empty.memory_format": torch.empty, "empty_strided": torch.empty_strided}.items():
        library.impl(name, on_standin(function), "PrivateUse1")

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        _on_cpu(target).copy_(_on_cpu(source))
        return target

    library.impl("_copy_from", copy_from, "PrivateUse1")
    _LIBRARIES.append(library)
