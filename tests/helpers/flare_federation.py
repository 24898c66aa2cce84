"""A provisioned federation on this machine: a server and three sites under mutual TLS, in processes of NVFlare's."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from loopback import METHODS, SITES, Place, digests, write_bundle
from toys import snapshot

from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import MedflError
from medfl.plugins import load_plugins
from medfl.testing.cohort import scores
from medfl.testing.synthetic import make_cohort
from medfl.types import Meta
from medfl_datasets.medmnist.spec import prepare
from medfl_flare import kit
from medfl_flare.connection import Connection
from medfl_flare.offer import make_offer
from medfl_flare.provision import Project, provision
from medfl_flare.records.offer import Offer
from medfl_flare.session import Submission, connect, read_submission, resume, submit
from medfl_flare.sites.site_file import SiteFile

RESEARCHER = "researcher@hospital.org"
HERE = Path(__file__).parent
REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "medmnist", "breastmnist.npz")
KEPT = 6
"""Every so-manieth image of BreastMNIST is used."""

Provide = Callable[[Project, Path], dict[str, Path]]
"""Makes the kits of a federation in a folder."""

BREAST = {"num_classes": 2, "in_channels": 1, "size": 28, "spatial_dims": 2, "image_reading": None}
CELLS = {"num_classes": 3, "in_channels": 3, "size": 12, "spatial_dims": 2, "image_reading": None}


def make_data(root: Path) -> tuple[Path, Meta]:
    """Three sites, public images and the server's test set: BreastMNIST, or made-up cells where that is not at hand.

    Returns:
        The folder of the partition, and the facts of a run that its data decide.
    """
    if not REAL.is_file():
        make_cohort(root / "data", sites=4, images_per_site=30, classes=3, size=12, seed=1)
        (root / "data" / "site-04").rename(root / "data" / "public")
        return root / "data", CELLS
    with np.load(REAL) as whole:
        np.savez(root / "breastmnist.npz", **{name: whole[name][::KEPT] for name in whole})
    prepare(root, "breastmnist", root / "pool")
    plan = PartitionPlan(
        "dirichlet_class", 3, options={"alpha": 5.0, "min_size": 20}, val_fraction=0.2, public="validation"
    )
    partition(root / "pool", root / "data", plan, load_plugins().partition(plan.scheme))
    return root / "data", BREAST


@dataclass
class Federation:
    """A provisioned federation whose participants run.

    Attributes:
        place: Where bundle and data are.
        facts: Of its images.
        kits: Participant to its startup kit.
        files: Server and sites to their own files.
        warm: Folder of what forks job processes.
    """

    place: Place
    facts: Meta
    kits: dict[str, Path]
    warm: Path
    files: dict[str, SiteFile] = field(default_factory=dict)
    _connection: Connection | None = None

    # ---- participants

    def write_files(self, **changes: Mapping[str, Any]) -> None:
        """Write the participants' own files anew; each change is for one of them."""
        root, data = self.place.root, self.place.data
        other = {name: {"folder": str(root / "other"), "data": str(data / name)} for name in SITES}
        other |= {"server": {"folder": str(root / "other"), "data": str(data)}}
        other["site-03"]["folder"] = str(root / "changed" / "other")
        standing: dict[str, dict[str, Any]] = {name: {"bundles.other": entry} for name, entry in other.items()}
        standing["site-01"]["methods"] = [method for method in METHODS if method != "fedprox"]
        standing["site-02"]["max_message_mb"] = 1
        entries = {site: own | dict(changes.get(site.replace("-", "_"), {})) for site, own in standing.items()}
        self.files = self.place.files("files", entries)
        for site in self.files:
            shutil.copy(self.place.root / "files" / site / "medfl-site.toml", self.kits[site] / "local")

    def start(self, *names: str) -> None:
        """Start participants, all at once."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: kit.start(self.kits[name], restart=False, patience=300), names))

    def kill(self, name: str) -> None:
        """End all processes of a participant as a power cut does."""
        killed = kit.processes(self.kits[name])
        for process in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_for(lambda: all(map(is_over, killed)) and not kit.processes(self.kits[name]))

    # ---- runs

    def offer(self, run: str, bundle: str = "small", timeout: int = 300, **overrides: Any) -> Offer:
        """A run of two rounds of two steps."""
        values = {
            "rounds": 2,
            "steps": 2,
            "batch_size": 8,
            "network_name": "resnet4",
            "seed": 3,
            "metrics": ["accuracy"],
        }
        return make_offer(self.place.root / bundle, values | self.facts | overrides, run, SITES, timeout)

    def begin(self, offer: Offer) -> Path:
        """Submit a run and stop following it with Ctrl-C; returns its folder here."""
        out = self.place.root / "out" / offer.run

        def opener(_: Path) -> Connection:
            connection = self._shared()
            connection.status = _interrupt  # type: ignore[method-assign]
            return connection

        with pytest.raises(KeyboardInterrupt):
            submit(Submission(offer, self.kits["researcher"], out), opener)
        return out

    def end(self, out: Path, *, report: bool = False) -> tuple[Meta, str]:
        """Follow a run to its end and fetch its result; returns its summary and what was wrong."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("medfl_flare.follow.POLL_SECONDS", 0.3)
            if not report:  # each takes a second
                patch.setattr("medfl_report.page.write_report", lambda runs: None)
            wrong = ""
            try:
                resume(out, lambda kit: self._shared())
            except MedflError as error:
                wrong = str(error)
        assert len(read_submission(out).jobs) == 1
        return json.loads((out / "summary.json").read_text()), wrong

    def state(self, out: Path) -> str:
        """Return the state of a run in a word; ``over`` after the end of its job."""
        connection, job = self._shared(), read_submission(out).jobs[-1]
        if connection.has_ended(job):
            return "over"
        return str(connection.progress(job).progress.get("state", "starting"))

    def _shared(self) -> Connection:
        """The one connection of all; a login takes more than a second."""
        if self._connection is None:
            self._connection = connect(self.kits["researcher"])
        connection = copy.copy(self._connection)
        connection.close = lambda: None  # type: ignore[method-assign]
        return connection

    def leave(self) -> None:
        """Log out; NVFlare's threads would go on for ever."""
        if self._connection is not None:
            self._connection.close()

    def equals_local(self, offer: Offer, out: Path) -> None:
        """Compare digests of all participants and all scores with a run on one machine with the sites' secrets.

        Under privacy no loss leaves a site; under secure aggregation signatures of keys are bytes more.
        """
        folder = self.place.root / "local" / offer.run
        self.place.local(offer, self.files, folder)
        expected = snapshot(folder)
        actual = digests(self.files["server"].state / "runs" / offer.run, self.files, offer.run)
        assert actual == {name: expected[name] for name in actual}
        assert set(actual) == {"server", *SITES}
        private, secure = (offer.overrides.get(name) is not None for name in ("privacy", "secure_aggregation"))

        def compared(row: str) -> bool:
            return not (private and "loss," in row or secure and "bytes_" in row)

        assert list(filter(compared, scores(out))) == list(filter(compared, expected["rows"]))

    # ---- standing still

    def state_folder(self, participant: str, run: str) -> Path:
        """Return the folder of a participant's state in a run."""
        return self.files[participant].state / "runs" / run / "state" / participant

    def hold(self, name: str, participant: str, run: str, step: int) -> None:
        """Have a participant stand still just before it saves a step."""
        self._hold(name, self.state_folder(participant, run) / f"step-{step:08d}.safetensors", 0)

    def hold_in_training(self, name: str, site: str, run: str, checkpoints: int) -> None:
        """Have a site stand still within a training, after its process has written a number of checkpoints."""
        self._hold(name, self.state_folder(site, run) / "training-1.safetensors", checkpoints)

    def _hold(self, name: str, target: Path, count: int) -> None:
        new = self.warm / "holds" / f"{name}.new"
        new.write_text(f"{target}\n{count}\n")
        new.rename(new.with_suffix(".hold"))

    def held(self, name: str) -> int:
        """Wait until a process stands still there; no further one will. Returns the process."""
        hold = self.warm / "holds" / f"{name}.hold"
        wait_for(hold.with_suffix(".held").exists)
        hold.unlink()
        return int(hold.with_suffix(".held").read_text())


