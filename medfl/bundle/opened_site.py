"""A single site opened from a bundle without a run, and the check of the weights that a server sends to it.

An opened site has read its bundle and data, so that another federated engine can train it through MONAI's client
interface.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from medfl.bundle.data_fit import check_harmonisation
from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.federation import read_federation
from medfl.contract import Site, State
from medfl.data.partition_file import check_unchanged
from medfl.data.pooled import countable_targets
from medfl.data.sites import SiteData
from medfl.engine.checks import check_optimization
from medfl.engine.filters import Filters
from medfl.engine.runs.start_source import prepare_task
from medfl.errors import RefusedError, SettingsError
from medfl.networks.transfer.trainable import LORA
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings, read_settings
from medfl.task import ImageScale, Task
from medfl.toolkit.averaging import Averaging
from medfl.training.devices import pick_device
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.memory import keep_freed_memory
from medfl.utils.text import names_and_more

logger = logging.getLogger(__name__)

METHOD = "fedavg"
"""The only method that MONAI's client interface supports: a site receives full weights and returns weights or weight
differences."""

EXACT = 2**53
"""Largest count that may arrive as floating point: float64 represents all integers up to it exactly."""


@dataclasses.dataclass(frozen=True)
class OpenedSite:
    """A site with all objects that it needs to train and to score.

    Attributes:
        name: Name of the site.
        method: The method, FedAvg.
        task: Task of the bundle, on the site's device.
        settings: Settings of a run.
        data: Data of the site.
        filters: Checks and changes that each update passes before it leaves the site, such as a bound of its norm.
        start: Initial values of the tensors that server and site exchange. Received weights must have the same names,
            shapes and types.
    """

    name: str
    method: Averaging
    task: Task
    settings: Settings
    data: SiteData
    filters: Filters
    start: Tensors

    def view(self, round_: int, state: State, train: Dataset) -> Site:
        """Return the participant object through which the method sees the site in a round.

        Args:
            round_: Number of the round, from 1.
            state: State of the site that lasts between rounds.
            train: Training data.
        """
        site = Site(self.name, round_, state, self.task.in_round(round_, self.settings), self.settings)
        site.train, site.val = train, self.data.val
        return site

    def receive(self, weights: object) -> Tensors:
        """Check a server's weights and return copies of them on the CPU.

        An integer tensor, such as the batch counter of a batch-norm layer, may arrive as floating-point numbers,
        because some servers average all tensors. It is rounded.

        Args:
            weights: Maps state-dict names to tensors or NumPy arrays.

        Raises:
            RefusedError: If the weights don't have exactly the names, shapes and types of `start`, or are not finite.
        """
        if not isinstance(weights, Mapping):
            kind = type(weights).__name__
            raise self._refusal("wrong_type", f"expected weights by name, got {kind}", found=kind)
        names = set(weights)
        if names != set(self.start):
            missing, unknown = set(self.start) - names, names - set(self.start)
            raise self._refusal(
                "wrong_tensor_names",
                f"expected exactly the {len(self.start)} names of its model, got {len(names)}; missing: "
                f"{_first_names(missing)}; unknown: {_first_names(unknown)}",
                missing=missing,
                unknown=sorted(map(str, unknown)),
            )
        return {name: self._checked_copy(name, weights[name], start) for name, start in self.start.items()}

    def _checked_copy(self, name: str, value: Any, like: torch.Tensor) -> torch.Tensor:
        """Return a copy of one tensor with the type of `like`, or raise if it does not fit or is not finite."""
        if not isinstance(value, torch.Tensor | np.ndarray | np.generic):
            kind = type(value).__name__
            raise self._refusal(
                "wrong_type", f"expected '{name}' to be a tensor or a NumPy array, got {kind}", name=name, found=kind
            )
        shape, expected = tuple(value.shape), tuple(like.shape)
        if shape != expected:
            raise self._refusal(
                "wrong_shape",
                f"expected '{name}' of shape {expected}, got {shape}",
                name=name,
                expected=expected,
                found=shape,
            )
        tensor = _copy(value)
        counted = tensor is not None and tensor.is_floating_point() and _is_count(like)
        if tensor is None or (tensor.dtype != like.dtype and not counted):
            raise self._refusal(
                "wrong_dtype",
                f"expected '{name}' as a dense {like.dtype}, got {value.dtype}",
                name=name,
                expected=str(like.dtype),
                found=str(value.dtype),
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise self._refusal("not_finite", f"expected finite numbers in '{name}', got NaN or infinity", name=name)
        if counted and bool((tensor.abs() > EXACT).any()):
            raise self._refusal(
                "count_too_large",
                f"expected counts of at most {EXACT} in '{name}', got larger ones",
                name=name,
                maximum=EXACT,
            )
        return tensor.round().to(like.dtype) if counted else tensor

    def _refusal(self, code: str, why: str, **fields: Any) -> RefusedError:
        """Return the error about weights that the site does not accept."""
        return RefusedError(
            code,
            f"Site '{self.name}' refuses the server's weights: {why}. Server and site need the same bundle with the "
            "same network.",
            site=self.name,
            **fields,
        )


def open_site(bundle_root: Path, dataset_dir: Path, site: str, overrides: Meta) -> OpenedSite:
    """Read a bundle and a site's data, check them as a run does, and set the process's number of threads.

    Args:
        bundle_root: Folder of the bundle. Its expressions are evaluated.
        dataset_dir: Folder with the site's folder.
        site: Name of the site.
        overrides: Maps ids of the configuration to values.

    Raises:
        MedflError: If the bundle, an override or the data are not valid, or a setting needs a whole run.
    """
    run = read_federation(
        Path(bundle_root), {"bundle_root": str(bundle_root), "dataset_dir": str(dataset_dir)} | overrides
    )
    settings = read_settings(Settings, run.settings, "the run")
    execution = read_settings(Execution, run.execution, "the execution")
    _check_supported(run, settings)
    registry = load_plugins(files=run.plugins, disabled=run.disabled)
    method = registry.make_method(METHOD, run.method_args)
    run.task.objective.check_metrics(run.task.metrics)
    check_optimization(METHOD, method, run.task, settings, {})
    data = run.source.cohort(run.dataset_dir, execution, [site]).sites[site]
    check_harmonisation(run.bundle_root, [data], run.site_values)
    for name in check_unchanged(run.dataset_dir, [data], run.allow_changes):
        logger.warning("'%s' changed after `medfl partition`.", name)
    for leak in run.source.check_leaks(run.dataset_dir, [site], run.public, run.allow_leaks):
        logger.warning("%s", leak)
    keep_freed_memory()
    torch.set_num_threads(execution.threads)
    scale = ImageScale(data.shape, run.mean, run.std, data.image_features)
    task = dataclasses.replace(run.task, device=pick_device(execution.device), scale=scale)
    task = prepare_task(task, settings, registry, run.bundle_root)
    start = task.initial(settings.seed, settings.networks_by_site.get(site))
    shared = method.shared_names(task.load(start, settings.networks_by_site.get(site)), settings.norm_sync)
    task = (
        task.with_class_weights(countable_targets(data.train, task.objective)) if settings.balance == "loss" else task
    )
    filters = Filters(method.sends, method.sends_meta, settings, settings.rounds)
    return OpenedSite(site, method, task, settings, data, filters, {name: start[name] for name in shared})


def _check_supported(run: FederatedRun, settings: Settings) -> None:
    """Raise if a bundle's method or a setting does not work behind MONAI's client interface."""
    if run.method != METHOD:
        raise SettingsError(
            "method_not_supported",
            f"MONAI's client interface supports only the method '{METHOD}', got '{run.method}'. Set the ids method and "
            "method_args to 'fedavg' and {}, or run the method with `medfl run`.",
            method=run.method,
            expected=METHOD,
        )
    for name, is_used, reason, remedy in _unsupported_settings(settings):
        if is_used:
            raise SettingsError(
                "unsupported_setting",
                f"MONAI's client interface does not support the setting '{name}': {reason}. {remedy}, or run the "
                "federation with `medfl run`.",
                setting=name,
            )


class _UnsupportedSetting(NamedTuple):
    """Setting that does not work behind MONAI's client interface.

    Attributes:
        name: Name of the setting.
        is_used: Whether the run uses it.
        reason: Reason in words.
        remedy: Sentence without a full stop that says what to do.
    """

    name: str
    is_used: bool
    reason: str
    remedy: str = "Leave the setting out"


def _unsupported_settings(settings: Settings) -> list[_UnsupportedSetting]:
    """Return all settings that MONAI's client interface does not support."""
    has_ema = settings.optimization is not None and settings.optimization.ema is not None
    has_exact_lora = settings.train_part == LORA and settings.lora.aggregation == "exact"
    return [
        _UnsupportedSetting("privacy", settings.privacy is not None, "it has no privacy ledger"),
        _UnsupportedSetting("compression", settings.compression is not None, "no receiver decodes the updates"),
        _UnsupportedSetting(
            "harmonise_features", settings.harmonise_features != "none", "no message contains the sums of the sites"
        ),
        _UnsupportedSetting(
            "lora.aggregation",
            has_exact_lora,
            "the server of the federation averages the factors, so that 'exact' is not possible",
            "Set it to 'frozen_a' or 'naive'",
        ),
        _UnsupportedSetting(
            "optimization.ema", has_ema, "the server of the federation, which is not medfl's, averages the models"
        ),
    ]


def _copy(value: torch.Tensor | np.ndarray | np.generic) -> torch.Tensor | None:
    """Return a dense copy of a tensor or array on the CPU, or None if that is not possible."""
    try:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value)
        if value.layout != torch.strided or value.device.type == "meta":
            return None
        plain = value.detach().as_subclass(torch.Tensor)
        return plain.to("cpu", copy=True, memory_format=torch.contiguous_format)
    except (TypeError, ValueError):  # NumPy arrays of objects or text, or of another byte order
        return None


def _is_count(tensor: torch.Tensor) -> bool:
    """Return whether a tensor contains integers."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool


def _first_names(names: Iterable[object]) -> str:
    """Return the first five names, sorted, for a message."""
    listed = sorted(map(repr, names))
    return names_and_more(listed, 5) or "none"
