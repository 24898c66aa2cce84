"""Distributed secure aggregation: the bits of one machine, signed keys, and a server that changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit_keys import Root
from loopback import SITES, Loopback, Place, digests, make_place

from medfl.engine.secure.keys import public_key
from medfl.engine.store import Store
from medfl.testing.cohort import scores
from medfl.utils import wire
from medfl_flare.backend.message_checks import Limits
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.sites.site_file import SiteFile

SECURE: dict[str, Any] = {"secure_aggregation": {"threshold": 2}, "norm_sync": "params"}
PRIVACY: dict[str, Any] = {"privacy": {"epsilon": 20.0, "clip": 0.5}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("secure"))


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


def with_kits(place: Place, root: Root, name: str, **changes: Any) -> dict[str, SiteFile]:
    """Write each site's own file into a kit."""
    files = place.files(name, dict.fromkeys(SITES, changes))
    for site in SITES:
        kit = root.kit(place.root / name / "kits" / site, site)
        files[site]._path = kit / "local" / "medfl-site.toml"
    return files


@pytest.mark.parametrize("private", [pytest.param(False, marks=pytest.mark.slow), True])
def test_bits_are_those_of_one_machine(private: bool, place: Place, root: Root, tmp_path: Path) -> None:
    files = with_kits(place, root, f"same-{private}", least_threshold=2)
    offer = place.offer(**SECURE, **(PRIVACY if private else {}))
    folder, progress = Loopback(files).serve(offer)
    assert progress.state == "finished", progress.message
    place.local(offer, files, tmp_path / "local")
    local = {
        participant: Store(tmp_path / "local" / "state" / participant).latest() for participant in ("server", *SITES)
    }
    states = {participant: record.state() for participant, record in local.items() if record is not None}
    assert digests(folder, files, offer.run) == {
        participant: [wire.digest(state.tensors), state.meta, state.blobs] for participant, state in states.items()
    }
    left, right = (
        [row for row in scores(where) if "bytes_" not in row and "loss" not in row]  # signatures are bytes, too
        for where in (folder, tmp_path / "local")
    )
    assert left == right


def test_a_server_that_puts_its_own_keys_in_place_is_noticed(place: Place, root: Root) -> None:
    files = with_kits(place, root, "keys")
    own = public_key(b"k" * 32) * 2

    def with_own_keys(site: str, blob: bytes) -> bytes:
        message = unpack(blob, Limits())
        name = "request/secure/public/site-02"
        if site != "site-01" or name not in message.tensors:
            return blob
        message.tensors[name] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        request = {n.removeprefix("request/"): t for n, t in message.tensors.items() if n.startswith("request/")}
        meta = message.meta | {"request": message.meta["request"] | {"digest": wire.digest(request)}}
        return pack(Message(message.kind, message.tensors, meta))

    loop = Loopback(files, tamper=with_own_keys)
    _, progress = loop.serve(place.offer("keys", **SECURE))
    assert progress.state == "diverged"
    assert "2 of 3 needed replies came. Missing: site-01" in progress.message


def test_without_a_kit_a_site_takes_no_part(place: Place) -> None:
    files = place.files("bare")
    _, progress = Loopback(files).serve(place.offer("bare", **SECURE))
    assert progress.state == "incomplete"
    assert "0 of 3 needed replies came" in progress.message
