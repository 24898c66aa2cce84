"""A site's audit record lists every message with size, tensors and budget; nothing leaves without an entry."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from loopback import SITES, Loopback, Place, make_place
from refusals import refused
from typer.testing import CliRunner

from medfl.errors import StoreError
from medfl_flare.backend.messages import Limits, unpack
from medfl_flare.commands.site import app
from medfl_flare.records.audit import AuditEntry, SentTensors, SpentBudget, add_entry, read_entries
from medfl_flare.sites import audit_log
from medfl_flare.sites.audit_log import audit_path
from medfl_flare.sites.site_file import SiteFile

SITE = SITES[0]


def entries_of(site_file: SiteFile) -> list[AuditEntry]:
    """Return the entries of a site's audit file; all lines must be valid."""
    entries = read_entries(audit_path(site_file))
    assert None not in entries
    return [entry for entry in entries if entry is not None]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"))


def test_every_message_that_leaves_is_in_the_record_with_what_it_holds(place: Place) -> None:
    left: list[bytes] = []

    def keep(site: str, blob: bytes) -> bytes:
        left.extend([blob] if site == SITE else [])
        return blob

    peer_messages: list[tuple[str, int]] = []

    def keep_peer_message(sender: str, to: str, blob: bytes) -> bytes:
        peer_messages.extend([(to, len(blob))] if sender == SITE else [])
        return blob

    files = place.files("audit")
    offer = place.offer("audited", method="fedcross", steps=1)
    _, progress = Loopback(files, tamper_answer=keep, tamper_peer_message=keep_peer_message).serve(offer)
    assert progress.state == "finished"
    entries = entries_of(files[SITE])
    answers = [entry for entry in entries if entry.outcome == "answered"]
    assert [entry.bytes for entry in answers] == [len(blob) for blob in left]
    for entry, blob in zip(answers, left, strict=True):
        message = unpack(blob, Limits(max_bytes=10**9))
        assert entry.kind == message.kind
        assert sum(kind.tensors for kind in entry.leaves.values()) == len(message.tensors)
        numbers = sum(tensor.numel() for tensor in message.tensors.values())
        assert sum(kind.values for kind in entry.leaves.values()) == numbers
        assert (entry.run, entry.method, entry.bundle_sha256) == ("audited", "fedcross", offer.bundle_hash)
    sent = [entry for entry in entries if entry.outcome == "sent"]
    assert [entry.receiver for entry in sent] == [to for to, _ in peer_messages]
    assert sent
    assert all(entry.leaves for entry in sent)
    assert sum(entry.outcome == "accepted" for entry in entries) > 0


def test_a_refusal_says_why_and_which_run_it_was(place: Place) -> None:
    files = place.files("audit-refused", {SITE: {"methods": ["fedprox"]}})
    Loopback(files).serve(place.offer("unwanted", rounds=1, steps=1, min_replies=2))
    refusals = [entry for entry in entries_of(files[SITE]) if entry.outcome == "refused"]
    assert [(entry.kind, entry.run) for entry in refusals] == [("hello", "unwanted")]
    assert "fedavg" in (refusals[0].why or "")


def test_the_budget_is_that_of_the_account(place: Place) -> None:
    privacy = {"unit": "site", "adjacency": "replace", "epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
    files = place.files("audit-private")
    Loopback(files).serve(place.offer("private", steps=1, privacy=privacy, network_name="resnet4"))
    budgets = [entry.budget.epsilon for entry in entries_of(files[SITE]) if entry.budget is not None]
    assert budgets == sorted(budgets)
    assert budgets[-1] == pytest.approx(8.0, rel=1e-2)
    assert budgets[0] < budgets[-1]


def test_what_can_not_be_noted_does_not_leave(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []

    def keep(site: str, blob: bytes) -> bytes:
        left.extend([blob] if site == SITE else [])
        return blob

    def full(path: Path, entry: AuditEntry) -> None:
        if entry.site == SITE and entry.leaves:
            raise StoreError("unwritable_file", "Could not write a line")

    monkeypatch.setattr(audit_log, "add_entry", full)
    files = place.files("audit-full")
    Loopback(files, tamper_answer=keep).serve(place.offer("full", rounds=1, steps=1, min_replies=2))
    messages = [unpack(blob, Limits(max_bytes=10**9)) for blob in left]
    assert any("a problem with its store" in (message.meta["refused"] or "") for message in messages)
    assert not any(message.tensors for message in messages)


def test_the_command_shows_the_last_lines(place: Place) -> None:
    files = place.files("audit-command")
    Loopback(files).serve(place.offer("shown", rounds=1, steps=1))
    shown = CliRunner().invoke(app, ["audit", str(files[SITE].path)])
    assert shown.exit_code == 0, shown.output
    assert "shown: step fit of round 1 from server, answered; model: 11 tensors, " in shown.output
    last = CliRunner().invoke(app, ["audit", str(files[SITE].path), "--last", "1"])
    assert last.output.splitlines() == shown.output.splitlines()[-2:]


# ---- the file

WHOLE = AuditEntry(
    time="2026-01-02T03:04:05+00:00",
    site="north",
    sender="server",
    kind="step",
    outcome="answered",
    round=3,
    leaves={"model": SentTensors(tensors=1, values=2, bytes=8)},
    names=("model/weight",),
    budget=SpentBudget(
        unit="site", adjacency="replace", delta=1e-5, epsilon=float("inf"), composed=None, total_epsilon=None
    ),
)
SHORT = AuditEntry(
    time="2026-01-02T03:04:05+00:00", site="north", receiver="south", kind="peer_message", outcome="sent"
)


def test_entries_come_back_from_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    for entry in (WHOLE, SHORT):
        add_entry(path, entry)
    assert read_entries(path) == [WHOLE, SHORT]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kept", [1, 40, 70])
def test_after_a_line_that_was_cut_off_the_next_one_is_whole(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "audit.jsonl"
    add_entry(path, SHORT)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:kept])
    add_entry(path, WHOLE)
    assert read_entries(path) == [SHORT, None, WHOLE]
    assert "unreadable line" in audit_log.entry_text(None)


def _add_some(path: Path) -> None:
    for _ in range(20):
        add_entry(path, WHOLE)


def test_several_processes_add_to_one_file(tmp_path: Path) -> None:
    path, context = tmp_path / "audit.jsonl", multiprocessing.get_context("fork")
    processes = [context.Process(target=_add_some, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert read_entries(path) == [WHOLE] * 60


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "audit.jsonl"
    with refused(StoreError, "unwritable_file", path=str(path), reason="No space left on device"):
        add_entry(path, SHORT)
    with refused(StoreError, "unreadable_file", path=str(tmp_path / "nothing")):
        read_entries(tmp_path / "nothing")
