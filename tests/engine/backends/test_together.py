"""Several sites that take their steps at once end where each of them ends alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_harness import Child
from refusals import refused
from torch import nn
from toys import Toy, builtin

from medfl.contract import Site, State
from medfl.data.pooled import TensorData
from medfl.engine.site import Splits
from medfl.engine.store import Store
from medfl.errors import ContractError, DataError, MedflError, SettingsError
from medfl.networks.cnn import CNN4
from medfl.objectives import Binary, Multiclass, Multilabel, Objective, Regression, Survival
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import Case, SmallNet, bits, make_data, make_sites, make_task, scores
from medfl.testing.tasks import make_sites_of, make_task_of
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch
from medfl.training.stacked import Arrival, Stack
from medfl.training.together import Together

SIZES = {"site-1": 21, "site-2": 13, "site-3": 8}
SAMPLE = {"unit": "sample", "epsilon": 50.0, "clip": 1.0}


def precise_sites(sizes: dict[str, int] | None = None) -> dict[str, Splits]:
    """Unlike sites whose images are float64."""

    def double(data: Any) -> TensorData:
        return TensorData(data.images.double(), data.targets(torch.arange(len(data))))

    return {
        name: Splits(double(data.train), double(data.val), double(data.test))
        for name, data in make_sites(sizes or SIZES).items()
    }


def precise_task(**changes: Any) -> Task:
    """The tiny task in float64, where rounding is far below what any mistake makes."""
    networks: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: SmallNet().double(),
        "plain": lambda: SmallNet(norm=False).double(),
    }
    return replace(make_task(), networks=networks, **changes)


def far(case: Case, folder: Path, together: int, **options: Any) -> float:
    """Largest difference in any model of the run and any row of its metrics, one site a time against several."""
    options = {
        "task": precise_task(),
        "sites": precise_sites(),
        "server_test": precise_sites()["site-1"].test,
    } | options
    if not (folder / "alone").exists():
        case.run(folder / "alone", **options)
    plain = bits(case.run(folder / "alone", **options))  # from disk
    place = folder / f"together-{together}"
    models = bits(case.run(place, together=together, **options))
    assert {who: set(tensors) for who, tensors in models.items()} == {who: set(plain[who]) for who in plain}
    rows = [[line.rsplit(",", 1) for line in scores(run)] for run in (folder / "alone", place)]
    assert [row[0] for row in rows[0]] == [row[0] for row in rows[1]]
    differences = [abs(float(a) - float(b)) for (_, a), (_, b) in zip(*(run[1:] for run in rows), strict=True)]
    for who, tensors in models.items():
        differences += [float((tensors[name].double() - plain[who][name].double()).abs().max()) for name in tensors]
    return max(differences)


@pytest.mark.parametrize(
    ("method", "args", "settings"),
    [
        ("fedavg", {}, {"epochs": 2}),
        ("fedavg", {"gradient_clip": 0.2}, {"lr_decay": 0.5}),
        ("fedprox", {"mu": 0.5}, {"epochs": 2, "fraction": 0.7}),
        ("fedbn", {}, {"epochs": 2, "balance": "sampling", "moments": ["aggregated", "trained"]}),
        ("fedadam", {}, {"steps": 3, "norm_sync": "frozen"}),
    ],
)
def test_several_sites_end_where_each_ends_alone(
    method: str, args: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    case = builtin(method, **settings)
    case.args = args
    for together in (2, 3):
        assert far(case, tmp_path, together) < 1e-10


@pytest.mark.parametrize("kind", [partial(torch.optim.Adam, lr=0.01, weight_decay=0.1), torch.optim.AdamW])
def test_what_an_optimiser_remembers_is_each_sites_own(kind: Any, tmp_path: Path) -> None:
    """Adam counts its steps, and after a first epoch unlike sites have taken unlike numbers of them."""
    assert far(builtin("fedavg", epochs=2), tmp_path, 3, task=precise_task(optimizer=kind)) < 1e-10


def test_each_sites_classes_weigh_as_they_do_alone(tmp_path: Path) -> None:
    options = {"task": make_task(), "sites": make_sites(), "server_test": make_data(4, "test")}
    assert far(builtin("fedavg", balance="loss"), tmp_path, 3, **options) < 1e-6


@pytest.mark.parametrize("objective", [Binary(), Multilabel(3), Regression(2)], ids=lambda objective: objective.name)
def test_other_objectives(objective: Objective, tmp_path: Path) -> None:
    sites = make_sites_of(objective, {"site-1": 9, "site-2": 7, "site-3": 12})
    options = {"task": make_task_of(objective), "sites": sites, "server_test": sites["site-1"].test}
    assert far(builtin("fedavg"), tmp_path, 3, **options) < 1e-6


def test_a_loss_that_torch_can_not_stack_is_refused(tmp_path: Path) -> None:
    """Cox's: which rows have an event decides what it computes."""
    sites = make_sites_of(Survival(), {"site-1": 9, "site-2": 7})
    options: Any = {"task": make_task_of(Survival()), "sites": sites, "server_test": sites["site-1"].test}
    with refused(SettingsError, "unstackable_loss"):
        builtin("fedavg").run(tmp_path, together=2, **options)


