"""Test runs with privacy and compression for methods that reply with updates."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from refusals import refused

from medfl.engine.store import Store
from medfl.errors import SettingsError, StoreError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, make_task

PRIVACY = {"epsilon": 8.0, "clip": 0.5}


def case(method: str = "fedavg", **args: object) -> Case:
    return Case(load_plugins(), method, args, {"norm_sync": "params"})


def difference(left: dict, right: dict) -> float:
    return max(float((left[k][n].float() - right[k][n].float()).abs().max()) for k in left for n in left[k])


def sent(folder: Path, site: str, step: int = 1) -> dict[str, torch.Tensor]:
    return Store(folder / "state" / site).read(step, "reply/")


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn"])
def test_methods_with_updates_run_under_privacy(tmp_path: Path, method: str) -> None:
    result = case(method).run(tmp_path / "run", privacy=PRIVACY)
    assert result.outcome.status == "finished"
    assert difference(bits(result), bits(case(method).run(tmp_path / "open"))) > 0.01


def test_what_leaves_is_clipped_and_noised_and_private_meta_stay(tmp_path: Path) -> None:
    # one round, huge budget: the noise is tiny beside the clip, so the norm of what leaves is the clip
    case().run(tmp_path, rounds=1, privacy={"epsilon": 1e7, "clip": 0.05}, epochs=5)
    for site in ("site-1", "site-2", "site-3"):
        update = sent(tmp_path, site)
        assert all(tensor.is_floating_point() for tensor in update.values())
        norm = torch.cat([tensor.double().flatten() for tensor in update.values()]).norm()
        assert float(norm) == pytest.approx(0.05, rel=0.05)
        assert Store(tmp_path / "state" / site).load(1).meta["reply"] == {}


def test_sites_draw_unlike_noise_that_repeats_on_a_second_run(tmp_path: Path) -> None:
    settings = {"rounds": 1, "epochs": 0, "privacy": PRIVACY}  # no training: what leaves is the noise
    result, two = case().run(tmp_path / "1", **settings), case().run(tmp_path / "2", **settings)
    assert difference(bits(result), bits(two)) == 0
    first, second = sent(tmp_path / "1", "site-1"), sent(tmp_path / "1", "site-2")
    noise = torch.stack([torch.cat([t.flatten() for t in update.values()]) for update in (first, second)])
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.2
    assert float(noise.std()) > 0.1


def test_a_privacy_claim_names_unit_adjacency_delta_and_releases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "medfl"):
        case().run(tmp_path, privacy=PRIVACY)
    claim = next(text for text in caplog.messages if "delta" in text)
    for word in ("site", "replace", "add_remove", "1e-05", "3 releases"):
        assert word in claim
    assert any("size stay at the sites" in text for text in caplog.messages)


def test_more_rounds_would_overspend_the_budget(tmp_path: Path) -> None:
    case().run(tmp_path, privacy=PRIVACY, rounds=2)
    with refused(StoreError, "changed_privacy_rounds", expected=2, found=3):
        case().run(tmp_path, privacy=PRIVACY, rounds=3)


def test_privacy_refuses_a_method_that_pools(tmp_path: Path) -> None:
    with refused(SettingsError, "method_not_supported", feature="privacy", method="centralized"):
        case("centralized").run(tmp_path, privacy=PRIVACY)


@pytest.mark.parametrize(("bits_", "error"), [(16, 1e-4), (8, 0.02), (4, 0.3)])
def test_quantised_updates_end_near_the_exact_ones(tmp_path: Path, bits_: int, error: float) -> None:
    exact = case().run(tmp_path / "exact", rounds=1, task=make_task("plain"))
    coarse = case().run(tmp_path / "coarse", rounds=1, task=make_task("plain"), compression={"bits": bits_})
    distance = difference(bits(exact), bits(coarse))
    assert 0 < distance < error
    up = {
        name: sum(
            float(line.split(",")[-1])
            for line in (tmp_path / name / "metrics.csv").read_text().splitlines()
            if ",bytes_up," in line
        )
        for name in ("exact", "coarse")
    }
    assert up["coarse"] == pytest.approx(up["exact"] * bits_ / 32, rel=0.02)


def test_running_statistics_are_not_shared_under_privacy(tmp_path: Path) -> None:
    tensors = [f"body.1.{name}" for name in ("num_batches_tracked", "running_mean", "running_var")]
    with refused(SettingsError, "noisy_statistics", setting="norm_sync", tensors=tensors):
        case().run(tmp_path, privacy=PRIVACY, norm_sync="all")


def test_run_json_records_the_filters(tmp_path: Path) -> None:
    case().run(tmp_path, privacy=PRIVACY, compression={"bits": 8})
    settings = json.loads((tmp_path / "run.json").read_text())["identity"]["settings"]
    assert settings["privacy"]["adjacency"] == "replace"
    assert settings["compression"] == {"bits": 8}
