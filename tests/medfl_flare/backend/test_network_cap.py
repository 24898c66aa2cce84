"""A run with a larger network than a participant allows is refused before the network is built."""

from __future__ import annotations

import json
from pathlib import Path

from loopback import Loopback, make_place
from refusals import refused

from medfl.errors import RefusedError
from medfl_flare.backend.messages import Limits, Message, pack, unpack


def test_server_and_site_refuse_a_network_beyond_their_cap(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    loopback = Loopback(place.files("one", {"site-01": {"max_network_mb": 2}}))
    with refused(RefusedError, "network_too_large", network="tiny", site="server", maximum=1024):
        loopback.serve(place.offer(in_channels=10**9))
    offer = place.offer(in_channels=10**5)  # 14.4 MB: within the server's cap
    service = loopback.services["site-01"]
    reason = unpack(service.answer(pack(Message("hello", {}, offer.to_json()))), Limits()).meta["refused"]
    assert "'site-01' allows networks of at most 2 MB (max_network_mb), and this network is larger" in reason


def test_the_network_of_another_site_counts_too(tmp_path: Path) -> None:
    """A site builds the networks of other sites, to check their peer messages."""
    place = make_place(tmp_path)
    path = place.bundle / "configs" / "train.json"
    content = json.loads(path.read_text())
    content["networks"]["wide"] = content["networks"]["tiny"] | {"channels": [640], "dense": 64}
    path.write_text(json.dumps(content))
    loopback = Loopback(place.files("two", {"site-01": {"max_network_mb": 2}}))
    service = loopback.services["site-01"]
    begin = {"networks": {"site-02": "wide"}}
    for kind, meta in (("hello", place.offer().to_json()), ("begin", begin)):
        answer = unpack(service.answer(pack(Message(kind, {}, meta))), Limits())
    assert "the network 'wide'" in answer.meta["refused"]
    service.close()
