"""Arguments that the command line ``medfl federate`` passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from typer.testing import CliRunner

from medfl.cli import run
from medfl.errors import SettingsError
from medfl_flare import kit as kits
from medfl_flare import provision as provisioning
from medfl_flare import session
from medfl_flare.commands import federate
from medfl_flare.records.submission import SubmissionFile


def call(*words: str, **options: Any) -> Any:
    return CliRunner().invoke(federate.app, list(words), **options)


def test_submit_is_run_with_the_backend_and_the_kit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(run, "run_bundle", lambda bundle, options: seen.extend([bundle, options]))
    done = call("submit", "a_bundle", "--kit", str(tmp_path), "--method", "fedavg", "--rounds", "3")
    assert done.exit_code == 0, done.output
    assert seen == ["a_bundle", {"method": "fedavg", "rounds": 3, "backend": "flare", "kit": str(tmp_path)}]


def test_provision_takes_the_sites_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    provisioned: list[Any] = []

    def provision(federation: provisioning.Project, out: Path) -> dict[str, Path]:
        provisioned.append(federation)
        return {} if len(provisioned) > 1 else {"a": out / "a"}

    monkeypatch.setattr(provisioning, "provision", provision)
    words = ("--server", "fl.org", "--sites", "a, b,", "--admin", "me@x.org", "--out", str(tmp_path), "--port", "9")
    assert "1 kits made" in call("provision", *words).output
    assert "no participant is new" in call("provision", *words).output
    assert provisioned[0] == provisioning.Project("fl.org", ("a", "b"), "me@x.org", port=9)


def test_stop_distinguishes_a_kit_from_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "stop", lambda run: True)
    monkeypatch.setattr(kits, "stop", lambda kit: False)
    submitted, kit = tmp_path / "run", tmp_path / "kit"
    (kit / "startup").mkdir(parents=True)
    submitted.mkdir()
    (submitted / SubmissionFile.NAME).write_text("{}")
    assert "the job was aborted" in call("stop", str(submitted)).output
    assert "no process of that kit is running" in call("stop", str(kit)).output
    with refused(SettingsError, "unknown_folder_kind", path=str(tmp_path)):
        call("stop", str(tmp_path), catch_exceptions=False)
