"""The receiver of a peer message checks it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loopback import Loopback, Place
from remote_cases import (
    Change,
    changed,
    flipped,
    mini_place,
    offered,
    one_less,
    opened_once,
    other_shape,
    refused,
    renamed,
    set_meta,
    set_tensor,
)

from medfl.utils import wire
from medfl_flare.backend.messages import Message, pack
from medfl_flare.sites.site_service import SiteService


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with opened_once():
        yield mini_place(tmp_path_factory.mktemp("messages"))


PEER_MESSAGES: dict[str, Change] = {
    "another kind": renamed,
    "a wrong prefix": lambda m: Message("peer_message", wire.prefixed(m.tensors, "other/"), m.meta),
    "other shape": set_tensor(other_shape, "model/"),
    "not finite": set_tensor(lambda t: torch.full_like(t, torch.nan), "model/"),
    "undeclared meta": set_meta(meta={"patient": 1}),
    "meta as list": set_meta(meta=[]),
    "one tensor less": one_less,
    "a step as text": set_meta(step="../../1"),
    "a negative step": set_meta(step=-1),
    "an absurd step": set_meta(step=10**12),
    "another key": set_meta(more=1),
}


STORED = {"a negative step", "an absurd step", "meta as list", "one tensor less"}
"""Peer messages that are accepted, but fail when the receiver's method reads them."""


@pytest.fixture(scope="module")
def peer_message(place: Place) -> tuple[str, str, bytes]:
    """Return a peer message of a run as (sender, receiver, bytes)."""
    peer_messages: list[tuple[str, str, bytes]] = []
    loopback = Loopback(place.files("circulating"))
    loopback.tamper_peer_message = lambda sender, to, blob: peer_messages.append((sender, to, blob)) or blob
    loopback.serve(offered(place, method="fedskd", rounds=1))
    return peer_messages[0]


def begun(place: Place, name: str, site: str, **overrides: Any) -> SiteService:
    """Return a site that has begun a run."""
    service = SiteService(place.files(name)[site], lambda to, blob, patience: True)
    service.answer(pack(Message("hello", {}, offered(place, **overrides).to_json())))
    assert not refused(service.answer(pack(Message("begin", {}, {"networks": {}}))))
    return service


def test_a_site_refuses_peer_messages_that_the_method_would_not_post(
    place: Place, peer_message: tuple[str, str, bytes]
) -> None:
    sender, to, blob = peer_message
    early = SiteService(place.files("peer-messages-early")[to], lambda to, blob, patience: True)
    assert early.receive(sender, blob)  # no run has begun
    service = begun(place, "peer-messages-again", to, method="fedskd", rounds=1)
    inbox = place.root / "peer-messages-again" / to / "state" / "runs" / "one" / "state" / to / "inbox"
    for name, change in PEER_MESSAGES.items():
        if name not in STORED:
            assert service.receive(sender, changed(blob, change)), name
    for stranger in ("stranger", "server", to, "../site-02", ""):
        assert service.receive(stranger, blob), stranger
    for where in range(0, len(blob), max(1, len(blob) // 50)):
        assert service.receive(sender, flipped(blob, where))
    assert not list(inbox.glob("*"))
    assert service.receive(sender, blob) is None
    assert len(list(inbox.glob("*"))) == 1
    service.close()


@pytest.mark.parametrize("what", sorted(STORED))
def test_a_peer_message_that_its_receiver_can_not_use_is_refused(
    place: Place, peer_message: tuple[str, str, bytes], what: str
) -> None:
    name = what.replace(" ", "-")
    sender, to, blob = peer_message
    service = begun(place, name, to, method="fedskd", rounds=1)
    answer = service.receive(sender, changed(blob, PEER_MESSAGES[what]))
    service.close()
    assert answer


def test_a_method_without_peer_messages_takes_none(place: Place, peer_message: tuple[str, str, bytes]) -> None:
    sender, to, blob = peer_message
    files = place.files("plain", {to: {"cross_site_evaluation": False}})
    service = SiteService(files[to], lambda to, blob, patience: True)
    service.answer(pack(Message("hello", {}, offered(place).to_json())))
    service.answer(pack(Message("begin", {}, {"networks": {}})))
    assert "sends no peer messages" in str(service.receive(sender, blob))
    assert "no cross-site evaluation" in str(service.receive(sender, changed(blob, set_meta(use="exchange"))))
    service.close()
    assert not list((place.root / "plain").rglob("*inbox*"))


def test_a_site_does_not_fill_anothers_disk_with_peer_messages(
    place: Place, peer_message: tuple[str, str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medfl_flare.sites.site_run.MAX_WAITING_MESSAGES", 0)
    sender, to, blob = peer_message
    service = begun(place, "flood", to, method="fedskd", rounds=1)
    assert service.receive(sender, blob) is None
    assert "too many wait" in str(service.receive(sender, changed(blob, set_meta(step=7))))
    assert service.receive(sender, blob) is None, "the same one again is stored once"
    service.close()
