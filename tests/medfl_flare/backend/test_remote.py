"""For every method, a distributed federation computes the same bits as a federation on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import SITES, UNLIKE, Loopback, Place, digests, make_place
from refusals import refused
from toys import snapshot

from medfl.errors import StoreError
from medfl.records.summary import Summary
from medfl.testing.cohort import scores
from medfl.testing.synthetic import make_cohort
from medfl.utils import wire


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = make_place(tmp_path_factory.mktemp("federation"))
    make_cohort(place.root / "more", sites=1, images_per_site=30, classes=3, size=12, seed=2)
    (place.root / "more" / "site-01").rename(place.data / "public")
    return place


def compare(place: Place, tmp_path: Path, name: str, **overrides: Any) -> None:
    files = place.files(name)
    offer = place.offer(**overrides)
    loopback = Loopback(files)
    folder, progress = loopback.serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    local = place.local(offer, files, tmp_path / "local")
    expected = snapshot(tmp_path / "local")
    states = digests(folder, files, offer.run)
    assert states == {name: expected[name] for name in ("server", *SITES)}
    private = offer.overrides.get("privacy") is not None  # then no loss leaves a site
    assert scores(folder) == [row for row in expected["rows"] if not (private and "loss," in row)]
    for site in SITES:
        home = torch.load(files[site].state / "runs" / offer.run / "bundle" / "models" / "model.pt", weights_only=True)
        kinds = local.models[site]
        assert wire.tensors_equal(home, (kinds.get("personal") or kinds["global"]).tensors)
    best = Summary.read(folder / "summary.json").best_round
    assert best == local.summary.best_round
    assert best is None or best.round < offer.overrides["rounds"], "else the last round proves nothing"


METHODS = ["local", "fedavg", "feddisco", "fedper", "fedcross", "fedskd", "fedtpf", "pfedcdp"]
"""One method for each way to use a backend; fedkper and fedsdc run in `flare`."""
SLOW = ("local", "fedcross", "feddisco", "fedper", "fedtpf")
"""Further methods that use a backend in almost the same ways."""
MORE = {
    "fedavg": {"cross_site_evaluation": True, "fraction": 0.7, "evaluate_every": 2},
    "fedper": {"rounds": 3, "best_round": True, "seed": 5, "shared_test": True},
    "feddisco": {"disclose": ["size", "label_counts"]},
    "fedtpf": {"method_args": {"distil_rounds": 1, "width": 2}},
    "fedskd": {"networks_by_site": UNLIKE, "cross_site_evaluation": True},
    "pfedcdp": {
        "networks_by_site": UNLIKE,
        "method_args": {"fisher_samples": 8, "server_epochs": 1, "refine": {"epochs": 1, "probe_epochs": 1}},
        "privacy": {"unit": "site", "adjacency": "replace", "epsilon": 50.0, "delta": 1e-5, "clip": 0.5},
        "compression": {"bits": 8},
    },
}


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[pytest.mark.slow] if method in SLOW else []) for method in METHODS]
)
def test_the_bits_are_those_of_one_machine(place: Place, tmp_path: Path, method: str) -> None:
    compare(place, tmp_path, method, **{"method": method} | MORE.get(method, {}))


def test_a_recipe_has_the_bits_of_one_machine(place: Place, tmp_path: Path) -> None:
    """The published average differs from the model of the requests, so both are sent."""
    recipe = {"schedule": "cosine", "warmup_rounds": 1, "layer_decay": 0.7, "decay_norms": False, "ema": 0.6}
    compare(place, tmp_path, "recipe", rounds=3, steps=1, optimization=recipe)


def test_a_frozen_body_has_the_bits_of_one_machine(place: Place, tmp_path: Path) -> None:
    """Sites prove that they have the same frozen tensors, send the head alone, and train it on cached features."""
    files = place.files("frozen")
    offer = place.offer(train_part="head", rounds=2)
    folder, progress = Loopback(files).serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    local = place.local(offer, files, tmp_path / "local")
    expected, states = snapshot(tmp_path / "local"), digests(folder, files, offer.run)
    assert states == {name: expected[name] for name in ("server", *SITES)}
    for site in SITES:
        exported = torch.load(
            files[site].state / "runs" / offer.run / "bundle" / "models" / "model.pt", weights_only=True
        )
        (bundle,) = files[site].bundles.values()
        assert bundle.data is not None
        assert list((bundle.data / ".medfl_cache").glob("features-*"))
        head = local.models[site]["global"].tensors
        assert len(head) == 2
        assert len(exported) == 11
        assert wire.tensors_equal({name: exported[name] for name in head}, head)


def test_a_run_does_not_continue_with_other_networks(place: Place) -> None:
    loopback = Loopback(place.files("other-networks"))
    settings = {"method": "fedskd", "rounds": 1, "steps": 1}
    loopback.serve(place.offer(networks_by_site=UNLIKE, **settings))
    with refused(StoreError, "other_run", setting="settings.networks.site-01", expected="resnet4", found="resnet6"):
        loopback.serve(place.offer(networks_by_site=UNLIKE | {"site-01": "resnet6"}, **settings))
