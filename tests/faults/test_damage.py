"""Damaged, missing and foreign files in a run folder: fall back and say so, or refuse and say why."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_harness import run_until
from refusals import refused
from toys import Ring, Toy, builtin, snapshot

from medfl.contract import Plan, Server
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.store import Store
from medfl.errors import DamagedError, StoreError
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import make_sites, make_task
from medfl.toolkit.averaging import Averaging


def newest(folder: Path, who: str) -> Path:
    store = Store(folder / "state" / who)
    return store.path(store.steps()[-1])


def flip(at: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        index = min(int(len(data) * at), len(data) - 1)
        return data[:index] + bytes([data[index] ^ 4]) + data[index + 1 :]

    return change


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "cut by one": lambda data: data[:-1],
    "bit in its head": flip(0.0),
    "bit in its JSON": flip(0.1),
    "bit in its numbers": flip(0.9),
}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A ring stopped before step 5 of 6, after a training with visiting models, and what an unbroken run ends with."""
    root = tmp_path_factory.mktemp("ring")
    Toy(Ring).run(root / "whole", rounds=3)
    return run_until(Toy(Ring), root / "stopped", 5, rounds=3), snapshot(root / "whole")


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("who", [("server",), ("site-2",), ("server", "site-2"), ("site-1", "site-2", "site-3")])
def test_newest_file_damaged(
    who: tuple[str, ...], how: str, ring: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped, wanted = ring
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    paths = [newest(folder, name) for name in who]
    for path in paths:
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    Toy(Ring).run(folder, rounds=3)
    for path in paths:
        words = (str(path), "is damaged", "The step before it is used")
        assert any(all(word in text for word in words) for text in caplog.messages)
    if "server" not in who:
        assert f"Going back to step 3, from which {', '.join(who)} can continue." in caplog.messages
    assert snapshot(folder) == wanted


class Turns(Averaging):
    """Averaging in which one site trains in each round, in turn."""

    def plan(self, server: Server) -> Plan | None:
        plan = super().plan(server)
        if plan is not None:
            plan.requests = [plan.requests[server.round % len(plan.requests)]]
            plan.quorum = 1
        return plan


@pytest.mark.parametrize("how", ["cut", "bit in its numbers"])
@pytest.mark.parametrize("before", [3, 6])
def test_file_of_an_older_site_damaged(before: int, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No step that is still there can bring it back: the site goes on from the step before, and that is said."""
    folder = run_until(Toy(Turns), tmp_path / "run", before, rounds=7, norm_sync="none")
    path = newest(folder, "site-2")
    steps = Store(path.parent).steps()
    assert steps == ([1] if before == 3 else [1, 4])
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    result = Toy(Turns).run(folder, rounds=7, norm_sync="none")
    last = 0 if before == 3 else 1
    assert (
        f"site-2 continues after its step {last}, though it had answered later steps: a file of its state"
        in caplog.text
    )
    assert result.outcome.status == "finished"
    assert path.with_suffix(".damaged").exists(), "it is set aside, so that nothing reads it again"


def test_damaged_numbers_are_never_scored(tmp_path: Path) -> None:
    """A site's damaged model is not evaluated either: with its file gone the rows are the same."""
    stopped = run_until(Toy(Turns), tmp_path / "stopped", 6, rounds=6, norm_sync="none")
    rows = []
    for change in (lambda path: path.write_bytes(flip(0.97)(path.read_bytes())), Path.unlink):
        folder = Path(shutil.copytree(stopped, tmp_path / str(len(rows))))
        change(newest(folder, "site-2"))
        Toy(Turns).run(folder, rounds=6, norm_sync="none")
        rows.append(snapshot(folder))
    assert rows[0] == rows[1]


def test_both_files_of_the_server_damaged(ring: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ring[0], tmp_path / "run"))
    store = Store(folder / "state" / "server")
    for step in store.steps():
        store.path(step).write_bytes(b"?")
    before = snapshot(folder)["rows"]
    with refused(StoreError, "unreadable_steps", path=str(store.folder)):
        Toy(Ring).run(folder, rounds=3)
    assert snapshot(folder)["rows"] == before


def test_damaged_peer_message(tmp_path: Path) -> None:
    folder = run_until(Toy(Ring), tmp_path / "run", 2)
    path = next((folder / "state" / "site-2" / "inbox").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    with refused(DamagedError, "damaged_file", path=str(path)):
        Toy(Ring).run(folder)


def test_damaged_or_missing_constant(ring: Any, tmp_path: Path) -> None:
    for change in (lambda path: path.write_bytes(path.read_bytes()[:-1]), Path.unlink):
        folder = Path(shutil.copytree(ring[0], tmp_path / "run"))
        path = next((folder / "state" / "site-2" / "blobs").iterdir())
        change(path)
        with refused(StoreError, "unreadable_file", path=str(path)):
            Toy(Ring).run(folder, rounds=3)
        shutil.rmtree(folder)


@pytest.mark.parametrize("change", ["deleted", "cut short"])
def test_rows_lost(change: str, ring: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ring[0], tmp_path / "run"))
    csv = folder / "metrics.csv"
    if change == "deleted":
        csv.unlink()
    else:
        csv.write_bytes(csv.read_bytes()[:60])
    with refused(StoreError, "missing_rows", path=str(csv), found=0 if change == "deleted" else 60):
        Toy(Ring).run(folder, rounds=3)


@pytest.mark.parametrize("change", ["last rows cut", "a line too many", "half a line"])
def test_rows_of_the_last_step_are_mended(change: str, ring: Any, tmp_path: Path) -> None:
    stopped, wanted = ring
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    csv = folder / "metrics.csv"
    data = csv.read_bytes()
    changed = {"last rows cut": data[:-90], "a line too many": data + b"1,x,y,z,a,b,0\n", "half a line": data[:-7]}
    csv.write_bytes(changed[change])
    Toy(Ring).run(folder, rounds=3)
    assert snapshot(folder) == wanted


# ---- another run's folder


def start(folder: Path, method: str = "one", task: Task | None = None, **changes: Any) -> None:
    settings = {"rounds": 2, "batch_size": 5} | changes.pop("settings", {})
    run = SimulatedRun(
        method=MethodChoice(name=method, make=Averaging, args=changes.pop("method_args", {})),
        task=task or make_task(),
        settings=Settings(**settings),
        data=RunData(**({"sites": make_sites({"a": 5, "b": 6}), "digest": "d1"} | changes)),
        folder=folder,
    )
    simulate(run)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"method": "two"}, {"setting": "method", "expected": "one", "found": "two"}),
        (
            {"settings": {"batch_size": 6, "seed": 1}},
            {"setting": "settings.batch_size", "expected": 5, "found": 6},
        ),
        ({"method_args": {"mu": 0.5}}, {"setting": "method_args.mu", "expected": None, "found": 0.5}),
        ({"digest": "d2"}, {"setting": "data", "expected": "d1", "found": "d2"}),
        (
            {"sites": make_sites({"a": 5, "c": 6})},
            {"setting": "sites", "expected": ["a", "b"], "found": ["a", "c"]},
        ),
        ({"task": make_task("plain")}, {"setting": "task.networks.norm"}),
        (
            {"task": make_task(loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1))},
            {"setting": "task.loss.label_smoothing", "expected": 0.0, "found": 0.1},
        ),
        ({"task": make_task(loss=torch.nn.CrossEntropyLoss(torch.ones(3)))}, {"setting": "task.loss.tensors"}),
    ],
)
def test_another_runs_folder(changes: dict[str, Any], fields: dict[str, Any], tmp_path: Path) -> None:
    start(tmp_path / "run")
    before = snapshot(tmp_path / "run")
    with refused(StoreError, "other_run", path=str(tmp_path / "run"), **fields) as caught:
        start(tmp_path / "run", **changes)
    assert "--output_dir" in str(caught.value)
    assert snapshot(tmp_path / "run") == before
    start(tmp_path / "run")  # the right settings still go on


def test_damaged_record_of_the_run(tmp_path: Path) -> None:
    start(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"identity": ')
    with refused(StoreError, "damaged_file", path=str(tmp_path / "run" / "run.json")):
        start(tmp_path / "run")


@pytest.mark.parametrize("case", [Toy(Ring, alone=True), builtin("fedavg", norm_sync="none", fraction=0.7)])
def test_more_rounds_continue_with_the_same_bits(case: Any, tmp_path: Path) -> None:
    case.run(tmp_path / "whole", rounds=4)
    for rounds in (1, 2, 4):
        case.run(tmp_path / "run", rounds=rounds)
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


def test_fewer_rounds_are_refused(tmp_path: Path) -> None:
    case = Toy(Ring)
    case.run(tmp_path / "run", rounds=2)
    before = snapshot(tmp_path / "run")
    with refused(StoreError, "fewer_rounds", path=str(tmp_path / "run"), expected=2, found=1):
        case.run(tmp_path / "run", rounds=1)
    assert snapshot(tmp_path / "run") == before


def test_a_finished_run_given_again_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Toy(Ring)
    case.run(tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING):
        assert case.run(tmp_path / "run").outcome.status == "finished"
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    assert not caplog.messages
