"""A federation whose keys were made at home, in real processes of NVIDIA FLARE: the same bits, and no key has moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from flare_federation import RESEARCHER, federation
from home_keys import Home, foreign_keys
from loopback import SITES
from typer.testing import CliRunner

from medfl.cli import federate, site
from medfl.deploy.provision import Project

pytestmark = [pytest.mark.flare, pytest.mark.slow]


def test_two_rounds_of_fedavg_end_with_the_bits_of_one_machine_and_no_key_has_moved(tmp_path: Path) -> None:
    homes: list[Home] = []

    def provide(project: Project, folder: Path) -> dict[str, Path]:
        homes.append(Home(folder, project))
        return {name: homes[0].kit(name) for name in homes[0].roles}

    with federation(tmp_path, provide) as running:
        for name in ("server", *SITES):
            done = CliRunner().invoke(site.app, ["check", "--kit", str(running.kits[name]), "--bundle", "small"])
            assert "of its root, with the key beside it" in done.output
            assert done.exit_code == 0, done.output
        offer = running.offer("home", method="fedavg")
        out = running.begin(offer)
        summary, wrong = running.end(out)
        assert (wrong, summary["status"], summary["rounds"], summary["missing"]) == ("", "finished", 2, {})
        running.equals_local(offer, out)
        status = CliRunner().invoke(federate.app, ["status", str(running.kits["researcher"])])
        assert status.exit_code == 0, status.output
        assert all(f"site: {name}, " in status.output for name in SITES)
    kits = {"localhost": running.kits["server"], RESEARCHER: running.kits["researcher"]}
    kits |= {name: running.kits[name] for name in SITES}
    assert foreign_keys(tmp_path, kits, homes[0].root / "rootCA.key") == []
