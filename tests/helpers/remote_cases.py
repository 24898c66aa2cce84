"""Federations across machines that are small enough to be run many times, and ways to disturb them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from loopback import SITES, Loopback, Place, digests, make_place
from toys import snapshot

from medfl.engine.store import Store
from medfl.testing.cohort import scores
from medfl.utils import wire
from medfl_flare import server as server_run
from medfl_flare.backend.messages import Limits, Message, pack, unpack
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.offered_bundle import OfferedRun, open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.sites import site_service as site_service
from medfl_flare.sites.site_file import SiteFile

Files = Mapping[str, SiteFile]
LIMITS = Limits()
Change = Callable[[Message], Message | None]
MINIS = {"site-01": "mini4", "site-02": "mini6", "site-03": "mini8"}


def mini_place(root: Path, images: int = 12) -> Place:
    """A place with few images."""
    return make_place(root, images)


def offered(place: Place, **overrides: Any) -> Offer:
    return place.offer(**{"network_name": "mini4", "batch_size": 6} | overrides)


def outcome(folder: Path, files: Files, run: str = "one") -> dict[str, Any]:
    """Return the values that two equal runs across machines have in common."""
    return digests(folder, files, run) | {"rows": scores(folder)}


def local_outcome(folder: Path) -> dict[str, Any]:
    """The same of a run on one machine."""
    states = snapshot(folder)
    return {name: states[name] for name in ("server", *SITES, "rows") if name in states}


def outcome_without(away: str, folder: Path, files: Files, run: str = "one") -> dict[str, Any]:
    """The newest states of all but one site."""
    states = {}
    for name in ("server", *SITES):
        own = folder / "state" / name if name == "server" else files[name].state / "runs" / run / "state" / name
        record = Store(own).latest()
        if name != away and record is not None:
            state = record.state()
            states[name] = [wire.digest(state.tensors), state.meta, state.blobs]
    return states


@contextmanager
def opened_once() -> Iterator[None]:
    """Each participant opens each offer once: what is tried again and again here is the conversation."""
    kept: dict[tuple[str, str], OfferedRun] = {}

    def open_(offer: Offer, site_file: SiteFile) -> OfferedRun:
        key = (json.dumps(offer.to_json(), sort_keys=True), str(site_file.path))
        if key not in kept:
            kept[key] = open_offer(offer, site_file)
        return kept[key]

    with mock.patch.object(server_run, "open_offer", open_), mock.patch.object(site_service, "open_offer", open_):
        yield


class Photographed(Loopback):
    """Keeps what lies on all disks before each message and each peer message: what a stop there would leave."""

    pictures: dict[str, Path]

    def watch(self, home: Path) -> None:
        self.home, self.pictures = home, {}
        self.tamper_peer_message = lambda sender, to, blob: self._keep() or blob
        self.tamper = lambda site, blob: self._keep() or blob

    def _keep(self) -> None:
        total = hashlib.sha256()
        for site in sorted(self.files):
            for path in sorted(self.files[site].state.rglob("*")):
                if path.is_file() and path.parent.name != "replies":
                    total.update(f"{site}/{path.relative_to(self.files[site].state)}".encode() + path.read_bytes())
        if total.hexdigest() not in self.pictures:
            picture = self.pictures[total.hexdigest()] = self.home / f"{len(self.pictures):03d}"
            for site in self.files:
                if self.files[site].state.exists():
                    shutil.copytree(self.files[site].state, picture / site)


def restore(picture: Path, files: Files) -> None:
    """Put all disks back to a picture."""
    for site, file in files.items():
        shutil.rmtree(file.state, ignore_errors=True)
        if (picture / site).exists():
            shutil.copytree(picture / site, file.state)


def changed(blob: bytes, change: Callable[[Message], Message | None]) -> bytes:
    """A message in other words; None leaves it as it is."""
    message = unpack(blob, LIMITS)
    return pack(change(message) or message)


def on(site: str, kind: str, change: Callable[[Message], Message | None]) -> Callable[[str, bytes], bytes]:
    """Changes messages of one kind to or from one site."""

    def tamper(name: str, blob: bytes) -> bytes:
        return changed(blob, change) if name == site and unpack(blob, LIMITS).kind == kind else blob

    return tamper


def silent(site: str, since: str = "hello") -> Callable[[str, bytes], bytes | None]:
    """Loses all messages to or from one site, from one of a kind on."""
    begun = []

    def lose(name: str, blob: bytes) -> bytes | None:
        if name == site and unpack(blob, LIMITS).kind == since:
            begun.append(since)
        return None if name == site and begun else blob

    return lose


def serve(files: Files, offer: Offer, **disturbed: Any) -> tuple[Path, RunStatus, Loopback]:
    """Run it; what else a `Loopback` may have goes to `disturbed`."""
    loopback = Loopback(files, **disturbed)
    try:
        folder, progress = loopback.serve(offer)
    finally:
        for service in loopback.services.values():
            service.close()  # the job is over, and so are its processes
    return folder, progress, loopback


def talk(place: Place, name: str, about: str = "site-01", **overrides: Any) -> tuple[list[bytes], list[bytes]]:
    """An honest run: what a site was told, and what it said."""
    files, requests, replies = place.files(name), [], []

    def hear(site: str, blob: bytes) -> bytes:
        if site == about:
            requests.append(blob)
        return blob

    def tell(site: str, blob: bytes) -> bytes:
        if site == about:
            replies.append(blob)
        return blob

    serve(files, offered(place, **{"rounds": 2} | overrides), tamper=hear, tamper_answer=tell)
    return requests, replies


def set_meta(**values: Any) -> Change:
    def change(message: Message) -> None:
        message.meta |= values

    return change


def set_tensor(make: Callable[[torch.Tensor], torch.Tensor], start: str = "request/") -> Change:
    """Changes one tensor, and the digest with it."""

    def change(message: Message) -> None:
        name = next(name for name, tensor in message.tensors.items() if name.startswith(start) and tensor.ndim)
        message.tensors[name] = make(message.tensors[name])
        if start == "request/":
            message.meta["request"]["digest"] = wire.digest(wire.select(message.tensors, "request/"))

    return change


def other_shape(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :1].contiguous() if tensor.shape[-1] > 1 else torch.cat([tensor, tensor], -1)


def renamed(message: Message) -> Message:
    return Message("steps", message.tensors, message.meta)


def refused(blob: bytes) -> bool:
    message = unpack(blob, LIMITS)
    return isinstance(message.meta["refused"], str) or bool((message.meta.get("answer") or {}).get("refused"))


def flipped(blob: bytes, place: int) -> bytes:
    return blob[:place] + bytes([blob[place] ^ 0x41]) + blob[place + 1 :]


def one_less(message: Message) -> None:
    message.tensors.pop(sorted(message.tensors)[0])


def without_last_site(place: Place, folder: Path) -> dict[str, Any]:
    """One round of federated averaging on one machine in which site-03 is absent: what the others have."""
    place.local(
        offered(place, min_replies=2, rounds=1),
        place.files("alone"),
        folder,
        unavailable=lambda site, step: site == "site-03",
    )
    states = local_outcome(folder)
    return {name: states[name] for name in ("server", "site-01", "site-02")}
