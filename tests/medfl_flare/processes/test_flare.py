"""Methods between real NVFlare processes under mutual TLS: the bits of one machine, faults and refusals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zoo_shapes
import zoo_sites
from flare_federation import REAL, Federation, federation, wait_for
from loopback import SITES, UNLIKE, digests
from refusals import refused
from toys import snapshot

from medfl.bundle.bundle_folders import bundle_hash
from medfl.bundle.federation import read_federation
from medfl.errors import MedflError
from medfl.records.ledger import Ledger
from medfl.testing.cohort import scores
from medfl.training.checkpoints import CHECKPOINT_STEM
from medfl.utils import wire
from medfl_flare import kit
from medfl_flare.observers import OBSERVED_FILE_NAME
from medfl_flare.offer import make_offer
from medfl_flare.records.audit import read_entries
from medfl_flare.records.offer import Offer
from medfl_flare.records.submission import ObserverState
from medfl_flare.session import Submission, read_submission, resume, stop, submit
from medfl_flare.sites.audit_log import audit_path

pytestmark = pytest.mark.flare

PRIVACY = {"unit": "site", "adjacency": "replace", "epsilon": 50.0, "delta": 1e-5}
METHODS: dict[str, dict[str, Any]] = {
    "pfedcdp": {
        "networks_by_site": UNLIKE,
        "method_args": {"fisher_samples": 8, "server_epochs": 1, "refine": {"epochs": 1, "probe_epochs": 1}},
        "privacy": PRIVACY | {"clip": 0.5},
        "compression": {"bits": 8},
    },
    "fedskd": {"networks_by_site": UNLIKE},
    "fedkper": {},
    "fedsdc": {},
}
"""Beside fedavg; slow, for each run has four processes that import torch and MONAI. Faults, silence and refusals are
tested without them, too (tests/carriers)."""
SILENCE = 60
"""Seconds to wait for a site that never replies; the others reply sooner, also on busy cores."""


@dataclass
class Begun:
    """Runs that were started together.

    Attributes:
        offers: Maps each name to the offer of its run.
        out: Maps each name to the researcher's run folder.
        stopped: Maps each name to the process that never replies.
    """

    offers: dict[str, Offer] = field(default_factory=dict)
    out: dict[str, Path] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)

    def begin(self, running: Federation, name: str, **about: Any) -> None:
        self.offers[name] = running.offer(name, **about)
        self.out[name] = running.begin(self.offers[name])

    def begin_silent(self, running: Federation, name: str, **about: Any) -> None:
        """Start a run in which site-03 stops for good at its first request."""
        running.hold(name, "site-03", name, 1)
        self.begin(running, name, timeout=SILENCE, rounds=1, **about)
        self.stopped[name] = running.held(name)
        os.kill(self.stopped[name], signal.SIGSTOP)

    def wait(self, running: Federation) -> None:
        for out in self.out.values():
            wait_for(lambda out=out: running.state(out) != "starting")

    def end(self) -> None:
        for process in self.stopped.values():
            kill(process)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("f")) as up:
        yield up


@pytest.fixture(scope="module")
def begun(running: Federation) -> Iterator[Begun]:
    """Start the run that `make test` also runs."""
    runs = Begun()
    runs.begin(running, "fedavg", method="fedavg")
    yield runs
    runs.end()


@pytest.fixture(scope="module")
def further(running: Federation) -> Iterator[Begun]:
    """Start further runs at the same time in which no participant dies."""
    runs = Begun()
    runs.begin_silent(running, "goes-on", min_replies=2)
    runs.begin_silent(running, "ends", min_replies=3)
    for name, more in METHODS.items():
        runs.begin(running, name, method=name, **more)
    runs.begin(running, "unlike", bundle="other", method="fedprox", rounds=1, min_replies=1)
    runs.wait(running)
    running.write_files(site_01={"privacy": PRIVACY | {"epsilon": 8.0}})
    private = PRIVACY | {"clip": 0.5}
    runs.begin(running, "loose", network_name="large", rounds=1, steps=1, privacy=private, min_replies=1)
    yield runs
    runs.end()


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_the_images_are_real() -> None:
    if not REAL.is_file():
        pytest.skip("runs use made-up cells: medmnist/breastmnist.npz is not in the folder that MEDFL_DATA names")


@pytest.mark.slow
def test_every_participant_ends_with_the_bits_of_one_machine(running: Federation, begun: Begun) -> None:
    end_as_on_one_machine(running, begun, "fedavg")
    assert (begun.out["fedavg"] / "report.html").is_file()


@pytest.mark.slow
def test_secure_aggregation_ends_with_the_bits_of_one_machine(running: Federation) -> None:
    """The noise is distributed and derived from the sites' own secrets; the kits' certificates sign the keys."""
    runs = Begun()
    runs.begin(running, "secure", method="fedavg", privacy=PRIVACY | {"clip": 0.5}, secure_aggregation={"threshold": 2})
    end_as_on_one_machine(running, runs, "secure")


@pytest.mark.slow
def test_harmonised_features_end_with_the_bits_of_one_machine(running: Federation) -> None:
    runs = Begun()
    runs.begin(running, "combat", method="fedavg", train_part="head", harmonise_features="combat")
    end_as_on_one_machine(running, runs, "combat")
    for site in SITES:
        entries = [entry for entry in read_entries(audit_path(running.files[site])) if entry and entry.run == "combat"]
        assert [entry.kind for entry in entries[:4]] == ["hello", "begin", "feature_sums", "feature_moments"]
        assert entries[2].leaves["feature_sums"].tensors == 2


def end_as_on_one_machine(running: Federation, runs: Begun, method: str) -> None:
    summary, wrong = running.end(runs.out[method], report=method == "fedavg")
    assert (wrong, summary["status"], summary["unavailable_reasons"]) == ("", "finished", {})
    running.equals_local(runs.offers[method], runs.out[method])


REFUSALS = {
    "unlike": {
        "site-01": "'site-01' refuses the run 'unlike': .*fedprox",
        "site-03": "hash of the bundle's configurations: the run has {ours}, this participant has {theirs}",
    },
    "loose": {
        "site-01": "epsilon 50.0, .* required at least: .* epsilon 8.0",
        "site-02": "expected at most 1000000 bytes, got",
    },
}


def refuse_with_a_reason(running: Federation, runs: Begun, run: str) -> None:
    summary, wrong = running.end(runs.out[run])
    assert (wrong, summary["status"]) == ("", "finished")
    assert set(summary["unavailable_reasons"]) == set(REFUSALS[run])
    hashes = {"ours": bundle_hash(running.place.root / "other")}
    hashes["theirs"] = bundle_hash(running.place.root / "changed" / "other")
    for site, why in REFUSALS[run].items():
        assert re.search(why.format(**hashes), summary["unavailable_reasons"][site]), summary["unavailable_reasons"]


def end_without_the_silent_site(running: Federation, runs: Begun, run: str) -> tuple[dict[str, Any], str]:
    """Return a run's summary and the output of its command."""
    wait_for(lambda: running.state(runs.out[run]) == "over")  # NVFlare counts a death before that as a failed job
    kill(runs.stopped[run])
    summary, wrong = running.end(runs.out[run])
    assert list(summary["unavailable_reasons"]) == ["site-03"]
    assert summary["unavailable_reasons"]["site-03"].startswith("did not reply in time")
    return summary, wrong


