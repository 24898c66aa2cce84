"""FedAvg behind MONAI's client interface: same results as a run, and the weights that it accepts and returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interop_toys import OPTIONS, SITES, Files, global_weights, opened_once, send, trained, write_files
from monai.bundle import ConfigParser
from monai.fl.client import ClientAlgo, MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from refusals import refused

from medfl.bundle.abortable_dataset import AbortedError
from medfl.bundle.client_algo import ROUND, SPLIT, CallError, MedflAlgo
from medfl.data.sites import load_sites
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.records import read_metrics
from medfl.engine.runs.simulation import RunData, SimulatedRun, SimulationResult, simulate
from medfl.engine.site import Splits
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.task import ImageScale
from medfl.types import Tensors
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import select, tensors_equal


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    with opened_once():
        yield write_files(tmp_path_factory.mktemp("interop"))


# ---- the numbers of a run


def mean(replies: list[ExchangeObject]) -> Tensors:
    """Compute a server's weighted mean in float64. Counters take the largest value."""
    sizes = [reply.statistics[FlStatistics.DATA_COUNT] for reply in replies]
    averaged: Tensors = {}
    for name, first in replies[0].weights.items():
        parts = [reply.weights[name] for reply in replies]
        if first.is_floating_point():
            averaged[name] = parts[0].double() * (sizes[0] / sum(sizes))
            for part, size in zip(parts[1:], sizes[1:], strict=True):
                averaged[name].add_(part.double(), alpha=size / sum(sizes))
        else:
            averaged[name] = torch.stack(parts).amax(0)
    return averaged


def drive(algos: list[ClientAlgo], weights: Tensors, rounds: int = 2) -> Tensors:
    """Run the server of FedAvg over MONAI's interface."""
    for _ in range(rounds):
        replies = []
        for algo in algos:
            algo.train(send(weights))
            replies.append(algo.get_weights())
        step = mean(replies)
        if replies[0].weight_type == WeightType.WEIGHT_DIFF:
            step = {name: weights[name].to(step[name].dtype) + update for name, update in step.items()}
        weights = {name: value.to(weights[name].dtype) for name, value in step.items()}
    return weights


