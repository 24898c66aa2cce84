"""kill -9 at any moment, then the same command: the same bits and the same rows as an unbroken run."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_harness import Child, Faults
from toys import PAIR, Ring, Toy, builtin, digests, leftovers, snapshot

from medfl.engine.runs.simulation import SimulationResult
from medfl.testing.cohort import make_sites
from medfl.training.checkpoints import CHECKPOINT_STEM

CASES = {
    "ring": lambda: Toy(Ring),  # peer messages, blobs, site states, two steps a round
    "fedavg": lambda: builtin("fedavg", norm_sync="none"),  # server and site states
    "secure": lambda: builtin("fedavg", norm_sync="none", secure_aggregation={"threshold": 2}),  # four operations
}


def run(case: Any, folder: Path, workers: int = 1, **settings: Any) -> SimulationResult:
    result: SimulationResult = case.run(folder, workers=workers, sites=make_sites(PAIR), **settings)
    return result


def killed_at(case: Any, folder: Path, number: int, workers: int) -> tuple[str, str]:
    """Run in a child whose whole group is killed at the given call (in the middle of it, for a write)."""
    where = folder.with_suffix(".where")

    def act(count: int, what: str, path: str) -> str | None:
        if count == number and what == "write":
            return "half"
        if count == number or what == "rest":
            where.write_text(f"{what} {path}")
            os.killpg(0, signal.SIGKILL)
        return None

    faults = Faults(act)

    def work() -> None:
        faults.install()
        run(case, folder, workers=workers)

    return Child(work).end(), where.read_text() if where.exists() else "half a write"


def copied_at_each(stride: int, case: Any, folder: Path, **settings: Any) -> list[str]:
    """Run once, and copy the folder at every stride-th call: what a kill of all processes leaves is what is on disk.

    Returns:
        Number, kind and path of each of these calls; copies are in `folder` under the numbers.
    """
    running, calls = folder / "run", folder / "calls"

    def act(count: int, what: str, path: str) -> str | None:
        if count % stride != 1 % stride:
            return None
        if what == "write":
            return "half"
        with calls.open("a") as file:
            file.write(f"{count} {what} {path}\n")
        if running.exists():
            shutil.copytree(running, folder / str(count))
        return None

    def work() -> None:
        Faults(act).install()
        run(case, running, **settings)

    folder.mkdir()
    assert Child(work).end() == "done"
    return calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "stride"),
    [("fedavg", 2), ("ring", 7), ("secure", 29), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in CASES)],
)
def test_killed_at_every_call_that_touches_the_disk(name: str, stride: int, tmp_path: Path) -> None:
    """Five calls write a file, so a stride of two or three comes by each of them in turn."""
    case = CASES[name]()
    run(case, tmp_path / "whole")
    wanted = snapshot(tmp_path / "whole")
    calls = copied_at_each(stride, case, tmp_path / "copies")
    for call in calls:
        folder = tmp_path / "copies" / call.split()[0]
        run(case, folder)
        assert snapshot(folder) == wanted, f"killed at call {call}"
        assert not leftovers(folder), f"killed at call {call}"
    assert len(calls) * stride > 40, f"only {len(calls)} calls were tried"


@pytest.mark.parametrize("name", ["fedavg", "local"])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_within_trainings_at_every_call_that_touches_the_disk(name: str, stride: int, tmp_path: Path) -> None:
    """With a checkpoint after each batch most calls are within a training. All requests of `local` are equal."""
    case = builtin(name, norm_sync="none")
    run(case, tmp_path / "whole")
    wanted = snapshot(tmp_path / "whole")
    calls = copied_at_each(stride, case, tmp_path / "copies", checkpoint_minutes=0)
    for call in calls:
        folder = tmp_path / "copies" / call.split()[0]
        run(case, folder, checkpoint_minutes=0)
        assert snapshot(folder) == wanted, f"killed at call {call}"
        assert not leftovers(folder), f"killed at call {call}"
        assert not list(folder.rglob(f"{CHECKPOINT_STEM}-*")), f"killed at call {call}"
    assert any("training-" in call for call in calls)


@pytest.mark.parametrize("name", ["fedavg", "ring"])
def test_killed_while_a_finished_run_frees_its_state(name: str, tmp_path: Path) -> None:
    """At every call of the last steps, then the same command, then more rounds."""
    case = CASES[name]()
    run(case, tmp_path / "whole", frees_space=True, rounds=1)
    run(case, tmp_path / "longer", rounds=2)
    wanted, longer = snapshot(tmp_path / "whole"), digests(run(case, tmp_path / "longer", rounds=2))
    calls = copied_at_each(1, case, tmp_path / "copies", frees_space=True, rounds=1)
    ended = [call for call in calls if (tmp_path / "copies" / call.split()[0] / "summary.json").exists()]
    assert len(ended) > 4, "no call came after the end"
    for place, call in enumerate(ended):
        folder = tmp_path / "copies" / call.split()[0]
        if place % 2:
            run(case, folder, frees_space=True, rounds=1)
            assert snapshot(folder) == wanted, f"killed at call {call}"
        assert digests(run(case, folder, rounds=2)) == longer, f"killed at call {call}"
        assert not leftovers(folder), f"killed at call {call}"


@pytest.mark.slow
def test_killed_while_the_best_round_is_sought(tmp_path: Path) -> None:
    """The exported models of an early best round are still there after a kill, and so is the early end."""
    case, settings = CASES["ring"](), {"rounds": 9, "best_round": True, "patience": 2}
    whole = run(case, tmp_path / "whole", **settings)
    chosen = whole.summary.best_round
    assert chosen.round < whole.summary.rounds - 1, "its states are older than the last two steps"
    assert chosen.ended_early
    wanted, models = snapshot(tmp_path / "whole"), digests(whole)
    for call in copied_at_each(29, case, tmp_path / "copies", **settings):
        folder = tmp_path / "copies" / call.split()[0]
        result = run(case, folder, **settings)
        assert (snapshot(folder), result.summary.best_round) == (wanted, chosen), f"killed at call {call}"
        assert digests(result) == models, f"killed at call {call}"


@pytest.mark.parametrize(
    ("name", "stride"), [("ring", 24), *(pytest.param(name, 7, marks=pytest.mark.slow) for name in CASES)]
)
def test_killed_with_two_workers(name: str, stride: int, tmp_path: Path) -> None:
    case = CASES[name]()
    run(case, tmp_path / "whole")
    wanted = snapshot(tmp_path / "whole")
    for number in range(7, 200, stride):
        folder = tmp_path / str(number)
        how, where = killed_at(case, folder, number, workers=2)
        if how == "done":
            break
        assert how == "killed", f"call {number}: {how}"
        run(case, folder, workers=2)
        assert snapshot(folder) == wanted, f"killed at call {number}, {where}"
    assert number > 40, f"only calls up to {number} were tried"


def test_killed_again_and_again(tmp_path: Path) -> None:
    """A run that is killed after every few calls still ends."""
    case = CASES["ring"]()
    run(case, tmp_path / "whole")
    folder, kills = tmp_path / "run", 0
    while killed_at(case, folder, 23, workers=1)[0] == "killed":
        kills += 1
        assert kills < 60, "no progress"
    assert snapshot(folder) == snapshot(tmp_path / "whole")
    assert kills > 2, f"killed {kills} times only"


def test_parent_killed_alone_leaves_no_worker(tmp_path: Path) -> None:
    """Only the parent dies, as it or a worker touches the disk: its workers see that and end, and so does the lock."""
    case, every = CASES["ring"](), Faults(lambda number, what, path: None)

    def parent_killed_at(number: int, folder: Path) -> str:
        def work() -> None:
            parent = os.getpid()
            Faults(lambda count, what, path: os.kill(parent, signal.SIGKILL) if count == number else None).install()
            run(case, folder, workers=2)

        return Child(work).end()  # fails if a worker is left

    def unbroken() -> None:
        every.install()
        run(case, tmp_path / "whole", workers=2)

    assert Child(unbroken).end() == "done"
    wanted = snapshot(tmp_path / "whole")
    for number in random.Random(1).sample(range(1, every.count), 7):
        folder = tmp_path / str(number)
        assert parent_killed_at(number, folder) == "killed", f"call {number}"
        run(case, folder, workers=2)
        assert snapshot(folder) == wanted, f"call {number}"
