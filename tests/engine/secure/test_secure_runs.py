"""Test runs with secure aggregation: their mean, drop-outs in every operation, and the server's knowledge."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from toys import digests

from medfl.engine.runs.simulation import SimulationResult
from medfl.engine.secure.keys import CHANNEL, agree_key, public_key, unseal
from medfl.engine.secure.ops import MASKED, OPS, PUBLIC, SEALED, by_site, digest, session_digest, to_bytes
from medfl.engine.store import Store, StoredStep
from medfl.errors import RefusedError
from medfl.plugins import load_plugins
from medfl.records.run_file import RunFile
from medfl.records.secret_uses import SecretUses
from medfl.testing.cohort import Case, bits, make_sites, make_task
from medfl.types import Tensors
from medfl.utils.rng import SecretStream

SIZES = {f"site-{number}": size for number, size in enumerate((7, 5, 6, 9, 4), start=1)}
FIVE = make_sites(SIZES)
THREE = {"threshold": 3}
REGISTRY = load_plugins()


def run(folder: Path, method: str = "fedavg", args: dict[str, Any] | None = None, **more: Any) -> SimulationResult:
    case = Case(REGISTRY, method, args or {}, {"norm_sync": "params", "rounds": 2})
    return case.run(folder, **({"sites": FIVE} | more))


def distance(left: SimulationResult, right: SimulationResult) -> float:
    first, second = bits(left), bits(right)
    return max(float((first[k][n].double() - second[k][n].double()).abs().max()) for k in first for n in first[k])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulationResult, Path]:
    folder = tmp_path_factory.mktemp("secure") / "run"
    return run(folder, secure_aggregation=THREE), folder


class Stopped:
    """Run that stopped after the masked numbers of its first round were sent, which are still on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        result = run(folder, secure_aggregation=THREE, unavailable=lambda site, at: at == MASKING + 1)
        assert result.outcome.status == "incomplete"

    def of(self, site: str) -> StoredStep:
        """Return a site's stored step with its masked numbers."""
        return Store(self.folder / "state" / site).load(MASKING)


MASKING = OPS.index(MASKED) + 1


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return Stopped(tmp_path_factory.mktemp("stopped") / "run")


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedadam": {},  # a server's optimiser
    "scaffold": {},  # updates of two kinds
    "fedper": {},  # bodies alone
    "fedbabu": {},  # a last step in which nothing is sent
}