def test_the_four_layer_cnn_in_single_precision(tmp_path: Path) -> None:
    def images(n: int, seed: int) -> TensorData:
        generator = torch.Generator().manual_seed(seed)
        return TensorData(torch.randn(n, 1, 12, 12, generator=generator), torch.arange(n) % 3)

    sites = {f"site-{i}": Splits(images(6 + i, i), images(0, 0), images(2, 9)) for i in range(3)}
    task = Task(
        {"cnn4": lambda: CNN4(1, 3, size=12)},
        "cnn4",
        nn.CrossEntropyLoss(),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        Multiclass(3),
    )
    for method in ("fedavg", "fedprox"):
        options = {"task": task, "sites": sites, "server_test": images(2, 8)}
        assert far(builtin(method), tmp_path / method, 3, **options) < 1e-6


def test_one_at_a_time_makes_no_stack_and_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = builtin("fedavg")
    plain = case.run(tmp_path / "plain")
    monkeypatch.setattr(Stack, "step", None)
    again = case.run(tmp_path / "again", together=1)
    assert bits(again).keys() == bits(plain).keys()
    assert all(torch.equal(t, bits(again)[who][name]) for who, ts in bits(plain).items() for name, t in ts.items())


def test_sites_step_with_as_many_others_as_have_a_batch_of_that_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 5: the sites have 5, 5, 5, 5; 5, 5, 3; and 5, 3 (a batch of one teaches batch norm nothing)."""
    passes: list[tuple[int, int]] = []
    step = Stack.step

    def noted(self: Stack, arrivals: list[Arrival]) -> list[torch.Tensor]:
        passes.append((len(arrivals), len(arrivals[0].batch.images)))
        return step(self, arrivals)

    monkeypatch.setattr(Stack, "step", noted)
    builtin("fedavg", rounds=1).run(tmp_path, together=3)
    assert passes == [(3, 5), (2, 5), (2, 3), (1, 5), (1, 5)]


def test_workers_change_no_bit(tmp_path: Path) -> None:
    runs = [builtin("fedavg").run(tmp_path / str(n), together=2, workers=n) for n in (1, 2)]
    here, there = map(bits, runs)
    assert all(torch.equal(t, there[who][name]) for who, tensors in here.items() for name, t in tensors.items())


def test_privacy_is_reckoned_as_for_sites_alone(tmp_path: Path) -> None:
    """Noise is keyed by what is noised, so another rounding has other noise; all else is the same."""
    case = builtin("fedavg", norm_sync="params", privacy={"epsilon": 5.0, "clip": 0.1})
    accounts = [case.run(tmp_path / str(n), together=n).summary.privacy for n in (1, 3)]
    assert accounts[0] == accounts[1]


# ---- killed


@pytest.mark.parametrize("saved", [0, 1])
def test_killed_and_continued(saved: int, tmp_path: Path) -> None:
    """Between steps the bits are those of an unbroken run; amid a step fewer sites are left to be in the stack."""
    case = builtin("fedavg", rounds=3)
    options: dict[str, Any] = {"task": precise_task(), "sites": precise_sites(), "together": 3}
    options["server_test"] = precise_sites()["site-1"].test
    whole = bits(case.run(tmp_path / "whole", **options))
    save, saves = Store.save, []

    def mortal(self: Store, step: int, *args: Any, **more: Any) -> Any:
        if step == 2 and self.folder.name != "server":
            if len(saves) == saved:
                os.killpg(0, signal.SIGKILL)
            saves.append(self.folder.name)
        return save(self, step, *args, **more)

    def work() -> None:
        Store.save = mortal  # type: ignore[method-assign]
        case.run(tmp_path / "killed", **options)

    assert Child(work).end() == "killed"
    left = [path.parent.name for path in (tmp_path / "killed" / "state").glob("site-*/*2.safetensors")]
    assert len(left) == saved
    done = bits(case.run(tmp_path / "killed", **options))
    for who, tensors in whole.items():
        for name, tensor in tensors.items():
            assert (
                torch.equal(done[who][name], tensor) if not saved else torch.allclose(done[who][name], tensor, 0, 1e-10)
            )


def test_a_run_that_goes_on_with_another_number_says_that_bits_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = builtin("fedavg")
    case.run(tmp_path, rounds=1)
    case.run(tmp_path, rounds=2, together=2)
    assert "started with other execution; its last bits may differ" in caplog.text


# ---- what each site has for itself


class Drawing(TensorData):
    """Its images get noise from the global streams, as a transform of somebody else's would draw it."""

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
        images, targets = super().batch(rows)
        return images + torch.randn_like(images) + np.random.normal(), targets


