"""An attack on an untrusted run folder loads no code from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_runs import make_data, run_bundle
from run_records import change_json

from medfl_attacks.open_run import open_run

CODE = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"


def test_no_plugin_file_is_loaded_because_a_run_folder_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_bundle(make_data(tmp_path / "data"), tmp_path / "run")
    plugin = tmp_path / "run" / "harmless.py"
    plugin.write_text(CODE)
    change_json(
        tmp_path / "run" / "run.json", lambda record: record["provenance"]["plugins"].update(harmless=str(plugin))
    )
    assert open_run(tmp_path / "run").name == "fedavg"
    assert not plugin.with_suffix(".ran").exists()
    assert "harmless.py" in caplog.text
    assert "--plugin" in caplog.text
    open_run(tmp_path / "run", plugins=[plugin])
    assert plugin.with_suffix(".ran").exists(), "the user's own word counts"
