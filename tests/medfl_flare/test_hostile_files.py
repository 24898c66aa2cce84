"""Files that a site or a coordinator reads: an edited line hides no other, and a request can't exhaust memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from refusals import refused
from yaml_bombs import BOMB, LOOP

from medfl.errors import SettingsError
from medfl_flare.keys import approval
from medfl_flare.records.audit import AuditEntry, add_entry, read_entries
from medfl_flare.sites.audit_log import entry_text


@pytest.mark.parametrize("line", [b"{}", b'{"time": 1}', b'{"sender": "x"}', b"[" * 100_000, b"\xff"])
def test_an_edited_line_of_a_record_does_not_hide_the_others(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    entry = AuditEntry(time="t", site="a", kind="hello", outcome="answered")
    add_entry(path, entry)
    path.write_bytes(path.read_bytes() + line + b"\n")
    add_entry(path, entry)
    assert read_entries(path) == [entry, None, entry]
    assert entry_text(None).startswith("(an unreadable line")


@pytest.mark.parametrize("text", [BOMB, LOOP])
def test_a_request_for_a_certificate_does_not_explode(tmp_path: Path, text: str) -> None:
    request = tmp_path / "site-01.request.zip"
    with zipfile.ZipFile(request, "w") as archive:
        archive.writestr("request.json", "{}")
        archive.writestr("site.yaml", text)
    with refused(SettingsError, "invalid_certificate_request", path=str(request)):
        approval._read_request(request, request)
