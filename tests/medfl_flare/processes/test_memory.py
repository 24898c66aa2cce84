"""Memory of the server's job in real NVFlare processes, compared with a job without a model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from medfl.testing.synthetic import make_cohort

pytestmark = [pytest.mark.flare, pytest.mark.slow]

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "backends.py"
MEGABYTES = 50


def test_the_server_holds_a_few_models_and_not_one_for_each_reply(tmp_path: Path) -> None:
    """The job once needed nineteen times the model. Now it needs five and a half times; medfl uses four of these."""
    parts = runpy.run_path(str(BENCHMARK))
    make_cohort(tmp_path / "data", sites=3, images_per_site=12, classes=2, size=8)
    bundles = {f"mb{size}": parts["write_bundle"](tmp_path / f"mb{size}", size) for size in (1, MEGABYTES)}
    memory = []
    with parts["federation"](tmp_path, bundles, tmp_path / "data") as kits:
        for name, bundle in bundles.items():
            out = tmp_path / f"run-{name}"
            memory.append(parts["run_flare"](bundle, kits, tmp_path / "state" / "server", out, 2).memory["server"])
    assert memory[1] - memory[0] < 7 * MEGABYTES * parts["MB"]