@pytest.mark.parametrize(
    "method",
    [name if name in ("fedavg", "scaffold") else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_the_mean_is_that_of_the_plain_run(method: str, tmp_path: Path) -> None:
    """Weight updates by sizes that the server never learns. The difference to the plain run is only rounding."""
    more = METHODS[method] | ({"steps": 2} if method == "scaffold" else {})
    plain = run(tmp_path / "plain", method, **more)
    result = run(tmp_path / "secure", method, secure_aggregation=THREE, **more)
    assert result.outcome.status == "finished"
    assert distance(plain, result) < (1e-3 if method == "fedadam" else 1e-4)  # Adam divides by small numbers


@pytest.mark.slow
def test_fewer_bits_are_coarser_and_32_are_as_many_as_in_a_plain_update(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    coarse = run(tmp_path / "32", secure_aggregation=THREE | {"bits": 32, "clip": 5.0, "largest_size": 10})
    assert distance(plain, coarse) < 1e-4


def test_workers_change_no_bit(whole: tuple[SimulationResult, Path], tmp_path: Path) -> None:
    assert digests(run(tmp_path, secure_aggregation=THREE, workers=2)) == digests(whole[0])


def test_a_clip_bounds_every_update(tmp_path: Path) -> None:
    run(tmp_path, secure_aggregation=THREE | {"clip": 0.01}, rounds=1)
    start, last = make_task().initial(7), Store(tmp_path / "state" / "server").latest()
    assert last is not None
    tensors = last.state().tensors
    moved = torch.cat([(tensor - start[name]).double().flatten() for name, tensor in tensors.items()])
    assert 0.001 < float(moved.norm()) <= 0.01 * (1 + 1e-4)


# ---- drop-outs


@pytest.mark.parametrize("operation", range(5))
def test_drop_outs_in_any_operation_recover(operation: int, tmp_path: Path) -> None:
    """Let two of five sites drop out of one operation in round 2. Sites that have sent their numbers are in the sum."""
    sites, step = {"site-2", "site-5"}, 5 + operation + 1

    def unavailable(site: str, at: int) -> bool:
        return site in sites and at == step

    result = run(tmp_path / "secure", secure_aggregation=THREE, unavailable=unavailable)
    assert result.outcome.status == "finished"
    plain = run(tmp_path / "plain", unavailable=lambda site, at: site in sites and at == 2 and operation < 3)
    assert distance(plain, result) < 1e-4


def test_drop_outs_one_after_the_other(tmp_path: Path) -> None:
    """Let one site drop out before it shares, and another before it sends its numbers; both stay unavailable."""

    def unavailable(site: str, at: int) -> bool:
        return at < 6 and ((site == "site-1" and at >= 2) or (site == "site-4" and at >= 3))

    result = run(tmp_path / "secure", secure_aggregation=THREE, unavailable=unavailable)
    plain = run(tmp_path / "plain", unavailable=lambda site, at: site in ("site-1", "site-4") and at == 1)
    assert distance(plain, result) < 1e-4


@pytest.mark.parametrize("operation", range(5))
def test_beyond_the_threshold_the_run_stops_and_continues_later(
    operation: int, whole: tuple[SimulationResult, Path], tmp_path: Path
) -> None:
    unavailable, step = {"site-2", "site-3", "site-5"}, 5 + operation + 1
    result = run(tmp_path, secure_aggregation=THREE, unavailable=lambda site, at: site in unavailable and at == step)
    assert (result.outcome.status, result.outcome.rounds) == ("incomplete", 1)
    assert "2 of 3 needed replies came. Missing: site-2, site-3, site-5." in result.outcome.reason
    again = run(tmp_path, secure_aggregation=THREE)
    assert digests(again) == digests(whole[0])


# ---- what there is to see


def secrets(folder: Path, site: str, run_id: str, round_: int) -> list[bytes]:
    """Return the secrets of a site in a simulation, where they are derived from the seed of the run."""
    key = hashlib.sha256(f"7/{site}/simulated secret".encode()).digest()
    nonce = json.loads((folder / "state" / site / "secure_aggregation.json").read_text())["nonce"]
    public = Store(folder / "state" / "server").latest()
    assert public is not None
    keys = {name: to_bytes(tensor) for name, tensor in by_site(blob(folder, public, PUBLIC), PUBLIC).items()}
    session = session_digest(round_, THREE["threshold"], sorted(SIZES), keys)
    pairs = SecretStream(key, run_id, round_, "secure aggregation", nonce)
    own = SecretStream(key, run_id, round_, "own mask of secure aggregation", f"{nonce} {session}")
    return [pairs.take(32), pairs.take(32), own.take(32)]


def blob(folder: Path, record: StoredStep, name: str) -> Tensors:
    return Store(folder / "state" / "server").get(record.state().blobs[name])


def test_no_secret_is_on_any_disk_or_in_any_message(tmp_path: Path) -> None:
    """Search a run that stopped before the sum was unmasked; after that, the server knows the own masks."""
    run(
        tmp_path,
        secure_aggregation=THREE,
        unavailable=lambda site, at: at == 5 and site in ("site-1", "site-2", "site-3"),
    )
    run_id = RunFile.read(tmp_path / "run.json").identity.run_id
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    hidden = [secret for site in SIZES for secret in secrets(tmp_path, site, run_id, 1)]
    assert public_key(hidden[0]) in content, "these are the secrets of the run"
    assert public_key(hidden[1]) in content
    assert not any(secret in content or secret.hex().encode() in content for secret in hidden)


def test_what_is_sealed_is_bound_to_the_list_of_participants(tmp_path: Path) -> None:
    """Check that the key and the associated data each bind an encrypted share to the list."""
    run(tmp_path, secure_aggregation=THREE, unavailable=lambda site, at: at == MASKING)
    run_id = RunFile.read(tmp_path / "run.json").identity.run_id
    server = Store(tmp_path / "state" / "server").latest()
    assert server is not None
    sealed = to_bytes(blob(tmp_path, server, SEALED)[f"{SEALED}/site-1/site-2"])
    public = {name: to_bytes(key) for name, key in by_site(blob(tmp_path, server, PUBLIC), PUBLIC).items()}
    session = session_digest(1, 3, sorted(SIZES), public)
    private = secrets(tmp_path, "site-2", run_id, 1)[0]
    bound, free = (agree_key(private, public["site-1"][:32], CHANNEL, *more) for more in ([session.encode()], []))
    about, loose = digest("site-1", "site-2", session).encode(), digest("site-1", "site-2").encode()
    assert len(unseal(bound, sealed, about)) == 2 * 66
    for key, data in ((free, about), (bound, loose)):
        with refused(RefusedError, "undecryptable_share"):
            unseal(key, sealed, data)


def test_the_server_learns_neither_sizes_nor_updates(whole: tuple[SimulationResult, Path], stopped: Stopped) -> None:
    last = Store(whole[1] / "state" / "server").latest()
    assert last is not None
    assert all(facts == {"trainable": True, "validates": True} for facts in last.meta["commit"]["site_info"].values())
    for site in SIZES:
        record = stopped.of(site)
        assert record.meta["reply"] == {}
        assert {name: tensor.dtype for name, tensor in record.tensors.items() if name.startswith("reply/")} == {
            "reply/secure/numbers": torch.uint8
        }


def test_bytes_are_at_most_one_and_a_half_times_those_of_float32(tmp_path: Path) -> None:
    task = {"task": make_task("wide"), "rounds": 1}
    for name, secure in (("plain", None), ("secure", THREE)):
        run(tmp_path / name, secure_aggregation=secure, **task)

    def up(name: str) -> float:
        lines = (tmp_path / name / "metrics.csv").read_text().splitlines()
        return sum(float(line.split(",")[-1]) for line in lines if ",bytes_up," in line)

    protocol = 5 * (64 + 4 * 160 + 32 + 5 * 66 + 5)  # keys, sealed shares, lists, revealed shares, the weight
    assert up("secure") - protocol == pytest.approx(1.25 * up("plain"), rel=0.02)


def test_each_round_has_one_aggregation_of_five_operations(whole: tuple[SimulationResult, Path]) -> None:
    register = SecretUses.read(whole[1] / "state" / "site-1" / SecretUses.NAME)
    assert len(OPS) == 5
    uses = {"participants", "keys of others", "peers", "model", "orders", "numbers", "drop-outs"}
    assert register.nonce
    assert sorted((entry.round, entry.use) for entry in register.uses) == sorted(
        (round_, use) for round_ in (1, 2) for use in uses
    )


def test_the_same_run_in_another_folder_has_other_masks_and_the_same_end(
    whole: tuple[SimulationResult, Path], stopped: Stopped, tmp_path: Path
) -> None:
    """Run twice: with equal masks, a server could start the run again with another model and get two payloads."""
    other = Stopped(tmp_path)
    first, second = (made.of("site-1").tensors["reply/secure/numbers"] for made in (stopped, other))
    assert float((first != second).double().mean()) > 0.98
    assert digests(run(tmp_path, secure_aggregation=THREE)) == digests(whole[0])