def reference(files: Files, folder: Path, **changes: Any) -> SimulationResult:
    """Run the same federation without the code under test and return its models."""
    options = OPTIONS | changes
    parser = ConfigParser()
    parser.read_config([str(files.bundle / "configs" / name) for name in ("train.json", "federate.json")])
    parser.update(pairs=options | {"bundle_root": str(files.bundle), "dataset_dir": str(files.cohort)})
    task = parser.get_parsed_content("task")
    sites = load_sites(files.cohort, task.objective)
    scale = ImageScale(sites["site-01"].shape, (0.5,), (0.5,))
    known = {name: value for name, value in options.items() if name in Settings.model_fields}
    registry = load_plugins()
    run = SimulatedRun(
        method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
        task=dataclasses.replace(task, device="cpu", scale=scale),
        settings=Settings(rounds=2, **known),
        data=RunData(sites={name: Splits(site.train, site.val, site.test) for name, site in sites.items()}),
        folder=folder,
    )
    return simulate(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 2},
        {"steps": 3, "balance": "loss"},
        {"norm_sync": "none", "balance": "sampling"},
    ],
    ids=str,
)
def test_it_trains_and_scores_with_the_bits_of_a_run(files: Files, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = reference(files, tmp_path, **changes)
    algos = [files.make(site, **changes) for site in SITES]
    weights = drive(list(algos), global_weights(files, **changes))
    expected = select(result.outcome.published, "model/")
    assert tensors_equal(weights, expected)
    rows = read_metrics(tmp_path / "metrics.csv")
    for algo in algos:
        for split, short in (("validation", "val"), ("test", "test")):
            scores = algo.evaluate(send(weights), {SPLIT: split}).metrics
            of_run = rows[(rows.site == algo.site) & (rows["round"] == 2) & (rows.split == short)]
            assert scores == dict(zip(of_run.metric, of_run.value, strict=True))


def test_weights_give_the_same_mean_as_differences(files: Files) -> None:
    """Check equality up to rounding: the mean of w + d is rounded in another step than w plus the mean of d."""
    start = global_weights(files)
    by_difference = drive([files.make(site) for site in SITES], start)
    by_weights = drive([files.make(site, send_weight_diff=False) for site in SITES], start)
    for name, tensor in by_difference.items():
        assert torch.allclose(by_weights[name].double(), tensor.double(), atol=1e-6)
    assert not tensors_equal(by_weights, start)


def test_the_round_may_be_named(files: Files) -> None:
    """Check that a restarted process trains the next round as without the restart."""
    start, steady = global_weights(files), files.make()
    first, second = trained(steady, start), trained(steady, start)
    assert not tensors_equal(first, second)
    assert tensors_equal(trained(files.make(), start, {ROUND: 2}), second)
    for wrong in (0, True, "2"):
        with refused(SettingsError, "setting_out_of_range", setting=ROUND, minimum=1, found=repr(wrong)):
            steady.train(send(start), {ROUND: wrong})


# ---- as MONAI's own is driven


@pytest.mark.filterwarnings("ignore:executing the bundle config")
def test_a_server_of_monais_algo_drives_it_unchanged(files: Files) -> None:
    options = {"dataset_dir": str(files.cohort), "num_classes": 3, "size": 8, "batch_size": 4}
    start = global_weights(files)
    replies = []
    with seeded_generators(0, "bundle"):
        for algo in (MonaiAlgo(str(files.bundle), train_kwargs=options, config_evaluate_filename=None), files.make()):
            algo.initialize(extra={ExtraItems.CLIENT_NAME: "site-01", ExtraItems.APP_ROOT: str(files.bundle)})
            algo.abort()
            algo.train(data=send(start), extra={})
            replies.append(algo.get_weights(extra={}))
            algo.finalize()
    monais, ours = replies
    assert ours.is_valid_weights()
    assert ours.weight_type == monais.weight_type == WeightType.WEIGHT_DIFF
    assert {name: (t.dtype, t.shape) for name, t in ours.weights.items()} == {
        name: (t.dtype, t.shape) for name, t in monais.weights.items()
    }
    assert ours.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] == 4
    assert monais.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] == 4
    assert ours.statistics["data_count"] == 16


class Context:
    """Object that some engines pass as ``extra`` to abort and finalize, in place of a dict."""


def test_an_engine_that_sends_arrays_and_averages_counters(files: Files) -> None:
    start, algo = global_weights(files), files.make()
    expected = trained(files.make(), start)
    arrays: dict[str, Any] = {name: tensor.numpy().copy() for name, tensor in start.items()}
    counters = [name for name, tensor in start.items() if not tensor.is_floating_point()]
    assert counters
    arrays |= {name: np.float64(arrays[name]) + 1e-9 for name in counters}
    for array in arrays.values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    assert set(algo.evaluate(send(arrays)).metrics) == {"accuracy", "auc"}
    algo.train(send(arrays), extra={ExtraItems.ABORT: Signal(at=None)})
    reply = algo.get_weights()
    for name in reply.weights:  # engines turn the weights into arrays in place
        reply.weights[name] = reply.weights[name].detach().cpu().numpy()
    assert tensors_equal({name: torch.from_numpy(array) for name, array in reply.weights.items()}, expected)
    algo.abort(Context())
    algo.finalize(Context())


def test_models_by_type(files: Files) -> None:
    algo, start = files.make(), global_weights(files)
    final = {ExtraItems.MODEL_TYPE: ModelType.FINAL_MODEL}
    with refused(CallError, "no_weights_to_send", site="site-01", trained=False):
        algo.get_weights(final)
    update = trained(algo, start)
    reply = algo.get_weights(final)
    assert reply.weight_type == WeightType.WEIGHTS
    for name, tensor in reply.weights.items():
        assert torch.allclose(tensor.double(), start[name].double() + update[name].double(), atol=1e-6)
    with refused(RefusedError, "unknown_model", found="fl_best_model"):
        algo.get_weights({ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL})