def test_global_streams_are_each_sites_own(tmp_path: Path) -> None:
    sites = {
        name: replace(data, train=Drawing(data.train.images, data.train.targets(torch.arange(len(data.train)))))  # type: ignore[attr-defined]
        for name, data in precise_sites().items()
    }
    assert far(builtin("fedavg"), tmp_path, 3, sites=sites) < 1e-10


class Unused(SmallNet):
    """Has a parameter that its outputs don't hang on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(3))


def test_a_parameter_that_the_loss_leaves_out_stays_as_it_is(tmp_path: Path) -> None:
    """An optimiser passes by what has no gradient, and would let its weight decay shrink what has one of zeros."""
    optimizer = partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)
    task = replace(precise_task(optimizer=optimizer), networks={"norm": lambda: Unused().double()})
    assert far(builtin("fedavg"), tmp_path, 3, task=task) < 1e-10


class Own(Averaging):
    """Its loss looks at what a site has for itself."""

    what: str

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        value: Any = fit
        for name in self.what.split("."):
            value = getattr(value, name)
        return super().loss(fit, batch)


@pytest.mark.parametrize(
    "what", ["extra", "log", "meta", "steps", "optimizer", "site.train", "site.state", "site.name"]
)
def test_a_loss_that_looks_at_a_sites_own_is_refused(what: str, tmp_path: Path) -> None:
    Toy(Own, what=what).run(tmp_path / "alone", rounds=1)
    with refused(SettingsError, "site_specific_loss", name=what):
        Toy(Own, what=what).run(tmp_path / "together", together=3)


class Common(Averaging):
    """Its loss looks at what all sites share."""

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        pull = sum((p - fit.received[f"model/{name}"]).square().sum() for name, p in fit.parameters())
        return super().loss(fit, batch) + fit.site.settings.seed * fit.site.round * pull


def test_a_loss_may_look_at_the_order(tmp_path: Path) -> None:
    assert far(Toy(Common), tmp_path, 3) < 1e-10


class Hidden(SmallNet):
    """Scales its outputs by a number that is in no tensor, another one for each network that is built."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        Hidden.built += 1
        self.factor = float(Hidden.built)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * super().forward(images)


