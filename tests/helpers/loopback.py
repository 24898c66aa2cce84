"""A federation across machines in one process: the server's and the sites' ends talk through function calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.data.sites import load_global, load_site, load_sites
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, SimulationResult, simulate
from medfl.engine.site import Splits
from medfl.testing.synthetic import make_cohort
from medfl.types import PUBLIC
from medfl_flare.backend.messages import Limits
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import open_offer
from medfl_flare.records.offer import Offer
from medfl_flare.server import serve
from medfl_flare.sites.site_file import SiteFile, read_site_file
from medfl_flare.sites.site_service import SiteService

BUNDLE = "small"
SITES = ("site-01", "site-02", "site-03")
FACTS = {"num_classes": 3, "in_channels": 3, "size": 12, "spatial_dims": 2, "image_reading": None}
UNLIKE = {"site-01": "resnet4", "site-02": "resnet6", "site-03": "resnet8"}


def write_bundle(out: Path) -> Path:
    """A hospital's copy of medfl's bundle for MedMNIST, with residual networks and smaller plain ones."""
    shutil.copytree(shipped_bundles()["medmnist_classification"], out)
    images = {"spatial_dims": "@spatial_dims", "in_channels": "@in_channels", "num_classes": "@num_classes"}
    residual = images | {
        "_target_": "medfl.networks.resnet.ResNet", "_mode_": "callable", "depth": 10, "norm": "group",
        "stem_kernel": 3, "stem_pool": False,
    }  # fmt: skip
    plain = images | {
        "_target_": "medfl.networks.convnet.ConvNet", "_mode_": "callable", "size": "@size", "dense": 8,
        "norm": "batch",
    }  # fmt: skip
    networks = {f"resnet{width}": residual | {"width": width} for width in (4, 6, 8)}
    networks |= {f"mini{width}": plain | {"channels": [width]} for width in (4, 6, 8)}
    for name in ("train.json", "inference.json"):
        path = out / "configs" / name
        content = json.loads(path.read_text())
        content["networks"] |= networks | {"tiny": networks["mini4"]}
        path.write_text(json.dumps(content, indent=4))
    return out


def write_site_file(folder: Path, site: str, bundle: Path, data: Path | None, **changes: Any) -> Path:
    """A participant's own file; a change to None leaves the line out."""
    values: dict[str, Any] = {
        "site": site, "state": str(folder / "state"), "max_rounds": 5, "min_count": 1, "threads": 1, "device": "cpu",
        "methods": METHODS, "cross_site_evaluation": True, "shared_test": True, "disclose": DISCLOSED,
    }  # fmt: skip
    tables = {key: value for key, value in changes.items() if isinstance(value, dict)}
    values |= {key: value for key, value in changes.items() if key not in tables}
    entry = {"folder": str(bundle)} | ({} if data is None else {"data": str(data)}) | tables.pop("entry", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    for name, table in ({f"bundles.{BUNDLE}": entry} | tables).items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "medfl-site.toml").write_text("\n".join(lines) + "\n")
    return folder / "medfl-site.toml"


DISCLOSED = ["size", "label_counts", "feature_sums"]

METHODS = [
    "local", "fedavg", "fedprox", "fedbn", "fedkper", "pfedcdp", "fedavgm", "fedadam", "fedyogi", "fedadagrad",
    "feddisco", "isfl", "fedper", "fedrep", "fedsdc", "fedcross", "fedcross_star", "fedskd", "fedfed", "fedtpf",
    "centralized", "feddf", "ditto",
]  # fmt: skip


