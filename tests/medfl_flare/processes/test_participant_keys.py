"""A federation whose participants made their own keys, in real NVFlare processes: the same bits, no key has moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from flare_federation import RESEARCHER, federation
from loopback import SITES
from participant_keys import Home, foreign_keys
from typer.testing import CliRunner

from medfl_flare.commands import federate, site
from medfl_flare.provision import Project
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit_log import audit_path

pytestmark = [pytest.mark.flare, pytest.mark.slow]


def test_runs_end_with_the_bits_of_one_machine_their_peer_messages_are_signed_and_no_key_has_moved(
    tmp_path: Path,
) -> None:
    homes: list[Home] = []

    def provide(project: Project, folder: Path) -> dict[str, Path]:
        homes.append(Home(folder, project))
        return {name: homes[0].kit(name) for name in homes[0].roles}

    with federation(tmp_path, provide) as running:
        for name in ("server", *SITES):
            done = CliRunner().invoke(site.app, ["check", "--kit", str(running.kits[name]), "--bundle", "small"])
            assert "it matches the kit's root and key" in done.output
            assert done.exit_code == 0, done.output
        for method in ("fedavg", "fedskd"):
            offer = running.offer(f"home-{method}", method=method)
            out = running.begin(offer)
            summary, wrong = running.end(out)
            assert (wrong, summary["status"], summary["rounds"], summary["unavailable_reasons"]) == (
                "",
                "finished",
                2,
                {},
            )
            running.equals_local(offer, out)
        lines = [line for line in read_entries(audit_path(running.files["site-01"])) if line.sender is not None]
        audit = [line.outcome for line in lines if line.kind == "peer_message"]
        assert audit
        assert set(audit) == {"accepted"}
        status = CliRunner().invoke(federate.app, ["status", str(running.kits["researcher"])])
        assert status.exit_code == 0, status.output
        assert all(f"site: {name}, " in status.output for name in SITES)
    kits = {"localhost": running.kits["server"], RESEARCHER: running.kits["researcher"]}
    kits |= {name: running.kits[name] for name in SITES}
    assert foreign_keys(tmp_path, kits, homes[0].root / "rootCA.key") == []