class Branching(SmallNet):
    """What it computes hangs on what it sees."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * (2 if images.sum() > 0 else 1)


class Noisy(SmallNet):
    """Draws noise."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images + torch.randn_like(images))


@pytest.mark.parametrize(
    ("network", "kind", "code", "cause"),
    [
        (Hidden, ContractError, "unlike_gradients", ""),
        (Branching, SettingsError, "unstackable_loss", "control flow"),
        (Noisy, SettingsError, "unstackable_loss", "random"),
    ],
)
def test_networks_that_make_no_stack(
    network: type[nn.Module], kind: type[MedflError], code: str, cause: str, tmp_path: Path
) -> None:
    with refused(kind, code) as caught:
        builtin("fedavg").run(tmp_path, together=3, task=replace(make_task(), networks={"norm": network}))
    assert cause in caught.value.fields.get("cause", "")
    assert "'together' at 1" in str(caught.value)


# ---- errors


class Failing(Averaging):
    """One site fails when it has trained, while the others wait for their next step."""

    def after_fit(self, fit: Fit) -> None:
        if fit.site.name == "site-2":
            raise DataError("test_error", "of the test", site=fit.site.name)


def test_an_error_of_one_site_ends_all(tmp_path: Path) -> None:
    def wait(name: str, log: list[str]) -> str:
        try:
            site = Site(name, 1, State(), make_task(), Settings(rounds=1, batch_size=5))
            site.train = make_data(SIZES[name], name)
            Failing().fit(site, make_task().initial(0))
        except BaseException as error:
            log.append(f"{name}: {type(error).__name__}")
            raise
        return name

    ended: list[str] = []
    threads, state = threading.active_count(), torch.get_rng_state()
    with refused(DataError, "test_error", site="site-2"):
        Together().run([partial(wait, name, ended) for name in SIZES])
    assert ended == ["site-2: DataError", "site-1: _Abandoned", "site-3: _Abandoned"]
    assert threading.active_count() == threads
    assert torch.equal(torch.get_rng_state(), state)


# ---- refusals


class Clipping(Averaging):
    def after_batch(self, fit: Fit) -> None:
        pass


class Dropping(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Dropout(0.1), self.head)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("case", "options", "code", "fields"),
    [
        (builtin("fedskd"), {}, "method_not_supported", {"method": "fedskd"}),
        (
            builtin("scaffold"),
            {},
            "method_not_supported",
            {"method": "scaffold", "members": ["before_fit", "extra_up"]},
        ),
        (builtin("centralized"), {}, "method_not_supported", {"method": "centralized", "members": None}),
        (Toy(Clipping), {}, "method_not_supported", {"method": "clipping", "members": ["after_batch"]}),
        (
            builtin("fedavg"),
            {"task": replace(make_task(), networks={"norm": Dropping})},
            "network_not_supported",
            {"module": "head.0"},
        ),
        (
            builtin("fedavg"),
            {"task": replace(make_task(), optimizer=partial(torch.optim.RMSprop, lr=0.1))},
            "unsupported_optimizer",
            {"optimizer": "RMSprop", "expected": ["SGD", "Adam", "AdamW"]},
        ),
        (builtin("fedavg", precision="amp"), {}, "incompatible_settings", {"settings": ["precision", "together"]}),
        (
            builtin("fedavg", secure_aggregation={"threshold": 2}, norm_sync="params"),
            {},
            "incompatible_settings",
            {"settings": ["secure_aggregation", "together"]},
        ),
        (
            builtin("fedavg", norm_sync="params", privacy=SAMPLE),
            {"task": make_task("plain")},
            "incompatible_settings",
            {"settings": ["privacy.unit", "together"]},
        ),
        (builtin("fedproto", networks_by_site={"site-1": "wide"}), {}, "method_not_supported", {"method": "fedproto"}),
    ],
)
def test_what_does_not_go_is_refused_by_name_before_anything_begins(
    case: Case, options: dict[str, Any], code: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    with refused(SettingsError, code, feature="together", **fields):
        case.run(tmp_path / "run", together=2, **options)
    assert not (tmp_path / "run" / "run.json").exists()
