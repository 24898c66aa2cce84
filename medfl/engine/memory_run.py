"""Run a federation on PyTorch data sets, without a bundle and without prepared data."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfl.contract import Method
from medfl.data.pooled import EmptyDataset, all_targets
from medfl.data.torch_data import as_dataset
from medfl.engine.adversaries.simulation import read_attackers
from medfl.engine.evaluation import MetricRow, add_frozen_tensors, build_predictor
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.console import round_progress
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, SimulationResult, simulate
from medfl.engine.runs.site_bundles import write_predictions
from medfl.engine.runs.start_source import prepare_task
from medfl.engine.site import Splits
from medfl.errors import SettingsError, StoreError
from medfl.plugins import Registry
from medfl.settings import Execution, Settings, read_settings
from medfl.task import Task
from medfl.training.devices import task_device, with_worker_devices

SPLIT_NAMES = ("training", "validation", "test")
"""Names of a site's data sets, in the order in which a caller gives them."""


def run_in_memory(
    task: Task,
    sites: Mapping[str, Sequence[Any]],
    method: str | Method,
    method_args: Mapping[str, Any],
    options: Mapping[str, Any],
    folder: Path,
    registry: Registry,
    on_round: Callable[[int, list[MetricRow]], object] | None = None,
    shows_progress: bool = False,
) -> Callable[[str | None], nn.Module]:
    """Run a federation on PyTorch data sets, and return a function that loads its models.

    Args:
        task: The learning problem.
        sites: Maps each site to its training, validation and test data, in this order; None stands for missing data.
        method: Name of a method, or a method object.
        method_args: Settings of a method that is given by its name.
        options: Maps the names of settings in `medfl.settings.Settings` and `medfl.settings.Execution` to values.
        folder: The run folder.
        registry: Loaded plugins.
        on_round: Function that is called after each round with the number and the rows of metrics of the round.
        shows_progress: Whether to show a progress bar of the rounds.

    Returns:
        A function that takes the name of a site and returns the model that the site exports. For None it returns the
        global model. It raises StoreError if the run has no such model.

    Raises:
        MedflError: If the settings, data, method or run folder are not valid.
    """
    values = dict(options)
    execution = read_settings(
        Execution, {name: values.pop(name) for name in Execution.model_fields if name in values}, "the execution"
    )
    settings = read_settings(Settings, values, "the run", also=Execution.model_fields)
    execution = with_worker_devices(execution)
    data = {name: _splits(name, parts) for name, parts in sites.items()}
    task = prepare_task(replace(task, device=task_device(execution)), settings, registry)
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(round_progress(settings.rounds, task.metrics[0])) if shows_progress else None

        def after_round(round_: int, rows: list[MetricRow]) -> None:
            for function in (show, on_round):
                if function is not None:
                    function(round_, rows)

        run = SimulatedRun(
            method=_choose_method(method, method_args, registry),
            task=task,
            settings=settings,
            data=RunData(sites=data, digest=_digest(data)),
            folder=folder,
            execution=execution,
            simulation=Simulation(attackers=read_attackers(settings.adversaries, registry)),
            callbacks=Callbacks(on_round=after_round, export=_export_predictions),
        )
        result = simulate(run)
    made, of_sites = run.method.make(), {name: result.models_for_images(run, name) for name in result.models}
    of_server = add_frozen_tensors(made, task, result.outcome.models)

    def load_model(site: str | None) -> nn.Module:
        models = of_server if site is None else of_sites.get(site, {})
        kind = "personal" if site is not None and "personal" in models else "global"
        if kind not in models:
            raise StoreError(
                "missing_model",
                f"The run has no {'global model' if site is None else f'model of a site {site!r}'}: method "
                f"'{run.method.name}', sites {', '.join(run.data.sites)}.",
                site=site,
            )
        return build_predictor(made, replace(task, device="cpu"), models[kind])

    return load_model


def _splits(site: str, parts: Sequence[Any]) -> Splits:
    """Return the data of a site as `Splits`.

    Raises:
        SettingsError: If `parts` is not a sequence of three data sets.
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) != len(SPLIT_NAMES):
        raise SettingsError(
            "wrong_setting_type",
            f"expected three data sets for site '{site}', ({', '.join(SPLIT_NAMES)}), each of which may be None; got "
            f"{len(parts) if isinstance(parts, Sequence) else type(parts).__name__}.",
            setting="sites",
            site=site,
        )
    train, val, test = (
        EmptyDataset() if part is None else as_dataset(part, f"{name} data of site '{site}'")
        for name, part in zip(SPLIT_NAMES, parts, strict=True)
    )
    return Splits(train=train, val=val, test=test)


def _choose_method(method: str | Method, args: Mapping[str, Any], registry: Registry) -> MethodChoice:
    needs = {record.name: record.needs for record in registry.methods.values()}
    if isinstance(method, str):
        return MethodChoice(
            name=method, make=lambda: registry.make_method(method, args), args=dict(args), needs_by_method=needs
        )
    if args:
        raise SettingsError(
            "incompatible_settings",
            "expected the method's settings in the method object, not as method_args as well.",
            settings=["method", "method_args"],
        )
    dump = method.model_dump(mode="json")
    return MethodChoice(name=type(method).__name__, make=lambda: method, args=dump, needs_by_method=needs)


def _digest(sites: Mapping[str, Splits]) -> str:
    """Return a SHA-256 of the sizes and targets of all data, which distinguishes runs on different data."""
    total = hashlib.sha256()
    for name, splits in sorted(sites.items()):
        for part in (splits.train, splits.val, splits.test):
            targets = all_targets(part) if len(part) else torch.empty(0)
            total.update(f"{name} {tuple(targets.shape)}".encode() + targets.contiguous().numpy().tobytes())
    return total.hexdigest()


def _export_predictions(run: SimulatedRun, result: SimulationResult) -> None:
    """Write the predictions of each site's model for its test data, for reports and comparisons."""
    method = run.method.make()
    for site in sorted(result.models):
        models = result.models_for_images(run, site)
        model = models.get("personal") or models.get("global")
        if model is not None:
            predictor = build_predictor(method, run.task, model)
            write_predictions(run.folder / "sites" / site, predictor, run.data.sites[site], run.task, run.settings, {})