@dataclass
class Loopback:
    """Server and sites; also a `medfl_flare.backend.remote_backend.Transport`.

    Attributes:
        files: Participant to its own file.
        tamper: Changes a message to a site: (site, blob) to blob; None brings nothing.
        tamper_answer: The same for an answer.
        tamper_peer_message: The same for a peer message: (sender, receiver, blob).
        signers: Site to the key that it signs its peer messages with; without one nothing is signed.
    """

    files: Mapping[str, SiteFile]
    tamper: Callable[[str, bytes], bytes | None] = lambda site, blob: blob
    tamper_answer: Callable[[str, bytes], bytes | None] = lambda site, blob: blob
    tamper_peer_message: Callable[[str, str, bytes], bytes | None] = lambda sender, to, blob: blob
    services: dict[str, SiteService] = field(default_factory=dict)
    signers: Mapping[str, Any] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """All sites' processes end and begin again."""
        for service in self.services.values():
            service.close()
        for site in self.files:
            if site != "server":
                beat = partial(self._beat, site)
                self.services[site] = SiteService(self.files[site], self._poster(site), beat, self.signers.get(site))

    def _poster(self, sender: str) -> Callable[[str, bytes, float], bool]:
        def post(to: str, blob: bytes, patience: float) -> bool:
            brought = self.tamper_peer_message(sender, to, blob)
            return brought is not None and self.services[to].receive(sender, brought) is None

        return post

    def listen(self, hear: Callable[[str, bytes], bool], folder: Path, limits: Limits) -> None:
        self._hear = hear

    def _beat(self, site: str, blob: bytes) -> None:
        self._hear(site, blob)

    def ask(self, requests: Mapping[str, bytes], patience: float, take: Callable[[str, bytes], None]) -> dict[str, str]:
        silent = {}
        for site in sorted(requests, reverse=True):  # any order will do
            blob = self.tamper(site, requests[site])
            self.sent.append((site, len(requests[site])))
            answer = None if blob is None else self.tamper_answer(site, self.services[site].answer(blob))
            if answer is None:
                silent[site] = "did not reply in time"
            else:
                take(site, answer)
        return silent

    def serve(self, offer: Offer) -> tuple[Path, RunStatus]:
        progress = RunStatus()
        return serve(offer, self.files["server"], self, progress), progress


@dataclass
class Place:
    """Folders of a federation's data and files."""

    root: Path
    bundle: Path
    data: Path

    def files(self, name: str, changes: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, SiteFile]:
        """Fresh files and states for all participants, under a name."""
        files = {}
        for site in ("server", *SITES):
            data = self.data if site == "server" else self.data / site
            own = (changes or {}).get(site, {})
            files[site] = read_site_file(write_site_file(self.root / name / site, site, self.bundle, data, **own))
        return files

    def offer(self, run: str = "one", **overrides: Any) -> Offer:
        values = {"rounds": 2, "batch_size": 8, "network_name": "tiny", "seed": 3, "metrics": ["accuracy"]}
        values |= FACTS | overrides
        return make_offer(self.bundle, values, run, SITES, 5)

    def local(
        self,
        offer: Offer,
        files: Mapping[str, SiteFile],
        folder: Path,
        callbacks: Callbacks | None = None,
        **options: Any,
    ) -> SimulationResult:
        """The same run by the local carrier, with the sites' secrets; `options` go to `Simulation`."""
        opened = open_offer(offer, files["server"])
        built, task = opened.built, opened.task
        loaded = load_sites(self.data, task.objective, built.mean, built.std)
        test = load_global(self.data, task.objective, built.mean, built.std)
        about = (self.data / PUBLIC, task.objective, built.mean, built.std)
        public = load_site(*about) if about[0].is_dir() else None
        return simulate(
            SimulatedRun(
                method=MethodChoice(name=offer.method, make=opened.make_method, args=built.method_args),
                task=task,
                settings=opened.settings,
                data=RunData(
                    sites={name: Splits(site.train, site.val, site.test, site.digest) for name, site in loaded.items()},
                    server_test=test.test if test else None,
                    public=public.train if public else None,
                    public_test=public.test if public else None,
                ),
                folder=folder,
                simulation=Simulation(secrets={site: files[site].secret() for site in SITES}, **options),
                callbacks=callbacks or Callbacks(),
            )
        )


def make_place(root: Path, images: int = 30) -> Place:
    make_cohort(root / "data", sites=3, images_per_site=images, classes=3, size=12, seed=1)
    return Place(root, write_bundle(root / BUNDLE), root / "data")


def digests(server: Path, files: Mapping[str, SiteFile], run: str) -> dict[str, Any]:
    """The newest state of every participant of a run across machines."""
    from medfl.engine.store import Store
    from medfl.utils import wire

    folders = {"server": server / "state" / "server"}
    folders |= {site: files[site].state / "runs" / run / "state" / site for site in SITES}
    states = {}
    for name, folder in folders.items():
        record = Store(folder).latest()
        assert record is not None
        states[name] = [wire.digest(record.state().tensors), record.state().meta, record.state().blobs]
    return states