@pytest.mark.slow
def test_a_site_that_never_replies_is_named_and_the_others_continue(running: Federation, further: Begun) -> None:
    summary, wrong = end_without_the_silent_site(running, further, "goes-on")
    assert (wrong, summary["status"], summary["rounds"]) == ("", "finished", 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_further_methods_end_with_the_bits_of_one_machine(running: Federation, further: Begun, method: str) -> None:
    end_as_on_one_machine(running, further, method)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["unlike", "loose"])
def test_a_refusal_says_why_and_the_others_continue(running: Federation, further: Begun, run: str) -> None:
    refuse_with_a_reason(running, further, run)


@pytest.mark.slow
def test_a_run_that_needs_the_silent_site_ends_incomplete(running: Federation, further: Begun) -> None:
    summary, wrong = end_without_the_silent_site(running, further, "ends")
    assert (summary["status"], summary["rounds"]) == ("incomplete", 0)
    assert re.search(r"ended as incomplete: 2 of 3 needed replies came.*medfl federate resume", wrong)


@pytest.mark.slow
def test_single_images_are_hidden_as_on_one_machine_and_ledgers_stay_at_home(running: Federation) -> None:
    floor = {"unit": "sample", "adjacency": "add_remove", "epsilon": 8.0}
    homes = {site: running.place.root / "ledgers" / site for site in ("server", *SITES)}
    ledgers = {site: {"privacy": floor | {"ledger": str(home)}} for site, home in homes.items()}
    running.write_files(**{site.replace("-", "_"): own for site, own in ledgers.items()})
    offer = running.offer("samples", method="fedavg", privacy=floor | {"clip": 0.5}, batch_size=16)
    out = running.begin(offer)
    summary, wrong = running.end(out)
    assert (wrong, summary["status"], summary["unavailable_reasons"]) == ("", "finished", {})
    running.equals_local(offer, out)  # whose ledger is that of the server's file
    entries = {site: [Ledger.read(path).entries for path in sorted(homes[site].glob("*.json"))] for site in homes}
    assert [len(entries[site]) for site in ("server", *SITES)] == [3, 1, 1, 1]
    for site in SITES:
        assert entries[site][0] in entries["server"]
        statement = summary["privacy"][site]
        assert (statement["epsilon"], statement["releases"]) == (8.0, 2)
        assert [statement[name] for name in ("sigma", "rate", "steps")] == [None] * 3
    running.write_files()