# ---- what comes in and what goes out


def test_nothing_is_shared_with_the_engine(files: Files) -> None:
    start = global_weights(files, norm_sync="none")
    algo, untouched = (files.make(norm_sync="none") for _ in range(2))
    expected = [trained(untouched, start) for _ in range(2)]
    for again in expected:
        incoming = {name: tensor.clone() for name, tensor in start.items()}
        data = send(incoming)
        algo.train(data)
        assert list(data.weights) == list(start)
        assert tensors_equal(incoming, start)
        for tensor in incoming.values():
            tensor.fill_(7)
        for extra in ({}, {ExtraItems.MODEL_TYPE: ModelType.FINAL_MODEL}):
            reply = algo.get_weights(extra)
            for tensor in reply.weights.values():
                tensor.fill_(7)
            reply.weights.clear()
            reply.statistics.clear()
        assert tensors_equal(algo.get_weights().weights, again)
        assert algo.get_weights().statistics


# ---- the order of calls


class Signal:
    """Abort signal of an engine, read before each batch. It is triggered from read number `at`; never for None."""

    def __init__(self, at: int | None) -> None:
        self.at, self.looks = at, 0

    @property
    def triggered(self) -> bool:
        self.looks += 1
        return self.at is not None and self.looks >= self.at


class Caller(Signal):
    """Signal that calls `abort` at the second batch, as another thread may, and is never triggered itself."""

    def __init__(self, algo: MedflAlgo) -> None:
        super().__init__(None)
        self._algo = algo

    @property
    def triggered(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            self._algo.abort()
        return False


@pytest.mark.parametrize("by_call", [True, False])
def test_an_abort_stops_before_the_next_batch_and_keeps_nothing(files: Files, by_call: bool) -> None:
    start, algo = global_weights(files, norm_sync="none"), files.make(norm_sync="none")
    algo.train(send(start))
    signal = Caller(algo) if by_call else Signal(at=3)
    with refused(AbortedError, "call_aborted", site="site-01", batches=2):
        algo.train(send(start), {ExtraItems.ABORT: signal})
    with refused(CallError, "no_weights_to_send", trained=True):
        algo.get_weights()
    steady = files.make(norm_sync="none")
    steady.train(send(start))
    assert tensors_equal(trained(algo, start), trained(steady, start))


def test_an_evaluation_is_aborted_too(files: Files) -> None:
    start, algo = global_weights(files), files.make()
    with refused(AbortedError, "call_aborted", site="site-01", batches=0):
        algo.evaluate(send(start), {ExtraItems.ABORT: Signal(at=1)})
    algo.abort()
    assert algo.evaluate(send(start), {ExtraItems.ABORT: Signal(at=None)}).metrics


def test_calls_in_the_wrong_order(files: Files) -> None:
    start, fresh = global_weights(files), MedflAlgo(files.bundle, files.cohort, "site-01", OPTIONS)
    fresh.abort()
    fresh.finalize()
    calls: list[Callable[[], Any]] = [
        lambda: fresh.train(send(start)),
        lambda: fresh.evaluate(send(start)),
        lambda: fresh.get_weights(),
    ]
    for call in calls:
        with refused(CallError, "not_initialized", site="site-01"):
            call()
    fresh.initialize()
    with refused(CallError, "no_weights_to_send", site="site-01", trained=False):
        fresh.get_weights()
    first = trained(fresh, start)
    fresh.initialize()
    assert tensors_equal(trained(fresh, start), first)
    fresh.finalize()
    with refused(CallError, "not_initialized", site="site-01"):
        fresh.get_weights()
