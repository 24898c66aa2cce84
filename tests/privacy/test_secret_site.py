"""Test the secret random numbers of a site with the privacy unit ``sample``, which differ between trainings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from monai.transforms import Compose, RandGaussianNoised
from refusals import refused
from torch import nn

from medfl.contract import Capability, Reply, Request, Site
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, Simulation, simulate
from medfl.engine.site import SiteOptions, SiteRunner, Splits
from medfl.engine.store import Store
from medfl.errors import ContractError, StoreError
from medfl.plugins import load_plugins
from medfl.privacy.secret_site import derive_site_run_id
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, SmallNet, TensorData, make_data, make_plan, make_site, make_task
from medfl.toolkit.averaging import Averaging
from medfl.training.augment import Augmentation
from medfl.utils.wire import prefixed

PRIVACY = {"unit": "sample", "epsilon": 8.0, "clip": 0.5, "adjacency": "add_remove"}


class Fit(Averaging):
    """Method FedAvg, which supports DP-SGD."""

    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD})


class Draws(Fit):
    """Method that sends random numbers instead of an update: from the global generator, and from the site's stream."""

    def execute(self, site: Site, request: Request) -> Reply:
        numbers = {"global": torch.rand(8), "stream": torch.rand(8, generator=site.rng("a"))}
        return Reply(prefixed(numbers, "model/"))

    def check_tensors(self, task: Task, request: Request, tensors: dict[str, torch.Tensor]) -> None:
        """Accept all tensors, as the server does not aggregate them."""


class Twice(Fit):
    """Method that trains twice in a step."""

    def execute(self, site: Site, request: Request) -> Reply:
        super().execute(site, request)
        return super().execute(site, request)


def host_of(
    folder: Path,
    data: TensorData | None = None,
    task: Task | None = None,
    privacy: dict | None = PRIVACY,
    secret: bytes | None = None,
) -> SiteRunner:
    data = data or make_data(20, "x")
    plan = make_plan(Settings(rounds=2, batch_size=25, privacy=privacy), task or make_task("plain"))
    return SiteRunner("a", Splits(data, data, data), folder, plan, print, SiteOptions(secret))


def sent(host: SiteRunner, method: type[Averaging], meta: dict | None = None) -> dict[str, torch.Tensor]:
    request = Request("a", "fit", prefixed(host.task.initial(1), "model/"), meta or {})
    answer = host.step(method, request, 1, round_=1, tensors_digest="d")
    assert answer.refused is None
    return host.store.read(1, "reply/model/")


def dropout(share: float = 0.5) -> Task:
    def network() -> nn.Module:
        made = SmallNet(norm=False)
        made.head = nn.Sequential(nn.Dropout(share), nn.Linear(24, CLASSES))
        return made

    return dataclasses.replace(make_task("plain"), networks={"plain": network})


def test_all_numbers_of_a_site_come_from_its_secret(tmp_path: Path) -> None:
    def draw(name: str, secret: bytes | None = None, meta: dict | None = None, **more) -> dict[str, torch.Tensor]:
        return sent(host_of(tmp_path / name, secret=secret, **more), Draws, meta)

    first, again, other = draw("1"), draw("2"), draw("3", b"1" * 32)
    ordered, plain = (
        draw("4", meta={"another": "order"}),
        [draw(n, s, privacy=None) for n, s in (("5", None), ("6", b"2" * 32))],
    )
    for name in ("global", "stream"):
        assert torch.equal(first[name], again[name]), "an order that is carried out again"
        assert not any(torch.equal(first[name], draws[name]) for draws in (other, ordered, plain[0]))
        assert torch.equal(plain[0][name], plain[1][name]), "without privacy the run's seed decides"


