"""One site of a federation opened from a bundle, without a run around it, and what it accepts as a server's weights."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.federation import read_federation
from medfl.contract import Site, State
from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import countable
from medfl.data.sites import SiteData
from medfl.engine.filters import Filters
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings, read_settings
from medfl.task import Scale, Task
from medfl.toolkit.averaging import Averaging
from medfl.training.loop import pick_device
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.memory import keep_freed_memory
from medfl.utils.text import names_and_more

logger = logging.getLogger(__name__)

METHOD = "fedavg"
"""The one method that full weights in, and weights or their differences out, can carry."""

EXACT = 2**53
"""Integers up to this size are the same number in float64."""


@dataclasses.dataclass(frozen=True)
class Side:
    """What a site needs to train and to score.

    Attributes:
        name: Of the site.
        method: Fedavg.
        task: Of the bundle, on the site's device.
        settings: Of a run.
        data: The site's.
        filters: What stands in the way out.
        start: The common initial tensors, those that are shared; they say which weights are accepted.
    """

    name: str
    method: Averaging
    task: Task
    settings: Settings
    data: SiteData
    filters: Filters
    start: Tensors

    def view(self, round_: int, state: State, train: Dataset) -> Site:
        """What the method sees of the site."""
        site = Site(self.name, round_, state, self.task.in_round(round_, self.settings.lr_decay), self.settings)
        site.train, site.val = train, self.data.val
        return site

    def receive(self, weights: object) -> Tensors:
        """Copies of a server's weights, on the CPU.

        A counter, such as a batch-norm layer's, may come as a floating number, for servers that average all tensors
        alike; it is rounded.

        Args:
            weights: Tensors or NumPy arrays by state-dict name.

        Raises:
            RefusedError: If they are not of exactly the names, shapes and types of `start`, or not finite.
        """
        if not isinstance(weights, Mapping):
            kind = type(weights).__name__
            raise self._refused("wrong_type", f"expected weights by name, got {kind}", found=kind)
        names = set(weights)
        if names != set(self.start):
            missing, unknown = set(self.start) - names, names - set(self.start)
            raise self._refused(
                "wrong_tensor_names",
                f"expected exactly the {len(self.start)} names of its model, got {len(names)}; missing: "
                f"{_few(missing)}; unknown: {_few(unknown)}",
                missing=missing,
                unknown=sorted(map(str, unknown)),
            )
        return {name: self._checked(name, weights[name], start) for name, start in self.start.items()}

    def _checked(self, name: str, value: Any, like: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, torch.Tensor | np.ndarray | np.generic):
            kind = type(value).__name__
            raise self._refused(
                "wrong_type", f"expected '{name}' to be a tensor or a NumPy array, got {kind}", name=name, found=kind
            )
        shape, expected = tuple(value.shape), tuple(like.shape)
        if shape != expected:
            raise self._refused(
                "wrong_shape",
                f"expected '{name}' of shape {expected}, got {shape}",
                name=name,
                expected=expected,
                found=shape,
            )
        tensor = _copy(value)
        counted = tensor is not None and tensor.is_floating_point() and _is_count(like)
        if tensor is None or (tensor.dtype != like.dtype and not counted):
            raise self._refused(
                "wrong_dtype",
                f"expected '{name}' as a dense {like.dtype}, got {value.dtype}",
                name=name,
                expected=str(like.dtype),
                found=str(value.dtype),
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise self._refused("not_finite", f"expected finite numbers in '{name}', got NaN or infinity", name=name)
        if counted and bool((tensor.abs() > EXACT).any()):
            raise self._refused(
                "count_too_large",
                f"expected counts of at most {EXACT} in '{name}', got larger ones",
                name=name,
                maximum=EXACT,
            )
        return tensor.round().to(like.dtype) if counted else tensor

    def _refused(self, code: str, why: str, **fields: Any) -> RefusedError:
        return RefusedError(
            code,
            f"Site '{self.name}' refuses the server's weights: {why}. Server and site need the same bundle with the "
            "same network.",
            site=self.name,
            **fields,
        )


def open_side(bundle_root: Path, dataset_dir: Path, site: str, overrides: Meta) -> Side:
    """Read a bundle and a site's data, and check them as a run would.

    Args:
        bundle_root: The bundle; its expressions are evaluated.
        dataset_dir: Folder with the site's folder.
        site: Name of the site.
        overrides: Id of the configuration to value.

    Raises:
        MedflError: If something is missing, or can't be done by one site without a run.
    """
    run = read_federation(
        Path(bundle_root), {"bundle_root": str(bundle_root), "dataset_dir": str(dataset_dir)} | overrides
    )
    settings = read_settings(Settings, run.settings, "the run")
    execution = read_settings(Execution, run.execution, "the execution")
    _check_possible(run, settings)
    method = load_plugins(files=run.plugins, disabled=run.disabled).make_method(METHOD, run.method_args)
    run.task.objective.check_metrics(run.task.metrics)
    data = run.source.cohort(run.dataset_dir, execution, [site]).sites[site]
    for name in check_unchanged(run.dataset_dir, [data], run.allow_changes):
        logger.warning("'%s' changed after `medfl partition`.", name)
    for leak in run.source.check_leaks(run.dataset_dir, [site], run.public, run.allow_leaks):
        logger.warning("%s", leak)
    keep_freed_memory()
    torch.set_num_threads(execution.threads)
    scale = Scale(data.shape, run.mean, run.std)
    task = dataclasses.replace(run.task, device=pick_device(execution.device), scale=scale)
    start = task.initial(settings.seed, settings.networks_by_site.get(site))
    shared = method.shared(task.load(start, settings.networks_by_site.get(site)), settings.norm_sync)
    task = task.weighted(countable(data.train, task.objective)) if settings.balance == "loss" else task
    filters = Filters(method.sends, method.sends_meta, settings, settings.rounds)
    return Side(site, method, task, settings, data, filters, {name: start[name] for name in shared})


def _check_possible(run: FederatedRun, settings: Settings) -> None:
    if run.method != METHOD:
        raise SettingsError(
            "method_not_supported",
            f"MONAI's client interface carries '{METHOD}' alone, got method '{run.method}'. Set the ids method and "
            "method_args to 'fedavg' and {}, or run the method with `medfl run`.",
            method=run.method,
            expected=METHOD,
        )
    for name in ("privacy", "compression"):
        if getattr(settings, name) is not None:
            raise SettingsError(
                "unsupported_setting",
                f"MONAI's client interface can't keep the promise of the setting '{name}': it has no account of what "
                "was released, and no receiver that decodes. Leave it out, or run the federation with `medfl run`.",
                setting=name,
            )


def _copy(value: torch.Tensor | np.ndarray | np.generic) -> torch.Tensor | None:
    """A plain CPU tensor with memory of its own; None of what can't be one."""
    try:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value)
        if value.layout != torch.strided or value.device.type == "meta":
            return None
        plain = value.detach().as_subclass(torch.Tensor)
        return plain.to("cpu", copy=True, memory_format=torch.contiguous_format)
    except (TypeError, ValueError):  # NumPy's objects, texts and foreign byte orders
        return None


def _is_count(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool


def _few(names: Iterable[object]) -> str:
    """Some of the names, for a message."""
    listed = sorted(map(repr, names))
    return names_and_more(listed, 5) or "none"
