"""A site's record of what left it: every message, its size, its tensors, the budget; and nothing leaves without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loopback import SITES, Loopback, Place, make_place
from typer.testing import CliRunner

from medfl.errors import StoreError
from medfl.types import Meta
from medfl.utils.chain import read
from medfl_flare.backend.messages import Limits, unpack
from medfl_flare.commands.site import app
from medfl_flare.sites import audit
from medfl_flare.sites.audit import audit_file

SITE = SITES[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"))


def test_every_message_that_leaves_is_in_the_record_with_what_it_holds(place: Place) -> None:
    left: list[bytes] = []

    def keep(site: str, blob: bytes) -> bytes:
        left.extend([blob] if site == SITE else [])
        return blob

    parcels: list[tuple[str, int]] = []

    def keep_parcel(sender: str, to: str, blob: bytes) -> bytes:
        parcels.extend([(to, len(blob))] if sender == SITE else [])
        return blob

    files = place.files("audit")
    offer = place.offer("audited", method="fedcross", steps=1)
    _, progress = Loopback(files, tamper_answer=keep, tamper_parcel=keep_parcel).serve(offer)
    assert progress.state == "finished"
    chain = read(audit_file(files[SITE]))
    assert not chain.broken
    answers = [entry for entry in chain.entries if entry["outcome"] == "answered"]
    assert [entry["bytes"] for entry in answers] == [len(blob) for blob in left]
    for entry, blob in zip(answers, left, strict=True):
        message = unpack(blob, Limits(max_bytes=10**9))
        assert entry["asked"] == message.kind
        assert sum(kind["tensors"] for kind in entry.get("leaves", {}).values()) == len(message.tensors)
        assert sum(kind["values"] for kind in entry.get("leaves", {}).values()) == sum(
            tensor.numel() for tensor in message.tensors.values()
        )
        assert {"run": "audited", "method": "fedcross", "bundle_sha256": offer.bundle_hash}.items() <= entry.items()
    sent = [entry for entry in chain.entries if entry["outcome"] == "sent"]
    assert [entry["to"] for entry in sent] == [to for to, _ in parcels]
    assert sent
    assert all(entry["leaves"] for entry in sent)
    assert sum(entry["outcome"] == "accepted" for entry in chain.entries) > 0


def test_a_refusal_says_why_and_which_run_it_was(place: Place) -> None:
    files = place.files("audit-refused", {SITE: {"methods": ["fedprox"]}})
    Loopback(files).serve(place.offer("unwanted", rounds=1, steps=1, min_replies=2))
    refusals = [entry for entry in read(audit_file(files[SITE])).entries if entry["outcome"] == "refused"]
    assert [(entry["asked"], entry["run"]) for entry in refusals] == [("hello", "unwanted")]
    assert "fedavg" in refusals[0]["why"]


def test_the_budget_is_that_of_the_account(place: Place) -> None:
    privacy = {"unit": "site", "adjacency": "replace", "epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
    files = place.files("audit-private")
    Loopback(files).serve(place.offer("private", steps=1, privacy=privacy, network_name="resnet4"))
    budgets = [entry["budget"]["epsilon"] for entry in read(audit_file(files[SITE])).entries if "budget" in entry]
    assert budgets == sorted(budgets)
    assert budgets[-1] == pytest.approx(8.0, rel=1e-2)
    assert budgets[0] < budgets[-1]


def test_what_can_not_be_noted_does_not_leave(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []

    def keep(site: str, blob: bytes) -> bytes:
        left.extend([blob] if site == SITE else [])
        return blob

    def full(path: Path, entry: Meta) -> str:
        if entry["site"] == SITE and "leaves" in entry:
            raise StoreError("unwritable_file", "Could not write a line")
        return ""

    monkeypatch.setattr(audit, "add_line", full)
    files = place.files("audit-full")
    Loopback(files, tamper_answer=keep).serve(place.offer("full", rounds=1, steps=1, min_replies=2))
    messages = [unpack(blob, Limits(max_bytes=10**9)) for blob in left]
    assert any("a problem with its store" in (message.meta["refused"] or "") for message in messages)
    assert not any(message.tensors for message in messages)


def test_the_command_shows_lines_and_finds_one_that_was_edited(place: Place) -> None:
    files = place.files("audit-command")
    Loopback(files).serve(place.offer("shown", rounds=1, steps=1))
    path, runner = audit_file(files[SITE]), CliRunner()
    shown = runner.invoke(app, ["audit", str(files[SITE].path), "--verify"])
    assert shown.exit_code == 0, shown.output
    assert "ok: all lines fit" in shown.output
    assert "shown: step fit of round 1 from server, answered; model: 77 tensors, " in shown.output
    noted = shown.output.splitlines()[-2].split()[-1]
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    gone = runner.invoke(app, ["audit", str(files[SITE].path), "--hash", noted, "--last", "0"])
    assert gone.exit_code == 2
    assert "is not among the lines" in gone.output
    lines[1] = lines[1].replace(json.loads(lines[1])["time"][:4], "1999")
    path.write_text("\n".join(lines) + "\n")
    edited = runner.invoke(app, ["audit", str(files[SITE].path), "--verify"])
    assert edited.exit_code == 2
    assert "FAIL: line 2 was changed" in edited.output
