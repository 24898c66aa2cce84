"""A flipped bit anywhere in a stopped run's folder: the same bits in the end, or a refusal that names the file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from fault_harness import run_until
from refusals import refused
from toys import PAIR, Ring, Toy, builtin, snapshot

from medfl.errors import MedflError
from medfl.testing.cohort import make_sites

FLIPS = {".json": 3, ".csv": 3}
"""Number of flipped bytes by file suffix, 1 for others; the file name determines their places."""

STOPPED: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "peer messages and constants": (Toy(Ring, alone=True), 5, {"rounds": 2}),
    "a privacy account": (
        builtin("fedavg", norm_sync="params"), 2,
        {"privacy": {"epsilon": 5.0, "clip": 0.5}, "rounds": 2},
    ),
}  # fmt: skip
"""Maps each method to the step before which it stops, and to its settings."""


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def refusal(case: Any, folder: Path, settings: dict[str, Any]) -> str | None:
    """Expected message of a run that can't continue."""
    try:
        case.run(folder, **settings)
    except MedflError as error:
        return str(error)
    return None


@pytest.mark.parametrize("what", STOPPED)
def test_no_flipped_bit_passes_in_silence(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case, step, settings = STOPPED[what]
    settings = {"sites": make_sites(PAIR)} | settings
    case.run(tmp_path / "whole", **settings)
    wanted = snapshot(tmp_path / "whole")
    stopped = run_until(case, tmp_path / "stopped", step, **settings)
    files = sorted(path.relative_to(stopped) for path in stopped.rglob("*") if path.is_file() and path.stat().st_size)
    assert {"run.json", "metrics.csv"} <= {path.name for path in files}
    for name in files:
        bits = random.Random(str(name))
        for _ in range(FLIPS.get(name.suffix, 1)):
            folder = Path(shutil.copytree(stopped, tmp_path / "run"))
            bit = bits.randrange(8 * (stopped / name).stat().st_size)
            flipped(folder / name, bit)
            caplog.clear()
            refusal_text = refusal(case, folder, settings)
            if refusal_text is None:
                assert snapshot(folder) == wanted, f"bit {bit} of {name}"
            else:
                assert str(folder / name) in refusal_text + "".join(caplog.messages), f"bit {bit} of {name}"
            shutil.rmtree(folder)


def test_a_record_changed_by_hand_is_refused_with_what_to_do(tmp_path: Path) -> None:
    case = Toy(Ring)
    case.run(tmp_path, rounds=1)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"rounds": 1', '"rounds": 0'))
    with refused(MedflError, "damaged_file", path=str(path)) as caught:
        case.run(tmp_path, rounds=1)
    assert "its own checksum" in str(caught.value)
