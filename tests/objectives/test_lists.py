"""Tests of data lists without classes: vectors with numbers, findings and times, and images with masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

from medfl.data.cohort import load_cohort
from medfl.data.datalists import DATALIST_FILE, Datalist, parse_datalist, read_datalist, write_datalist
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_site, load_sites
from medfl.engine.site import Splits
from medfl.errors import DataError
from medfl.objectives import Binary, Multiclass, Multilabel, Objective, Regression, Segmentation, Survival
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import Case

VECTORS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def pool(folder: Path, objective: Objective, targets: list[Any], arrays: dict[str, np.ndarray] | None = None) -> Path:
    """Write a pooled data set to a folder."""
    folder.mkdir(parents=True)
    for name, array in ({"images.npy": VECTORS} | (arrays or {})).items():
        np.save(folder / name, array)
    key = "label" if objective.has_class_labels else "target"
    records = [
        {"image": row, "subject_id": f"s{row}"} | ({} if target is None else {key: target})
        for row, target in enumerate(targets)
    ]
    entry = None if objective.has_class_labels else objective.facts
    masks = "masks.npy" if arrays and "masks.npy" in arrays else ""
    splits = {"training": records, "validation": [], "test": []}
    classes = objective.classes if objective.has_class_labels else len(objective.stratum_names)
    datalist = Datalist("made up", "images.npy", classes, splits=splits, objective=entry, mask_array=masks)
    write_datalist(folder, datalist)
    return folder


TABLES: dict[str, tuple[Objective, list[Any]]] = {
    "binary": (Binary(), [int(row[0] > 0) for row in VECTORS]),
    "multilabel": (Multilabel(2), [[float(row[0] > 0), None if row[1] > 1 else 1.0] for row in VECTORS]),
    "regression": (Regression(1), [float(row[0]) for row in VECTORS]),
    "two numbers": (Regression(2), [row[:2].tolist() for row in VECTORS]),
    "survival": (Survival(), [[float(np.exp(-row[0])), int(row[1] > 0)] for row in VECTORS]),
}


@pytest.mark.parametrize(("objective", "targets"), TABLES.values(), ids=TABLES.keys())
def test_vectors_go_from_a_pool_over_sites_into_a_run(tmp_path: Path, objective: Objective, targets: list[Any]) -> None:
    source = pool(tmp_path / "pool", objective, targets)
    plan = PartitionPlan("iid", 2, test_fraction=0.25, server_test="none")
    partition(source, tmp_path / "sites", plan, iid)
    sites = load_sites(tmp_path / "sites", objective, (0.0,), (1.0,))
    assert {site.shape for site in sites.values()} == {(5,)}
    for site in sites.values():
        records = read_datalist(tmp_path / "sites" / site.name).splits["training"]
        inputs, truths = site.train.batch(torch.arange(len(site.train)))
        assert torch.equal(inputs, torch.from_numpy(VECTORS[[record["image"] for record in records]]))
        expected = [targets[record["image"]] for record in records]
        shape = objective.target_shape((5,))
        wanted = torch.tensor(np.array(expected, dtype=float)).reshape(-1, *shape).to(objective.target_type)
        torch.testing.assert_close(truths, wanted, equal_nan=True)
        assert truths.dtype == objective.target_type
        assert (site.train.class_labels is not None) == objective.has_class_labels
    task = Task(
        networks={"linear": lambda: nn.Linear(5, objective.outputs)},
        network="linear",
        loss=objective.default_loss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        objective=objective,
    )
    splits = {name: Splits(site.train, site.val, site.test, site.digest) for name, site in sites.items()}
    result = Case(load_plugins(), "fedavg").run(
        tmp_path / "run", sites=splits, task=task, server_test=splits["site-01"].test, rounds=3
    )
    assert result.outcome.status == "finished"
    assert result.summary.holdings.classes == tuple(objective.titles)


def test_masks_are_a_second_array(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 255, (6, 4, 5), dtype=np.uint8)
    masks = (images > 100).astype(np.uint8)
    arrays = {"images.npy": images, "masks.npy": masks}
    source = pool(tmp_path / "pool", Segmentation(2), [None] * 6, arrays)
    site = load_site(source, Segmentation(2), (0.5,), (0.5,))
    inputs, targets = site.train.batch(torch.tensor([4, 1]))
    assert inputs.shape == (2, 1, 4, 5)
    assert torch.equal(targets, torch.from_numpy(masks[[4, 1]])[:, None].long())
    assert site.train.class_labels is None
    masks[2, 0, 0] = 3
    with refused(DataError, "wrong_mask_value", row=2):
        load_site(pool(tmp_path / "wrong", Segmentation(2), [None] * 6, arrays), Segmentation(2), (0.5,), (0.5,))
    arrays["masks.npy"] = masks[:, :3]
    with refused(DataError, "wrong_mask_array", expected=[1, 4, 5]):
        load_site(pool(tmp_path / "small", Segmentation(2), [None] * 6, arrays), Segmentation(2), (0.5,), (0.5,))
    with refused(DataError, "missing_mask_array"):
        load_site(pool(tmp_path / "bare", Segmentation(2), [None] * 6), Segmentation(2), (0.5,), (0.5,))


def test_other_masks_are_other_data(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4), dtype=np.uint8)
    digests = set()
    for number in range(2):
        arrays = {"images.npy": images, "masks.npy": np.full((3, 4, 4), number, dtype=np.uint8)}
        source = pool(tmp_path / str(number), Segmentation(2), [None] * 3, arrays)
        digests.add(load_site(source, Segmentation(2), (0.5,), (0.5,)).digest)
    assert len(digests) == 2


def test_a_list_comes_back_as_it_was_written(tmp_path: Path) -> None:
    source = pool(tmp_path / "pool", Survival(), TABLES["survival"][1])
    head = json.loads((source / DATALIST_FILE).read_text())
    assert head["objective"] == {"name": "survival"}
    assert "num_classes" not in head
    assert read_datalist(source).goal == Survival()
    again = tmp_path / "again"
    again.mkdir()
    write_datalist(again, read_datalist(source))
    assert (again / DATALIST_FILE).read_text() == (source / DATALIST_FILE).read_text()


def named(folder: Path, objective: Objective, **entries: Any) -> Path:
    """Write a pooled data set whose list has further entries."""
    arrays = {"images.npy": np.zeros((2, 4, 4), dtype=np.uint8), "masks.npy": np.zeros((2, 4, 4), dtype=np.uint8)}
    targets = [None] * 2 if objective.has_spatial_targets else TABLES[objective.name][1][:2]
    source = pool(folder, objective, targets, arrays if objective.has_spatial_targets else None)
    head = json.loads((source / DATALIST_FILE).read_text())
    (source / DATALIST_FILE).write_text(json.dumps(entries | head))
    return source


@pytest.mark.parametrize(
    ("objective", "key", "names"),
    [
        (Multilabel(2), "target_names", ["oedema", " pleural\neffusion"]),
        (Regression(1), "target_names", ["$age"]),
        (Segmentation(2), "structures", ["background", "lesion"]),
    ],
    ids=lambda value: value.name if isinstance(value, Objective) else "",
)
def test_what_outputs_are_for_has_names(tmp_path: Path, objective: Objective, key: str, names: list[str]) -> None:
    assert load_site(named(tmp_path / "none", objective), objective, (0.0,), (1.0,)).names == ()
    site = load_site(named(tmp_path / "named", objective, **{key: names}), objective, (0.0,), (1.0,))
    assert site.names == tuple(" ".join(name.split()).lstrip("$") for name in names)
    for number, wrong in enumerate(([*names, "more"], "oedema", [7] * len(names), {"0": "x"})):
        source = named(tmp_path / str(number), objective, **{key: wrong})
        with refused(DataError, "wrong_output_names", key=key, expected=len(names)):
            load_site(source, objective, (0.0,), (1.0,))


def test_sites_that_name_outputs_in_another_order_are_refused(tmp_path: Path) -> None:
    for site, names in (("north", ["oedema", "effusion"]), ("south", ["effusion", "oedema"])):
        named(tmp_path / site, Multilabel(2), target_names=names)
    with refused(DataError, "different_output_names", site="south", expected=["oedema", "effusion"]):
        load_cohort(tmp_path, Multilabel(2), (0.0,), (1.0,))


BAD: dict[str, tuple[Objective, Any, str, dict[str, Any]]] = {
    "no target": (Regression(1), None, "invalid_target", {"record": 1, "expected": 1}),
    "a word": (Regression(1), "old", "invalid_target", {"record": 1, "expected": 1}),
    "two for one": (Regression(1), [1.0, 2.0], "invalid_target", {"record": 1, "expected": 1}),
    "unknown": (Regression(1), [None], "not_finite", {"row": 1}),
    "a time of zero": (Survival(), [0.0, 1], "invalid_time", {"row": 1}),
    "a negative time": (Survival(), [-3.0, 1], "invalid_time", {"row": 1}),
    "an event that is neither": (Survival(), [3.0, 2], "invalid_event", {"row": 1}),
    "a label that there is no class for": (Binary(), 2, "wrong_label", {"maximum": 1, "found": 2}),
    "an unknown time": (Survival(), [None, 1], "invalid_time", {"row": 1}),
    "no finding labelled": (Multilabel(2), [None, None], "missing_finding", {"row": 1}),
    "two findings of one": (Multilabel(2), [2, 0], "wrong_finding", {"row": 1}),
}


@pytest.mark.parametrize(("objective", "target", "code", "fields"), BAD.values(), ids=BAD.keys())
def test_a_wrong_target_is_named(
    tmp_path: Path, objective: Objective, target: Any, code: str, fields: dict[str, Any]
) -> None:
    good = {"regression": 1.0, "survival": [1.0, 1], "multilabel": [0, 1], "binary": 1}[objective.name]
    source = pool(tmp_path / "pool", objective, [good, target])
    with refused(DataError, code, **fields):
        load_site(source, objective, (0.0,), (1.0,))


def test_a_list_for_another_objective_is_refused(tmp_path: Path) -> None:
    source = pool(tmp_path / "pool", Regression(1), [1.0, 2.0])
    with refused(DataError, "different_objective", expected="survival", found="regression"):
        load_site(source, Survival(), (0.0,), (1.0,))
    classes = pool(tmp_path / "classes", Multiclass(2), [0, 1])
    assert load_site(classes, Binary(), (0.0,), (1.0,)).train.class_labels.tolist() == [0, 1]
    head = {"image_array": "images.npy", "training": [], "objective": {"name": "regresion"}}
    with refused(DataError, "invalid_objective", path=str(tmp_path / DATALIST_FILE)):
        parse_datalist(json.dumps(head).encode(), tmp_path / DATALIST_FILE)
    head["objective"] = 7
    with refused(DataError, "invalid_objective", path=str(tmp_path / DATALIST_FILE)):
        parse_datalist(json.dumps(head).encode(), tmp_path / DATALIST_FILE)
