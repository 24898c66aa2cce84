"""Peer messages over a dishonest server: every altered, forged or replayed message is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from kit_keys import Root
from loopback import SITES, Loopback, Place, digests, make_place
from toys import snapshot

from medfl.privacy.signatures import Signer, read_signer
from medfl.types import Meta
from medfl_flare.backend.messages import Limits, pack, unpack
from medfl_flare.backend.signed_messages import PREFIX, PeerMessageSigner

LIMITS = Limits(max_bytes=10**9)
NOT_FITTING = "expected a signature \\(peer message\\) by '{sender}' that fits the content"
CHEAP = {"method": "fedcross", "steps": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signer]:
    """Return signers of the sites, of the server, and of a stranger with another root and the name of a site."""
    folder, root = tmp_path_factory.mktemp("kits"), Root()
    made = {name: read_signer(root.kit(folder / name, name)) for name in (*SITES, "localhost")}
    return made | {"stranger": read_signer(Root().kit(folder / "stranger", SITES[0]))}


def blob_of(signed: bytes, signer: Signer) -> tuple[bytes, bytes]:
    """Return the bytes in front of the packed message, and the packed message."""
    start = len(PREFIX) + 2 + len(signer.certificate) + 2 + 256
    return signed[:start], signed[start:]


def changed(blob: bytes, change: Callable[[Any], None]) -> bytes:
    message = unpack(blob, LIMITS)
    change(message)
    return pack(message)


def one_number(message: Any) -> None:
    name = next(name for name, tensor in sorted(message.tensors.items()) if tensor.is_floating_point())
    message.tensors[name].view(-1)[0] += 1e-3


def later(message: Any) -> None:
    message.meta["step"] += 1


def another_owner(message: Any) -> None:
    message.meta["meta"]["owner"] = "site-01" if message.meta["meta"]["owner"] == "site-03" else "site-03"


def test_a_dishonest_server_can_alter_make_and_move_nothing_and_the_run_has_the_bits_of_one_machine(
    place: Place, signers: dict[str, Signer], tmp_path: Path
) -> None:
    files, offer = place.files("signed"), place.offer("signed", rounds=1, **CHEAP)
    other_run = offer.to_json() | {"run": "other"}
    tried: dict[str, tuple[str | None, str]] = {}

    def attack(sender: str, to: str, signed: bytes) -> bytes:
        """Deliver every message that a dishonest server could send, before the honest one."""
        third, own = next(site for site in SITES if site not in (sender, to)), signers[sender]
        head, blob = blob_of(signed, own)
        forged: dict[str, tuple[str, str, bytes, str]] = {
            "altered": (to, sender, head + changed(blob, one_number), NOT_FITTING),
            "moved to another step": (to, sender, head + changed(blob, later), NOT_FITTING),
            "of another owner": (to, sender, head + changed(blob, another_owner), NOT_FITTING),
            "for another site": (third, sender, signed, NOT_FITTING),
            "in another's name": (to, third, signed, f"the certificate of '{third}', got the one of '{sender}'"),
            "without a signature": (to, sender, blob, "signed by '{sender}', got one without a signature"),
            "cut off": (to, sender, signed[: len(PREFIX) + 100], "got an incomplete one"),
            "of another run": (to, sender, PeerMessageSigner(own, other_run).sign(blob, to), NOT_FITTING),
            "by the server": (
                to, sender, PeerMessageSigner(signers["localhost"], offer.to_json()).sign(blob, to),
                "certificate of '{sender}', got the one of 'localhost'",
            ),
            "by a stranger": (
                to, SITES[0] if to != SITES[0] else SITES[1],
                PeerMessageSigner(signers["stranger"], offer.to_json()).sign(blob, to),
                "by this project's root, got one by another root|got the one of 'site-01'",
            ),
        }  # fmt: skip
        for what, (receiver, name, brought, why) in forged.items():
            refusal = loopback.services[receiver].receive(name, brought)
            tried[f"{what}, {sender} to {to}"] = refusal, why.format(sender=name)
        return signed

    loopback = Loopback(files, tamper_peer_message=attack, signers=signers)
    folder, progress = loopback.serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    assert len(tried) >= 10 * 6
    for what, (refusal, why) in tried.items():
        assert refusal is not None, what
        assert re.search(why, refusal), (what, refusal)
    place.local(offer, files, tmp_path / "local")
    expected, actual = snapshot(tmp_path / "local"), digests(folder, files, "signed")
    assert actual == {name: expected[name] for name in actual}


def test_peer_messages_that_were_kept_from_an_earlier_run_are_refused_in_the_next_one(
    place: Place, signers: dict[str, Signer]
) -> None:
    kept: dict[tuple[str, str, int], bytes] = {}
    files, refusals = place.files("kept", {}), []

    def step_of(sender: str, signed: bytes) -> int:
        return int(unpack(blob_of(signed, signers[sender])[1], LIMITS).meta["step"])

    def keep(sender: str, to: str, signed: bytes) -> bytes:
        kept[sender, to, step_of(sender, signed)] = signed
        return signed

    def replay(sender: str, to: str, signed: bytes) -> bytes:
        refusals.append(second.services[to].receive(sender, kept[sender, to, step_of(sender, signed)]))
        return signed

    first = Loopback(files, tamper_peer_message=keep, signers=signers)
    assert first.serve(place.offer("first", rounds=1, **CHEAP))[1].state == "finished"
    for service in first.services.values():
        service.close()
    second = Loopback(files, tamper_peer_message=replay, signers=signers)
    assert second.serve(place.offer("second", rounds=1, **CHEAP))[1].missing == {}
    assert len(refusals) == len(kept) > 0
    assert all(refusal is not None and "fits the content" in refusal for refusal in refusals)


def test_a_peer_message_that_comes_twice_is_stored_once(signers: dict[str, Signer]) -> None:
    """The sender repeats a message if the acknowledgement was lost, so a duplicate is not refused."""
    run: Meta = {"run": "one"}
    north, south = PeerMessageSigner(signers["site-01"], run), PeerMessageSigner(signers["site-02"], run)
    signed = north.sign(b"content", "site-02")
    assert south.verify(signed, "site-01") == south.verify(signed, "site-01") == b"content"


def test_where_a_server_forges_a_sites_peer_messages_that_site_counts_as_missing(
    place: Place, signers: dict[str, Signer], caplog: pytest.LogCaptureFixture
) -> None:
    def forge(sender: str, to: str, signed: bytes) -> bytes:
        head, blob = blob_of(signed, signers[sender])
        return head + changed(blob, one_number) if sender == SITES[0] else signed

    loopback = Loopback(place.files("forged"), tamper_peer_message=forge, signers=signers)
    _, progress = loopback.serve(place.offer("forged", rounds=1, min_replies=1, **CHEAP))
    assert progress.state == "finished"
    assert f"Round 1: no reply from {SITES[0]}." in caplog.text
