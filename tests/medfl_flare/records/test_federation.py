"""Records of a coordinator: round trip, and refusal of damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl_flare.records.federation import ApprovedKey, FederationFile

FEDERATION = FederationFile(
    name="medfl", server="localhost", sites=("a", "b"), admin="me@x.org", port=8002, scheme="http", valid_days=360
)
KEY = ApprovedKey(name="a", role="site", key="00:11", time="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("record", [FEDERATION, KEY], ids=["federation", "key"])
def test_a_file_returns_the_record(tmp_path: Path, record: FederationFile | ApprovedKey) -> None:
    record.write(tmp_path / "record.json")
    assert type(record).read(tmp_path / "record.json") == record


def test_a_port_is_a_number(tmp_path: Path) -> None:
    content = FEDERATION.to_bytes().replace(b"8002", b'"8002"')
    with refused(SettingsError, "damaged_file", key="port"):
        FederationFile.from_bytes(content, tmp_path / "federation.json")
