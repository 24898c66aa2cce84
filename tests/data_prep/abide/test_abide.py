"""ABIDE from release to sites: files written, lines reported, and the real maps."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import nibabel
import numpy as np
import pytest
from abide_maker import CENTRES, TWO, copied, make_release, map_of, prepare, used_rows

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.readers.volumes import common_grid
from medfl.data.sites import load_sites
from medfl.objectives import Multiclass
from medfl.records.site_card import SiteCard
from medfl_datasets.abide.files import MapSelection
from medfl_datasets.abide.map_files import read_map
from medfl_datasets.abide.synthetic import ATLAS_FILE, EFFECT_REGION, write_release
from medfl_datasets.abide.tables import PHENOTYPE_FILE


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("abide") / "R")


@pytest.fixture
def release(made, tmp_path):
    return copied(made, tmp_path / "R")


def run(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


def test_the_whole_way(made, tmp_path):
    lines: list[str] = []
    datalist = prepare(made, tmp_path / "P", maps=TWO, size=16, atlas=made / ATLAS_FILE, say=lines.append)
    assert lines[0].startswith("abide: licence CC BY-NC-SA 3.0"), "the licence comes first"
    assert not any("warning" in line for line in lines)
    assert datalist == read_datalist(tmp_path / "P")
    names = ["atlas.nii.gz", "atlas_labels.csv", "datalist.json", "images.npy"]
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == names
    images = np.load(tmp_path / "P" / "images.npy")
    assert (images.shape, images.dtype) == ((20, 16, 16, 16, 2), np.float32)
    rows, regions = used_rows(made), {"LEUVEN": "Europe", "UCLA": "US-West", "UM": "US-Middle", "NYU": "US-East"}
    for record, row in zip(datalist.splits["training"], rows, strict=True):
        centre = row["SITE_ID"].removesuffix("_1").removesuffix("_2")
        assert record == {
            "image": rows.index(row),
            "label": 2 - int(row["DX_GROUP"]),
            "subject_id": f"subject-{int(row['table_row']):06d}",
            "site": regions[centre],
            "centre": centre,
            "sex": {"1": "male", "2": "female"}[row["SEX"]],
            "age": float(row["AGE_AT_SCAN"]),
        }
    for place, derivative in ((0, "reho"), (13, "lfcd")):
        np.testing.assert_array_equal(
            images[place, ..., TWO.derivatives.index(derivative)],
            read_map(map_of(made, place, derivative)[1], common_grid(16)),
        )
    assert datalist.extra["channels"] == ["reho", "lfcd"]
    assert datalist.extra["atlas"] == {
        "file": "atlas.nii.gz",
        "labels": "atlas_labels.csv",
        "name": "",
        "regions": 8,
    }
    np.testing.assert_allclose(datalist.extra["affine"], nibabel.load(tmp_path / "P" / "atlas.nii.gz").affine)
    assert [entry.count for entry in datalist.exclusions] == [len(CENTRES), len(CENTRES)]


def test_no_code_of_a_subject_is_written_or_shown(release, tmp_path, capsys):
    map_of(release, 0)[1].unlink()
    options = ("--derivatives", "reho, lfcd", "--size", 8, "--atlas", release / ATLAS_FILE)
    assert run("prep", "abide", "--source", release, "--out", tmp_path / "P", *options) == 0
    captured = capsys.readouterr()
    assert "19 training" in captured.out
    text = (
        captured.out
        + captured.err
        + "".join(path.read_text() for path in (tmp_path / "P").iterdir() if path.suffix in (".json", ".csv"))
    )
    for row in used_rows(release):
        assert row["FILE_ID"] not in text
        assert row["SUB_ID"] not in text


def test_the_command_and_the_partition_by_site(made, tmp_path, capsys):
    words = ("prep", "abide", "--source", made, "--out", tmp_path / "P", "--derivatives", "reho", "--size", 8)
    assert run(*words) == 0
    assert run(*words) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run(*words, "--force", "--sites", "SITE_ID") == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"{tmp_path / 'P'}: 20 training, 0 validation, 0 test maps of 2 classes",
        "  0 control: 10",
        "  1 autism: 10",
    ]
    by_site = ("--scheme", "by_site", "--column", "site", "--test", "k_fold", "--folds", 2)
    assert run("partition", tmp_path / "P", "--out", tmp_path / "D", *by_site) == 0
    sites = load_sites(tmp_path / "D", Multiclass(2), mean=[0.0], std=[1.0])
    assert {name: len(site.train) + len(site.test) for name, site in sites.items()} == {
        "LEUVEN": 8,
        "NYU": 4,
        "UCLA": 4,
        "UM": 4,
    }
    site = sites["NYU"]
    assert (site.shape, site.classes) == ((1, 8, 8, 8), ("control", "autism"))
    record = read_datalist(tmp_path / "D" / "NYU").splits["test"][0]
    image = np.load(tmp_path / "P" / "images.npy")[record["image"]]
    np.testing.assert_allclose(site.test[0]["image"].numpy(), np.moveaxis(image, -1, 0), atol=1e-6)
    card = SiteCard.read(tmp_path / "D" / "NYU" / SiteCard.NAME)
    assert {entry.where for entry in card.exclusions} == {"pooled data set"}
    assert run(*words, "--url", "http://localhost") == 2
    assert "give --download as well" in capsys.readouterr().err


@pytest.mark.slow
def test_progress_and_the_number_of_processes_change_nothing(made, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.utils.progress.EVERY_SECONDS", 0.0)
    contents = []
    for workers in (1, 3):
        lines: list[str] = []
        out = tmp_path / str(workers)
        prepare(made, out, maps=TWO, size=8, workers=workers, say=lines.append)
        assert lines[-1] == "reading: 40 of 40 maps"
        contents.append([(out / name).read_bytes() for name in ("images.npy", "datalist.json")])
    assert contents[0] == contents[1]


def test_the_synthetic_classes_differ_in_one_region(made, tmp_path):
    """Check that a study can find the synthetic effect, and only in its region."""
    datalist = prepare(made, tmp_path / "P", maps=TWO, size=16, atlas=made / ATLAS_FILE)
    images = np.load(tmp_path / "P" / "images.npy")
    regions = np.asarray(nibabel.load(tmp_path / "P" / "atlas.nii.gz").dataobj)
    labels = np.array([record["label"] for record in datalist.splits["training"]])
    gaps = {}
    for code in np.unique(regions[regions > 0]).tolist():
        means = images[:, regions == code].mean(axis=(1, 2))
        spread = np.mean([means[labels == label].std() for label in (0, 1)])
        gaps[code] = (means[labels == 0].mean() - means[labels == 1].mean()) / spread
    assert len(gaps) == 8
    assert gaps.pop(EFFECT_REGION) > 2
    assert max(map(abs, gaps.values())) < 1.5


def test_a_synthetic_release_is_a_function_of_its_seed(tmp_path):
    for name, seed in (("A", 0), ("B", 0), ("C", 1)):
        write_release(tmp_path / name, 2, ("NYU",), ("reho",), size=8, seed=seed)
    files = [[path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))] for name in "ABC"]
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.skipif("MEDFL_DATA" not in os.environ, reason="MEDFL_DATA does not name a folder of real data")
def test_the_real_maps(tmp_path):
    source = Path(os.environ["MEDFL_DATA"]) / "abide"
    if not (source / PHENOTYPE_FILE).is_file():
        pytest.skip("needs the real ABIDE maps in the folder that MEDFL_DATA names")
    lines: list[str] = []
    datalist = prepare(source, tmp_path / "P", maps=MapSelection(("reho",)), size=32, say=lines.append)
    records = datalist.splits["training"]
    sites = ("Europe", "US-East", "US-Middle", "US-West")
    assert Counter((record["site"], record["label"]) for record in records) == {
        (site, label): 7 for site in sites for label in (0, 1)
    }
    assert Counter(record["sex"] for record in records) == {"male": 47, "female": 9}
    warnings = [line for line in lines if line.startswith("warning")]
    assert warnings[0].startswith("warning: no reho map of 815 of 871 subjects: table rows 3, 4,")
    assert warnings[1:] == ["warning: 815 subjects without all maps were left out: see quarantine.csv"]
    assert len(list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))) == 816
    images = np.load(tmp_path / "P" / "images.npy")[..., 0]
    brain = (images != 0).mean(axis=0) > 0.5
    assert 0.2 < brain.mean() < 0.35, "a brain of about 1.8 litres in a cube of 7"
    assert abs(brain[:16].sum() / brain[16:].sum() - 1) < 0.05, "left and right are alike"
    mean = images.mean(axis=0)
    correlations = [np.corrcoef(image[brain], mean[brain])[0, 1] for image in images]
    assert min(correlations) > 0.4, "all heads lie on one another"