MACHINES = {"site-01": (1000, 50), "site-02": (3000, 100), "site-03": (2000, 80)}
"""Clock in MHz and battery charge in percent in a machine profile."""
CLUSTERED = {"site-01": "resnet4", "site-02": "resnet8", "site-03": "resnet6"}


@pytest.mark.slow
def test_sites_are_clustered_by_the_profiles_of_their_machines(running: Federation) -> None:
    bundle = running.place.root / "machines"
    shutil.copytree(running.place.root / "small", bundle)
    content = json.loads((bundle / "configs" / "federate.json").read_text())
    networks = {"high": "resnet8", "medium": "resnet6", "low": "resnet4"}
    content["network_assignment"] = {"name": "machine_clusters", "profiles": "live", "networks": networks}
    content["federation"]["network_assignment"] = "@network_assignment"
    (bundle / "configs" / "federate.json").write_text(json.dumps(content))
    own: dict[str, Any] = {"server": {"bundles.machines": {"folder": str(bundle), "data": str(running.place.data)}}}
    for site, (clock, charge) in MACHINES.items():
        profile = {"cpu_mhz": clock, "cpu_max_mhz": 3000, "memory_free_gb": 8, "memory_gb": 16}
        profile |= {"battery_percent": charge, "latency_ms": 20, "latency_max_ms": 200}
        own[site] = {"bundles.machines": {"folder": str(bundle), "data": str(running.place.data / site)}}
        own[site] |= {"profile": profile}
    running.write_files(**{site.replace("-", "_"): changes for site, changes in own.items()})
    out = running.begin(running.offer("machines", bundle="machines", method="fedskd"))
    summary, wrong = running.end(out)
    assert (wrong, summary["status"], summary["unavailable_reasons"]) == ("", "finished", {})
    record = json.loads((out / "run.json").read_text())
    assert {site: card["network"] for site, card in record["provenance"]["assigned_networks"].items()} == CLUSTERED
    running.equals_local(running.offer("machines", method="fedskd", networks_by_site=CLUSTERED), out)
    observed = [json.loads(line) for line in (out / OBSERVED_FILE_NAME).read_text().splitlines()]
    assert [call["hook"].removeprefix("medfl_") for call in observed] == [
        "run_started",
        *["round_ended"] * 3,
        "run_ended",
    ]
    assert observed[-1]["status"] == "finished"
    assert json.loads((out / ObserverState.NAME).read_text())["calls"] == 5
    running.write_files()


@pytest.mark.slow
def test_a_site_that_was_unavailable_joins_with_its_own_network_also_after_a_kill(running: Federation) -> None:
    """Its network is wider than any other. The server is killed during a step of the first round."""
    own = {site.replace("-", "_"): {"entry": {"network": network}} for site, network in UNLIKE.items()}
    running.write_files(**own)
    kit.stop(running.kits["site-03"])
    values: dict[str, Any] = {"method": "fedskd", "min_replies": 2}
    out = running.begin(running.offer("late", rounds=1, **values))
    summary, wrong = running.end(out)
    assert (wrong, summary["status"], list(summary["unavailable_reasons"])) == ("", "finished", ["site-03"])
    running.start("site-03")
    offer = running.offer("late", **values)
    with ThreadPoolExecutor() as pool:
        running.hold("late", "server", offer.run, 4)
        followed = pool.submit(submit, Submission(offer, running.kits["researcher"], out))
        running.held("late")
        running.kill("server")
        running.start("server")
        with refused(MedflError, "job_lost"):
            followed.result()
    resume(out)
    summary = json.loads((out / "summary.json").read_text())
    joined = json.loads((out / "run.json").read_text())["provenance"]["joined"]
    assert joined == {"site-03": {"round": 2, "network": UNLIKE["site-03"]}}
    assert summary["attendance"] == {"sites": 3, "unavailable": [], "missed_rounds": {"site-03": [[1, 1]]}}
    folder = running.place.root / "local" / "late"
    known = running.offer("late", networks_by_site=UNLIKE, **values)
    running.place.local(known, running.files, folder, unavailable=lambda site, step: site == "site-03" and step < 3)
    actual, expected = digests(running.files["server"].state / "runs" / "late", running.files, "late"), snapshot(folder)
    assert actual == {name: expected[name] for name in actual}
    running.write_files()


HOW: dict[str, dict[str, Any]] = {
    "site-01": {"cache": "disk"},
    "site-02": {"loaders": 2},
    "site-03": {"cache": "none", "loaders": 1},
}
"""Cache and loaders of each site for the cases of an adopted bundle."""


