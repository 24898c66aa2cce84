"""Test distributed noise in a run: the noise in the sum, the accounts, and the trust assumptions."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import digests

from medfl.engine.runs.records import read_run
from medfl.engine.runs.simulation import SimulationResult
from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.privacy.concentrated import calibrate_sum
from medfl.records.ledger import Ledger
from medfl.settings import Privacy
from medfl.testing.cohort import Case, make_sites, make_task

PRIVACY = {"epsilon": 8.0, "clip": 0.5}
SITES = make_sites({f"site-{number}": 5 for number in range(1, 6)})
SECURE = {"threshold": 4}


def run(folder: Path, **more: Any) -> SimulationResult:
    case = Case(load_plugins(), "fedavg", {}, {"norm_sync": "params", "rounds": 2})
    return case.run(folder, **({"sites": SITES, "privacy": PRIVACY, "secure_aggregation": SECURE} | more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulationResult, Path]:
    folder = tmp_path_factory.mktemp("private") / "run"
    return run(folder), folder


def test_the_sum_carries_the_noise_of_the_threshold_and_no_less(tmp_path: Path) -> None:
    """Run without training, so that the sum is only noise: of five sites, with a threshold of four."""
    run(tmp_path, epochs=0, rounds=1, task=make_task("wide"))
    start, last = make_task("wide").initial(7), Store(tmp_path / "state" / "server").latest()
    assert last is not None
    mean = torch.cat([(tensor - start[name]).double().flatten() for name, tensor in last.state().tensors.items()])
    sigma = calibrate_sum(Privacy.model_validate(PRIVACY), 1)
    expected = sigma * 0.5 * math.sqrt(5 / 4) / 5
    assert float(mean.std()) == pytest.approx(expected, rel=3 / math.sqrt(2 * len(mean)))


def test_the_same_run_again_draws_the_same_noise(whole: tuple[SimulationResult, Path], tmp_path: Path) -> None:
    assert digests(run(tmp_path)) == digests(whole[0])
    assert digests(run(tmp_path / "other", seed=8)) != digests(whole[0])


@pytest.mark.slow
def test_sites_draw_unlike_noise(tmp_path: Path) -> None:
    """Check that the noise differs. Equal noise of five sites would have five times the deviation of one site."""
    run(tmp_path, epochs=0, rounds=1, secure_aggregation={"threshold": 5}, task=make_task("wide"))
    start, last = make_task("wide").initial(7), Store(tmp_path / "state" / "server").latest()
    assert last is not None
    mean = torch.cat([(tensor - start[name]).double().flatten() for name, tensor in last.state().tensors.items()])
    share = calibrate_sum(Privacy.model_validate(PRIVACY), 1) * 0.5 / math.sqrt(5) / 5
    assert float(mean.std()) == pytest.approx(share * math.sqrt(5), rel=0.2)


def test_accounts_hold_what_was_released_and_the_trust_model(whole: tuple[SimulationResult, Path]) -> None:
    facts = whole[0].summary.privacy["site-1"]
    assert (facts.releases, facts.planned, facts.threshold) == (2, 2, 4)
    assert facts.epsilon == pytest.approx(8.0)
    (entry,) = Ledger.read(whole[1] / "state" / "site-1" / Ledger.NAME).entries.values()
    assert (entry.mechanism, entry.threshold) == ("distributed discrete gaussian", 4)


def test_a_ledger_adds_local_and_distributed_noise(tmp_path: Path) -> None:
    """Compose both kinds by concentrated differential privacy, which is an upper bound of the exact epsilon."""
    privacy = PRIVACY | {"ledger": tmp_path / "ledger"}
    alone = run(tmp_path / "a", privacy=privacy, secure_aggregation=None)
    both = run(tmp_path / "b", privacy=privacy)
    first, together = (result.summary.privacy["site-1"] for result in (alone, both))
    assert first.threshold is None
    assert together.runs == 2
    assert 8.0 * math.sqrt(2) < together.composed < 16.0 * 1.2


def test_log_and_report_say_whom_one_has_to_trust(
    whole: tuple[SimulationResult, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("medfl_report")
    from medfl_report.groups import group_runs
    from medfl_report.sections.privacy import privacy_section

    with caplog.at_level(logging.INFO, "medfl"):
        run(tmp_path, rounds=1)
    assert any("Secure aggregation in a simulation protects no one" in text for text in caplog.messages)
    section = privacy_section(group_runs([read_run(whole[1])]))
    assert section is not None
    (row,) = section["rows"]
    words = row["words"]
    for part in ("'replace', the adjacency of this run", "'add_remove'", "at least 4 of a round's participants follow"):
        assert part in words
    assert row["stated"] == "8"
    assert float(row["other"]) < 8.0


def test_a_refused_release_is_no_noise_twice(whole: tuple[SimulationResult, Path], tmp_path: Path) -> None:
    """Check a budget that covers all planned rounds; with drop-outs, a site may have spent less."""
    result = run(tmp_path, unavailable=lambda site, at: site == "site-2" and at == 3)
    releases = {site: facts.releases for site, facts in result.summary.privacy.items()}
    assert releases == {"site-1": 2, "site-2": 1, "site-3": 2, "site-4": 2, "site-5": 2}
