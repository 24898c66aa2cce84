"""Fed-Heart-Disease: FLamby's rows, columns and scale, against pandas and scikit-learn, and input that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from sklearn.model_selection import train_test_split

from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_sites
from medfl.errors import DataError, SettingsError
from medfl.objectives import Binary
from medfl.records.datalist import Exclusion
from medfl_datasets.flamby_heart.files import HOSPITALS, build_features, read_hospital
from medfl_datasets.flamby_heart.spec import OFFICIAL_COUNTS, FlambyHeart
from medfl_datasets.flamby_heart.split import select_test_rows
from medfl_datasets.flamby_heart.synthetic import write_release

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "flamby", "fed_heart_disease")


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("needs flamby/fed_heart_disease in the folder that MEDFL_DATA names")
    return REAL


def by_scikit_learn(labels: np.ndarray) -> np.ndarray:
    """Compute FLamby's test rows as its code does."""
    levels = np.unique(labels)
    stratify = labels if len(levels) > 1 and all((labels == level).sum() > 2 for level in levels) else None
    split = train_test_split(
        np.arange(len(labels)), train_size=0.66, test_size=0.34, random_state=43, shuffle=True, stratify=stratify
    )
    return np.isin(np.arange(len(labels)), split[1])


def by_pandas(folder: Path, scale: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Compute features, labels, hospitals and test rows of the whole release with pandas."""
    frames, tests = [], []
    for name in HOSPITALS:
        frame = pd.read_csv(folder / f"processed.{name}.data", header=None, na_values="?")
        frame = frame.drop(columns=[10, 11, 12]).dropna().assign(hospital=name)
        frames.append(frame)
        tests.append(by_scikit_learn((frame[13] > 0).to_numpy().astype(int)))
    whole, test = pd.concat(frames, ignore_index=True), np.concatenate(tests)
    table = pd.get_dummies(whole.drop(columns=[13, "hospital"]), columns=[2, 6], drop_first=True).astype(float)
    trained, raw = table[~test], table
    if scale in ("pooled", "mixed"):
        table = (raw - trained.mean()) / (trained.std() + 1e-9)
    if scale in ("centre", "mixed"):
        mean, sd = (
            getattr(trained.groupby(whole.hospital[~test]), kind)().loc[whole.hospital].to_numpy()
            for kind in ("mean", "std")
        )
        own = (raw - mean) / (sd + 1e-9)
        table = own if scale == "centre" else table.mask(np.tile(test[:, None], table.shape[1]), own)
    return table, (whole[13] > 0).to_numpy().astype(int), whole.hospital.to_numpy(), test


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(3, 200), st.floats(0.02, 0.98), st.integers(2, 4), st.integers(0, 10**6))
def test_the_test_rows_are_scikit_learns(n, share, classes, seed):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < share, 0, rng.integers(0, classes, n))
    assert np.array_equal(select_test_rows(labels), by_scikit_learn(labels))


@pytest.mark.parametrize("scale", ["centre", "pooled", "mixed", "none"])
def test_the_real_files_give_flambys_rows(real, tmp_path, scale):
    lines: list[str] = []
    datalist = prepare(FlambyHeart(source=real, scale=scale), tmp_path / "out", say=lines.append)
    assert not any(line.startswith("warning") for line in lines)
    table, labels, hospitals, test = by_pandas(real, scale)
    vectors = np.load(tmp_path / "out" / "images.npy")
    assert vectors.shape == (740, 13)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - table.to_numpy()).max() < 1e-4
    for split, mask in (("training", ~test), ("test", test)):
        records = datalist.splits[split]
        assert [record["image"] for record in records] == np.flatnonzero(mask).tolist()
        assert [record["label"] for record in records] == labels[mask].tolist()
        assert [record["centre"] for record in records] == hospitals[mask].tolist()
    counts = {name: tuple(int((hospitals[m] == name).sum()) for m in (~test, test)) for name in HOSPITALS}
    assert (
        counts
        == OFFICIAL_COUNTS
        == {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
    )
    assert datalist.exclusions == (Exclusion(reason="a number of the row is missing", count=180),)


@pytest.mark.parametrize("scale", ["centre", "pooled", "mixed", "none"])
def test_made_up_files_are_read_as_by_pandas(tmp_path, scale):
    release = write_release(tmp_path / "in")
    datalist = prepare(FlambyHeart(source=release, scale=scale), tmp_path / "out")
    table, labels, hospitals, test = by_pandas(release, scale)
    assert np.allclose(np.load(tmp_path / "out" / "images.npy"), table.to_numpy(), rtol=1e-4, atol=1e-4)
    for split, mask in (("training", ~test), ("test", test)):
        records = datalist.splits[split]
        assert [record["image"] for record in records] == np.flatnonzero(mask).tolist()
        assert [record["label"] for record in records] == labels[mask].tolist()
        assert [record["centre"] for record in records] == hospitals[mask].tolist()
    men = sum(record["sex"] == "male" for records in datalist.splits.values() for record in records)
    assert men == sum(int(read_hospital(release / f"processed.{name}.data").numbers[:, 1].sum()) for name in HOSPITALS)


@pytest.mark.parametrize(("diagnosis", "label"), [(0, 0), (1, 1), (2, 1), (4, 1)])
def test_every_degree_of_disease_is_a_disease(tmp_path, diagnosis, label):
    path = tmp_path / "processed.va.data"
    path.write_text(",".join(["1"] * 13 + [str(diagnosis)]) + "\n")
    assert read_hospital(path).labels.tolist() == [label]


def test_features_are_the_same_at_all_hospitals(tmp_path):
    """Check that each type of chest pain that any hospital has, except the first, is a column at all hospitals."""
    release = write_release(tmp_path)
    hospitals = {name: read_hospital(release / f"processed.{name}.data") for name in HOSPITALS}
    names, vectors = build_features(hospitals)
    assert names[8:] == ["cp=2", "cp=3", "cp=4", "restecg=1", "restecg=2"]
    assert {rows.shape[1] for rows in vectors.values()} == {13}
    for name, hospital in hospitals.items():
        pains, hearts = vectors[name][:, 8:11], vectors[name][:, 11:]
        assert np.array_equal(pains @ [2, 3, 4] + (pains.sum(1) == 0), hospital.numbers[:, 2])
        assert np.array_equal(hearts @ [1, 2], hospital.numbers[:, 6])


def test_each_hospital_is_scaled_by_its_own_training_rows(tmp_path):
    datalist = prepare(FlambyHeart(source=write_release(tmp_path / "in")), tmp_path / "out")
    vectors = np.load(tmp_path / "out" / "images.npy").astype(np.float64)
    for name in HOSPITALS:
        rows = vectors[[record["image"] for record in datalist.splits["training"] if record["centre"] == name]]
        assert np.abs(rows.mean(0)).max() < 1e-5
        spread = rows.std(0, ddof=1)
        assert np.all((np.abs(spread - 1) < 1e-5) | (spread < 1e-5))
    assert "published are 199 and 104" in " ".join(datalist.extra["deviations"])


@pytest.mark.parametrize("line", ["1,2,3", ",".join(["1"] * 13 + ["ill"]), ",".join(["1"] * 13 + ["inf"])])
def test_wrong_rows_are_named_and_not_shown(tmp_path, line):
    path = write_release(tmp_path / "in") / "processed.va.data"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:]]))
    with refused(DataError, "invalid_value", path=str(path), rows=[3]) as error:
        prepare(FlambyHeart(source=tmp_path / "in"), tmp_path / "out")
    assert line not in f"{error.value} {error.value.fields}"


def test_what_is_missing_is_said(tmp_path):
    release = write_release(tmp_path / "in")
    (release / "processed.switzerland.data").unlink()
    with refused(DataError, "missing_file", folder=str(release), files=["processed.switzerland.data"]):
        FlambyHeart(source=release).check_release()
    (release / "processed.switzerland.data").write_text(",".join(["1"] * 14) + "\n")
    with refused(DataError, "too_few_rows", hospitals=["switzerland"], minimum=3):
        prepare(FlambyHeart(source=release), tmp_path / "out")
    with refused(SettingsError, "unknown_choice", what="scale", choice="center"):
        FlambyHeart(source=release, scale="center")


def test_the_real_hospitals_are_sites(real, tmp_path):
    """Check that the option allows two patients of one hospital with equal numbers, one of them in the test set."""
    prepare(FlambyHeart(source=real), tmp_path / "pool")
    plan = PartitionPlan("by_site", column="centre", test="official", server_test="none", allow_leaks=("pixels",))
    partition(tmp_path / "pool", tmp_path / "sites", plan, by_site)
    sites = load_sites(tmp_path / "sites", Binary(), mean=(0.0,), std=(1.0,))
    assert {name: (len(site.train), len(site.test)) for name, site in sites.items()} == OFFICIAL_COUNTS
    assert {site.shape for site in sites.values()} == {(13,)}
