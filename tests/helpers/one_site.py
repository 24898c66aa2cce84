"""A provisioned federation of one site on this machine, whose processes NVFlare starts as it does at a hospital."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loopback import write_site_file

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.federation import read_federation
from medfl.engine.store import Store
from medfl.testing.cohort import scores
from medfl.testing.synthetic import make_cohort
from medfl.types import Meta
from medfl.utils import wire
from medfl_flare import kit as kits
from medfl_flare.offer import make_offer
from medfl_flare.provision import Project, provision
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.session import Submission, submit

SITE, ME, BUNDLE = "site-01", "me@hospital.org", "medmnist_classification"
SETTINGS: Meta = {"method": "fedavg", "rounds": 1, "steps": 2}
FACTS: Meta = {"num_classes": 4, "in_channels": 3, "size": 28, "spatial_dims": 2, "image_reading": None}


@dataclass
class OneSite:
    """A federation with one site and a running server.

    Attributes:
        root: Folder of all its files.
        port: Port of the server.
        kits: Maps ``server``, the site and the researcher to their startup kits.
    """

    root: Path
    port: int
    kits: dict[str, Path]

    def behind(self, port: int) -> None:
        """Let the site reach the server at another port."""
        path = self.kits[SITE] / "startup" / "fed_client.json"
        client = json.loads(path.read_text())
        client["servers"][0]["service"]["target"] = f"localhost:{port}"
        path.write_text(json.dumps(client))

    def change_resources(self, change: Callable[[Meta], object]) -> None:
        """Change the site's ``resources.json`` in place."""
        path = self.kits[SITE] / "local" / "resources.json"
        resources = json.loads(path.read_text())
        change(resources)
        path.write_text(json.dumps(resources))

    @contextlib.contextmanager
    def site_running(self, **variables: str) -> Iterator[None]:
        """Run the site's process, with some environment variables, as long as the context lasts."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            kits.start(self.kits[SITE], restart=False, patience=300)
        try:
            yield
        finally:
            kits.stop(self.kits[SITE])

    def submit(self, name: str, gpus: GpuRequest | None = None, **settings: Any) -> None:
        """Submit a run of one round, and follow it to its end."""
        offer = make_offer(shipped_bundles()[BUNDLE], SETTINGS | FACTS | settings, name, [SITE], 600)
        submit(Submission(offer, self.kits[ME], self.root / "out" / name, gpus=gpus))

    def run(self, name: str, gpus: GpuRequest | None = None, **variables: str) -> Meta:
        """Carry out a run of one round while the site's process is running, and return the summary.

        Args:
            name: Name of the run.
            gpus: GPUs that the run requests.
            **variables: Environment variables of the site's process.
        """
        with self.site_running(**variables):
            self.submit(name, gpus)
        summary: Meta = json.loads((self.root / "out" / name / "summary.json").read_text())
        return summary

    def has_bits_of_one_machine(self, name: str) -> bool:
        """Return whether states and scores of a run equal those of the same run on one machine."""
        folder = self.root / "local" / name
        places = {"dataset_dir": str(self.root / "data"), "device": "cpu", "output_dir": str(folder)}
        read_federation(shipped_bundles()[BUNDLE], SETTINGS | places).simulate()
        here = {who: folder / "state" / who for who in ("server", SITE)}
        there = {who: self.root / who / "state" / "runs" / name / "state" / who for who in ("server", SITE)}
        same = [_digest(here[who]) == _digest(there[who]) for who in here]
        rows = [row for row in scores(folder) if row.split(",")[1] != "global"]  # the server has no test set
        return all(same) and rows == scores(self.root / "out" / name)


def _digest(folder: Path) -> list[Any]:
    record = Store(folder).latest()
    assert record is not None, folder
    return [wire.digest(record.state().tensors), record.state().meta]


@contextlib.contextmanager
def one_site(root: Path, scheme: str = "http") -> Iterator[OneSite]:
    """Provision a federation of one site, and run its server as long as the context lasts."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made = provision(Project("localhost", (SITE,), ME, port=port, scheme=scheme), root / "kits")
    names = {"server": made["localhost"], SITE: made[SITE], ME: made[ME]}
    make_cohort(root / "data", sites=1, images_per_site=40)
    for who in ("server", SITE):
        data = None if who == "server" else root / "data" / SITE
        entry = {"folder": str(shipped_bundles()[BUNDLE])} | ({} if data is None else {"data": str(data)})
        own = write_site_file(
            root / who, who, shipped_bundles()[BUNDLE], data, methods=["fedavg"], **{f"bundles.{BUNDLE}": entry}
        )
        (names[who] / "local" / "medfl-site.toml").write_text(own.read_text())
    kits.start(names["server"], restart=False, patience=300)
    try:
        yield OneSite(root, port, names)
    finally:
        kits.stop(names["server"])
