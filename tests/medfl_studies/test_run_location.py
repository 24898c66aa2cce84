"""Location of the runs of a study file, for ``medfl monitor``."""

from __future__ import annotations

from pathlib import Path

from medfl.plugins import load_plugins


def test_a_study_file_stands_for_the_folder_of_its_runs(tmp_path: Path) -> None:
    location = load_plugins().run_location(Path(__file__).parents[2] / "studies" / "medmnist_quick.yaml")
    assert location is not None
    assert location.folder.parts[0] == "runs"
    assert not location.gets_more_runs
    assert load_plugins().run_location(tmp_path) is None