@pytest.mark.slow
def test_a_segmentation_has_the_same_bits_however_it_is_carried_and_loaded(running: Federation) -> None:
    """Compare NVFlare with one machine on a stock bundle with masks, with all kinds of workers, loaders and caches."""
    pytest.importorskip("medfl_adopt")
    from medfl_adopt.adopting import adopt

    root = running.place.root
    adopt(zoo_shapes.tools(root / "stock"), root / "tools")
    changes: dict[str, dict[str, Any]] = {"server": {"bundles.tools": {"folder": str(root / "tools")}}}
    for seed, site in enumerate(SITES):
        data = zoo_sites.pictures(root / "pictures" / site, 3 + seed, seed)
        entry = {"folder": str(root / "tools"), "data": str(data)}
        changes[site] = {"bundles.tools": entry, "shared_test": False} | HOW[site]
    running.write_files(**{site.replace("-", "_"): own for site, own in changes.items()})
    values = {"rounds": 2, "method": "fedavg", "seed": 3}
    offer = make_offer(root / "tools", values, "tools", SITES, 300)
    out = running.begin(offer)
    summary, wrong = running.end(out)
    assert (wrong, summary["status"], summary["unavailable_reasons"]) == ("", "finished", {})
    between = digests(running.files["server"].state / "runs" / "tools", running.files, "tools")
    places = {"bundle_root": str(root / "tools"), "dataset_dir": str(root / "pictures"), "device": "cpu"}
    for number, how in enumerate(({}, {"workers": 2}, {"loaders": 2, "cache": "none"})):
        folder = root / f"tools{number}"
        read_federation(root / "tools", values | places | {"output_dir": str(folder)} | how).simulate()
        here = snapshot(folder)
        assert {name: here[name] for name in between} == between
        assert here["rows"] == scores(out)
    assert set(between) == {"server", *SITES}
    assert any("dice" in row for row in scores(out))
    assert list((root / "pictures" / "site-01" / ".medfl_cache").glob("*/*.safetensors"))
    assert not (root / "pictures" / "site-03" / ".medfl_cache").exists()


@pytest.mark.slow
def test_after_kills_of_a_site_and_of_the_server_in_mid_step_the_run_ends_in_the_same_bits(
    running: Federation,
) -> None:
    running.write_files()
    offer = running.offer("killed", method="fedskd", networks_by_site=UNLIKE)
    running.hold("site", "site-02", offer.run, 2)
    out = running.begin(offer)
    running.held("site")
    running.kill("site-02")
    with ThreadPoolExecutor() as pool:
        started = pool.submit(running.start, "site-02")
        assert stop(out)
        started.result()
        running.hold("server", "server", offer.run, 4)
        resumed = pool.submit(resume, out)
        running.held("server")
        running.kill("server")
        running.start("server")
        with refused(MedflError, "job_lost"):
            resumed.result()
    resume(out)
    assert len(read_submission(out).jobs) == 3
    running.equals_local(offer, out)


@pytest.mark.slow
def test_a_site_that_is_killed_within_a_training_continues_from_its_checkpoint(running: Federation) -> None:
    """It writes a checkpoint after each batch, whose position counts the batches of all processes together.

    The first process dies after batch 3, and the second one after its first batch. That is batch 4 of the training; it
    would be batch 1 if the training had begun again.
    """
    running.write_files(site_02={"checkpoint_minutes": 0})
    offer = running.offer("within", method="fedavg", steps=8)
    folder = running.state_folder("site-02", offer.run)
    running.hold_in_training("first", "site-02", offer.run, checkpoints=3)
    out = running.begin(offer)
    running.held("first")
    running.kill("site-02")
    assert trained_batches(folder) == 3
    with ThreadPoolExecutor() as pool:
        started = pool.submit(running.start, "site-02")
        assert stop(out)
        started.result()
        running.hold_in_training("second", "site-02", offer.run, checkpoints=1)
        resumed = pool.submit(resume, out)
        running.held("second")
        running.kill("site-02")
        assert trained_batches(folder) == 4
        started = pool.submit(running.start, "site-02")
        assert stop(out)
        started.result()
        with refused(MedflError, "run_failed"):
            resumed.result()
    resume(out)
    assert len(read_submission(out).jobs) == 3
    assert not list(folder.glob(f"{CHECKPOINT_STEM}-*"))
    running.equals_local(offer, out)
    running.write_files()


def trained_batches(folder: Path) -> int:
    """Return the number of batches of the training before its checkpoint."""
    position = wire.decode((folder / f"{CHECKPOINT_STEM}-1.safetensors").read_bytes())[1]["position"]
    return int(position["steps"])
