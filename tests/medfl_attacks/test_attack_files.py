"""Files of attack results: round trip, damaged files, and files of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from synthetic_results import INVERSION, MEMBERSHIP, POISON, write

from medfl.errors import StoreError
from medfl_attacks.attack_files import ATTACK_FILES, read_results, results_path

FULL = {
    "membership": [MEMBERSHIP, MEMBERSHIP.model_copy(update={"target": "sites", "site": "a", "round": 3})],
    "inversion": [INVERSION, INVERSION.model_copy(update={"converged": 7, "psnr": float("inf")})],
    "poisoning": [
        POISON,
        POISON.model_copy(update={"success": 0.5, "success_interval": (0.1, 0.9), "wanted_images": 4}),
    ],
}


@pytest.mark.parametrize("kind", FULL)
def test_results_are_read_as_they_were_written(tmp_path: Path, kind: str) -> None:
    assert read_results(tmp_path, kind) is None
    assert write(tmp_path, kind, {"seed": 1, "images": None}, FULL[kind]) == results_path(tmp_path, kind)
    record = read_results(tmp_path, kind)
    assert record is not None
    assert list(record.results) == FULL[kind]
    assert record.options == {"seed": 1, "images": None}


@pytest.mark.parametrize(
    ("key", "value"), [("auc", None), ("auc", "0.5"), ("members", 1.5), ("auc_interval", [0.1]), ("patient", "Doe")]
)
def test_a_result_that_no_attack_writes_is_damage(tmp_path: Path, key: str, value: Any) -> None:
    path = write(tmp_path, "membership", {}, FULL["membership"])
    values = json.loads(path.read_text(encoding="utf-8"))
    values["results"][1][key] = value
    path.write_text(json.dumps(values))
    with refused(StoreError, "damaged_file", path=str(path)) as caught:
        read_results(tmp_path, "membership")
    assert f"results.1.{key}" in str(caught.value)
    assert "Attack again: medfl attack membership." in str(caught.value)
    assert "Doe" not in str(caught.value)


@pytest.mark.parametrize(("kind", "other"), [(a, b) for a in ATTACK_FILES for b in ATTACK_FILES if a != b])
def test_the_file_of_another_kind_of_attack_is_refused(tmp_path: Path, kind: str, other: str) -> None:
    content = write(tmp_path, kind, {}, FULL[kind]).read_bytes()
    results_path(tmp_path, other).write_bytes(content)
    with refused(StoreError, "damaged_file"):
        read_results(tmp_path, other)
