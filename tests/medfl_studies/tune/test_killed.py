"""``kill -9`` at any write of a search with real runs: the continued search has the same winner and record."""

from __future__ import annotations

import os
import signal

import pytest
from tune_toys import launch_here, without_seconds

from medfl_studies.tune.search import Search, run_search
from medfl_studies.tune.search_report import write_search_reports

CHANGES = {
    "tune__sampler": "tpe",
    "tune__trials": 3,
    "tune__rows": {},
    "settings__rounds": 3,
    "rows": {"near": {"method": "fedprox", "method_args": {"mu": 0.5}}},
    "baseline": "near",
}


def replacing(at: int) -> None:
    """Count the written files, and kill this process before the file with a given number."""
    real, left = os.replace, at

    def replace(old, new) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(old, new)

    os.replace = replace


def killed(search: Search, at: int) -> bool:
    """Run a search in another process that is killed; return whether it was killed before its end."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    replacing(at)
    try:
        write_search_reports([search], [run_search(search, launch_here)])
    finally:
        os._exit(0)
    raise AssertionError


@pytest.mark.slow
def test_a_killed_search_ends_in_the_same_winner_and_record(load, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, writes, real = load(CHANGES, out="whole"), [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (writes.append(str(new)), real(old, new)))
    write_search_reports([whole], [run_search(whole, launch_here)])
    monkeypatch.undo()
    runs = [number for number, name in enumerate(writes) if name.endswith("summary.json")]
    records = [number for number, name in enumerate(writes) if name.endswith("search.json")]
    assert len(runs) == 3, "one after the other"
    broken = load(CHANGES, out="broken")
    lost = [
        runs[0],
        records[0] - runs[0],
        (runs[2] - records[0]) // 2,
    ]  # in a trial, about the record, later
    assert [killed(broken, at) for at in lost] == [True] * 3
    write_search_reports([broken], [run_search(broken, launch_here)])
    assert without_seconds(broken.out / "search.json") == without_seconds(whole.out / "search.json")
    name = "small-tuned.yaml"
    assert (broken.out / name).read_bytes() == (whole.out / name).read_bytes()