def _interrupt(job: str) -> NoReturn:
    raise KeyboardInterrupt


def is_over(process: int) -> bool:
    """Return True if a process has released its ports: its last thread has ended, and `ps` shows no command line."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{process}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(done: Callable[[], Any], seconds: float = 300.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.05)


@contextlib.contextmanager
def federation(root: Path, provide: Provide = provision, *, warm: bool = True) -> Iterator[Federation]:
    """A federation for as long as the context lasts.

    Args:
        root: Folder for all its files.
        provide: Makes its kits.
        warm: Whether job processes are forked from one that has imported torch; otherwise NVFlare starts them.
    """
    data, facts = make_data(root)
    place = Place(root, write_bundle(root / "small"), data)
    _make_bundles(root)
    folder = root / "w"
    (folder / "holds").mkdir(parents=True)
    command = [sys.executable, str(HERE / "warm_jobs.py"), str(folder), "-" * 4000]
    threads = dict.fromkeys(kit.THREAD_VARIABLES, "1")
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | threads | {"PYTHONPATH": path}
        ) as forking,
    ):
        patch.setenv("PYTHONPATH", path)  # of what participants start
        patch.setattr("medfl_flare.follow.GONE_SECONDS", 90.0)  # where others keep the cores busy
        patch.setattr("medfl_flare.session.LOGIN_SECONDS", 120.0)
        assert forking.stdin is not None
        assert forking.stdout is not None
        kits = _make_kits(root / "kits", folder / "socket" if warm else None, provide)
        running = Federation(place, facts, kits, folder)
        running.write_files()
        try:
            running.start("server", *SITES)
            assert forking.stdout.readline() == b"ready\n"
            yield running
        finally:
            running.leave()
            for name in ("server", *SITES):
                running.kill(name)
            forking.stdin.close()


def _make_bundles(root: Path) -> None:
    """Beside the bundle one with a large network; the same under another name, and with one changed number."""
    path = root / "small" / "configs" / "train.json"
    content = json.loads(path.read_text())
    content["networks"]["large"] = content["networks"]["resnet4"] | {"width": 24}
    path.write_text(json.dumps(content))
    shutil.copytree(root / "small", root / "other")
    shutil.copytree(root / "small", root / "changed" / "other")
    content["optimizer"]["momentum"] = 0.8
    (root / "changed" / "other" / "configs" / "train.json").write_text(json.dumps(content))


def _make_kits(folder: Path, address: Path | None, provide: Provide) -> dict[str, Path]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made = provide(Project("localhost", SITES, RESEARCHER, port=port), folder)
    kits = {"server": made["localhost"], "researcher": made[RESEARCHER]} | {site: made[site] for site in SITES}
    for name in ("server", *SITES):
        path = kits[name] / "local" / "resources.json"
        resources = json.loads(path.read_text())
        launcher = f"warm_launcher.{'WarmServer' if name == 'server' else 'WarmSite'}"
        for part in resources["components"]:
            if part["id"] == "process_launcher" and address is not None:
                part |= {"path": launcher, "args": {"address": str(address)}}
            if part["id"] == "job_scheduler":
                part["args"]["max_jobs"] = 20
        if address is not None:
            resources["class_allow_list"].append(launcher)
        path.write_text(json.dumps(resources))
    return kits