@pytest.mark.parametrize("kind", ["dropout", "augmentation"])
def test_masks_and_changes_of_images_are_secret(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # without noise, and with the same rows drawn, only the masks are left to differ
    monkeypatch.setattr("medfl.privacy.samples.calibrate", lambda *args: 1e-9)
    change = Augmentation(Compose([RandGaussianNoised(keys="image", prob=1.0)]))
    task = dropout() if kind == "dropout" else dataclasses.replace(make_task("plain"), augmentation=change)

    def update(name: str, secret: bytes | None = None) -> torch.Tensor:
        host = host_of(tmp_path / name, task=task, secret=secret)
        return torch.cat([t.flatten() for t in sent(host, Fit).values()])

    first = update("1")
    assert torch.equal(first, update("2"))
    assert float((first - update("3", b"1" * 32)).abs().max()) > 1e-4


def test_other_pixels_and_other_layers_are_other_trainings() -> None:
    cases = [("run", "pixels", 0.5), ("other", "pixels", 0.5), ("run", "others", 0.5), ("run", "pixels", 0.4)]
    names = [derive_site_run_id(run_id, pixels, dropout(share), None) for run_id, pixels, share in cases]
    assert len(set(names)) == 4
    assert derive_site_run_id("run", "pixels", dropout(), "plain") == names[0]


def run(folder: Path, data: Splits, task: Task, ledger: Path, **more):
    case = Case(load_plugins(), "fedavg", {}, {"rounds": 2, "batch_size": 25, "epochs": 1})
    settings = case.settings_of(privacy=PRIVACY | {"ledger": ledger})
    return simulate(
        SimulatedRun(
            method=MethodChoice(name="fedavg", make=case.make_method),
            task=task,
            settings=settings,
            data=RunData(sites={"a": data}, digest="list"),
            folder=folder,
            simulation=Simulation(**more),
        )
    )


def test_runs_on_other_pixels_or_layers_are_counted_and_share_no_noise(tmp_path: Path) -> None:
    data = make_site(21, "a")
    data.digest = "list"
    train = data.train
    assert isinstance(train, TensorData)
    normalised = dataclasses.replace(data, train=TensorData(train.images * (1 + 1e-6), train.class_labels))
    ledger, updates = tmp_path / "ledger", []
    for number, (site, task) in enumerate([(data, dropout(0.1)), (normalised, dropout(0.1)), (data, dropout(0.2))]):
        facts = run(tmp_path / str(number), site, task, ledger).summary.privacy["a"]
        assert (facts.runs, facts.releases) == (number + 1, 2)
        update = Store(tmp_path / str(number) / "state" / "a").read(1, "reply/")
        updates.append(torch.cat([tensor.flatten() for tensor in update.values()]))
    assert run(tmp_path / "again", data, dropout(0.1), ledger).summary.privacy["a"].runs == 3
    assert float((torch.corrcoef(torch.stack(updates)) - torch.eye(3)).abs().max()) < 0.4


@pytest.mark.parametrize("change", ["pixels", "accounts"])
def test_a_run_does_not_continue_where_its_account_is_another(tmp_path: Path, change: str) -> None:
    class StoppedError(Exception):
        """Error that simulates a kill."""

    def stop(site: str, step: int) -> bool:
        if step == 2:
            raise StoppedError
        return False

    data, ledger = make_site(21, "a"), tmp_path / "ledger"
    data.digest = "list"
    with pytest.raises(StoppedError):
        run(tmp_path / "run", data, make_task("plain"), ledger, unavailable=stop)
    train = data.train
    assert isinstance(train, TensorData)
    if change == "pixels":
        other = dataclasses.replace(data, train=TensorData(train.images * 1.5, train.class_labels))
    else:
        other = data
        (ledger / "list.json").unlink()
        (tmp_path / "run" / "state" / "a" / "privacy.json").unlink()
    with refused(StoreError, "missing_releases", site="a", path=str(ledger / "list.json"), count=1):
        run(tmp_path / "run", other, make_task("plain"), ledger)


def test_a_second_training_in_a_step_is_refused(tmp_path: Path) -> None:
    with refused(ContractError, "several_trainings", site="a"):
        sent(host_of(tmp_path), Twice)
