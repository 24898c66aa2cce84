"""Location of a startup kit's runs, for ``medfl monitor``."""

from __future__ import annotations

from pathlib import Path

from kits_and_offers import make_kit
from loopback import write_site_file
from refusals import refused

from medfl.errors import SettingsError
from medfl.hooks import RunLocation
from medfl.plugins import load_plugins


def test_a_sites_kit_names_its_runs_and_a_researchers_kit_is_refused(tmp_path: Path) -> None:
    locate = load_plugins().run_location
    kit = make_kit(tmp_path / "kit", "client", "")
    write_site_file(kit / "local", "site-01", tmp_path, tmp_path)
    assert locate(kit) == RunLocation(kit / "local" / "state" / "runs", gets_more_runs=True)
    assert locate(tmp_path) is None
    with refused(SettingsError, "wrong_kit", path=str(tmp_path / "admin")):
        locate(make_kit(tmp_path / "admin", "admin", ""))
