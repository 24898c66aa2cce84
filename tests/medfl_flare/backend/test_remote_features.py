"""Runs between machines in which a part of the network learns: the same numbers as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Place
from remote_cases import local_outcome, mini_place, offered, outcome, serve


@pytest.mark.parametrize(
    "settings",
    [
        {"train_part": "head"},
        {"train_part": "head", "method": "local"},
        {"train_part": "lora", "lora": {"aggregation": "exact", "rank": 2}},
    ],
    ids=["features", "features of personal models", "adapters"],
)
def test_a_run_between_machines_equals_one_on_this_machine(
    place: Place, tmp_path: Path, settings: dict[str, Any]
) -> None:
    files = place.files("-".join(map(str, settings.values()))[:20].replace(" ", ""))
    offer = offered(place, rounds=2, cross_site_evaluation=True, **settings)
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    cached = sorted({path.parts[-3] for path in place.data.glob("*/.medfl_cache/features-*")})
    assert cached == (list(SITES) if settings["train_part"] == "head" else [])
    for path in place.data.glob("*/.medfl_cache/*"):
        path.unlink()
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return mini_place(tmp_path_factory.mktemp("features"))
