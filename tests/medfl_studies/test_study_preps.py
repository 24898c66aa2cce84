"""Releases that a study prepares itself: found in two places, at the size of a scale, and never confused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.errors import DataError, PluginError, SettingsError, StoreError
from medfl.plugins import load_plugins
from medfl_datasets.abide.synthetic import ATLAS_FILE, write_release
from medfl_studies.jobs import expand_study, public_dir
from medfl_studies.study_data import check_data, make_data
from medfl_studies.study_reader import read_study

REGISTRY = load_plugins()


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_release(folder / "abide", per_centre=4, derivatives=("reho",), size=10)
    return folder


def study_file(folder: Path, **prep) -> Path:
    partition = {"scheme": "by_site", "column": "site", "test": "k_fold", "folds": 2, "server_test": "none"}
    content = {
        "name": "brains",
        "bundle": "fmri_asd_classification",
        "data": {
            "abide": {
                "prep": {"dataset": "abide", "derivatives": ["reho"], "size": 12, **prep},
                "partition": partition,
            }
        },
        "rows": {"local": {"method": "local"}},
        "seeds": 1,
        "scales": {"cpu": {"size": 8}},
    }
    path = folder / "brains.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(("scale", "edge"), [pytest.param("full", 12, marks=pytest.mark.slow), ("cpu", 8)])
@pytest.mark.parametrize("nested", [True, False])
def test_abide_is_prepared_at_the_size_of_the_scale(source, tmp_path, scale, edge, nested):
    place = source if nested else source / "abide"
    atlas = ("abide/" if nested else "") + ATLAS_FILE
    study = read_study(study_file(tmp_path, atlas=atlas), scale)
    check_data(study, place, tmp_path / "out", REGISTRY)
    make_data(study, place, tmp_path / "out", REGISTRY, lambda _: None)
    data = tmp_path / "out" / "data" / "abide"
    images = np.load(data / "pooled" / read_datalist(data / "pooled").image_array, mmap_mode="r")
    assert images.shape[1:] == (edge, edge, edge, 1)
    assert (data / "pooled" / "atlas.nii.gz").is_file()
    assert sorted(path.name for path in data.glob("sites-*")) == ["sites-seed-0-fold-0", "sites-seed-0-fold-1"]


def test_a_study_may_name_the_folder_of_a_release(source, tmp_path):
    shutil.copytree(source / "abide", tmp_path / "releases" / "abide780")
    study = read_study(study_file(tmp_path, source="abide780", atlas=f"abide780/{ATLAS_FILE}"))
    check_data(study, tmp_path / "releases", tmp_path / "out", REGISTRY)
    with refused(DataError, "missing_path", setting="source", path=str(tmp_path / "releases" / "abide781")):
        check_data(
            read_study(study_file(tmp_path, source="abide781")), tmp_path / "releases", tmp_path / "out", REGISTRY
        )


def test_a_pool_that_was_prepared_in_another_way_is_refused(source, tmp_path):
    def make(scale):
        study = read_study(study_file(tmp_path), scale)
        make_data(study, source, tmp_path / "out", REGISTRY, lambda _: None)

    make("full")
    make("full")
    with refused(StoreError, "other_preparation", found={"size": 12}, expected={"size": 8}):
        make("cpu")
    with refused(StoreError, "other_preparation", found={"size": 12}, expected={"size": 8}):
        check_data(read_study(study_file(tmp_path), "cpu"), source, tmp_path / "out", REGISTRY)


def test_a_release_or_an_atlas_that_is_not_there_is_reported_before_anything_is_made(source, tmp_path):
    study = read_study(study_file(tmp_path, atlas="AAL.nii"), "full")
    with refused(DataError, "missing_path", setting="atlas", path=str(source / "AAL.nii")):
        check_data(study, source, tmp_path / "out", REGISTRY)
    shutil.copytree(source, tmp_path / "other", ignore=shutil.ignore_patterns("*.csv"))
    with refused(DataError, "missing_file", file="Phenotypic_V1_0b_preprocessed1.csv"):
        check_data(read_study(study_file(tmp_path), "full"), tmp_path / "other", tmp_path / "out", REGISTRY)


def test_a_data_set_or_an_option_that_is_not_known_is_reported_before_anything_is_made(source, tmp_path):
    with refused(PluginError, "unknown_choice", what="dataset", choice="abyde"):
        check_data(read_study(study_file(tmp_path, dataset="abyde")), source, tmp_path / "out", REGISTRY)
    with refused(SettingsError, "unknown_setting", settings=["derivative"]) as caught:
        check_data(read_study(study_file(tmp_path, derivative="reho")), source, tmp_path / "out", REGISTRY)
    assert "Did you mean 'derivatives'" in str(caught.value)


def test_public_data_are_prepared_at_the_scales_size_and_given_to_every_run(source, tmp_path):
    content = yaml.safe_load(study_file(tmp_path).read_text())
    content["data"]["abide"]["public"] = content["data"]["abide"]["prep"]
    path = tmp_path / "public.yaml"
    path.write_text(yaml.safe_dump(content))
    study, out = read_study(path, "cpu"), tmp_path / "out"
    check_data(study, source, out, REGISTRY)
    make_data(study, source, out, REGISTRY, lambda _: None)
    public = public_dir(out, "abide")
    images = np.load(public / read_datalist(public).image_array, mmap_mode="r")
    assert images.shape[1:] == (8, 8, 8, 1)
    jobs = expand_study(study, Path("bundle"), source, out)
    assert [job.options["public"] for job in jobs] == [str(public.resolve())] * 2


@pytest.mark.parametrize("dataset", ["cbis_ddsm", "mias", "ham10000"])
def test_a_release_that_is_looked_for_in_its_own_folder(tmp_path, dataset):
    content = yaml.safe_load(study_file(tmp_path).read_text())
    content["data"]["abide"]["prep"] = {"dataset": dataset}
    path = tmp_path / "mammograms.yaml"
    path.write_text(yaml.safe_dump(content))
    with refused(DataError, "missing_folder", path=str(tmp_path / dataset)):
        check_data(read_study(path), tmp_path, tmp_path / "out", REGISTRY)


@pytest.mark.slow
def test_public_data_without_the_private_images_are_written_by_the_partition(source, tmp_path):
    """The public data are beside the sites with ``duplicates: drop``, and a run finds them there."""
    content = yaml.safe_load(study_file(tmp_path).read_text())
    data = content["data"]["abide"]
    data["public"] = data["prep"] | {"size": 10}  # no image is the same
    data["partition"] |= {"duplicates": "drop", "test": "none"}
    path = tmp_path / "parted.yaml"
    path.write_text(yaml.safe_dump(content))
    study, out = read_study(path), tmp_path / "out"
    for _ in range(2):  # the second time it is there, and made in the same way
        check_data(study, source, out, REGISTRY)
        make_data(study, source, out, REGISTRY, lambda _: None)
    (job,) = expand_study(study, tmp_path, source, out)
    assert "public" not in job.options
    beside = read_datalist(job.dataset_dir / "public")
    assert beside.splits == read_datalist(public_dir(out, "abide")).splits
    assert (job.dataset_dir / "public" / beside.image_array).samefile(public_dir(out, "abide") / "images.npy")
    data["public"] = data["prep"]
    path.write_text(yaml.safe_dump(content))
    with refused(DataError, "no_images", split="public"):
        make_data(read_study(path), source, tmp_path / "other", REGISTRY, lambda _: None)
