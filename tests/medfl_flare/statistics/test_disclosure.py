"""Measurements are correct, disclosure follows the policy, and noise has the guaranteed size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from described import write_classes, write_site
from refusals import refused

from medfl.errors import DataError
from medfl.privacy.gaussian import epsilon
from medfl.settings import Privacy
from medfl_flare.statistics.disclosure import HISTOGRAM_BINS, DisclosurePolicy, NoiseOptions, disclose_statistics
from medfl_flare.statistics.local_folder import compute_folder_statistics
from medfl_flare.statistics.measurements import measure_site
from medfl_flare.statistics.site_statistics import DISCLOSURE_KINDS, SiteStatistics

ALL = DisclosurePolicy(min_count=1)


def told_of(folder: Path, least: int = 1) -> SiteStatistics:
    return disclose_statistics(measure_site(folder), DisclosurePolicy(min_count=least))


def numbers_of(about: SiteStatistics) -> dict[str, list[float | None]]:
    return {each.title: each.quantiles for each in about.numbers}


def counts_of(about: SiteStatistics) -> dict[str, dict[str, int | None]]:
    return {each.title: dict(zip(each.names, each.counts, strict=True)) for each in about.tables}


def test_counts_sizes_and_quantiles_of_images_in_closed_form(tmp_path: Path) -> None:
    """Image k contains the ramp 0, ..., 100 plus k, so its quantile at q is 100 q + k."""
    ramp = np.arange(101, dtype=np.uint8).reshape(1, 1, 101) + np.arange(41, dtype=np.uint8)[:, None, None]
    records = [{"label": int(row < 11), "subject_id": f"p{row // 2}"} for row in range(41)]
    about = told_of(write_site(tmp_path / "a", ramp, records))
    assert (about.images, about.patients, about.shape) == (41, 21, [1, 1, 101])
    assert counts_of(about) == {"class": {"0": 30, "1": 11}}
    for share in (5, 25, 50, 75, 95):
        expected = [share + 40 * level for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
        assert numbers_of(about)[f"brightness at {share}%"] == pytest.approx(expected)


def test_each_channel_and_volumes_too(tmp_path: Path) -> None:
    colours = np.zeros((4, 6, 6, 3), dtype=np.uint8) + np.array([10, 20, 30], dtype=np.uint8)
    about = numbers_of(told_of(write_site(tmp_path / "a", colours, [{"label": 0}] * 4)))
    assert [about[f"brightness at 50%, {name}"][2] for name in ("red", "green", "blue")] == [10, 20, 30]
    volumes = np.full((3, 4, 5, 6), 0.25, dtype=np.float32)
    whole = told_of(write_site(tmp_path / "b", volumes, [{"label": 0}] * 3))
    assert whole.shape == [1, 4, 5, 6]
    assert numbers_of(whole)["brightness at 95%"] == [None, None, 0.25, None, None]


def test_masks_are_counted_and_their_shares_are_of_images_that_hold_them(tmp_path: Path) -> None:
    masks = np.zeros((4, 10, 10), dtype=np.uint8)
    masks[1, :1], masks[2, :2], masks[3, :3] = 1, 1, 1  # 10, 20 and 30 percent
    about = told_of(
        write_site(
            tmp_path / "a", np.zeros((4, 10, 10), dtype=np.uint8), [{}] * 4, masks=masks,
            objective={"name": "segmentation", "channels": 2, "spacing": [0.5, 0.5]},
            extra={"structures": ["background", "lesion"]},
        )
    )  # fmt: skip
    assert counts_of(about) == {"lesion": {"not in the image": 1, "in the image": 3}}
    assert numbers_of(about)["share of an image that is lesion"] == [None, None, 0.2, None, None]
    assert about.spacing == [0.5, 0.5]


def test_rows_of_a_table_with_survival_times(tmp_path: Path) -> None:
    rows = np.stack([np.arange(21.0), np.arange(21) % 2], axis=1)
    records = [{"target": [float(row + 1), int(row < 5)]} for row in range(21)]
    about = told_of(
        write_site(tmp_path / "a", rows, records, objective={"name": "survival"}, extra={"features": ["age", "smokes"]})
    )
    assert counts_of(about) == {"event": {"no event": 16, "event": 5}, "smokes": {"0": 11, "1": 10}}
    assert numbers_of(about)["smokes"][2] == 0
    assert numbers_of(about)["time under observation"] == [2, 6, 11, 16, 20]
    assert numbers_of(about)["age"] == [1, 5, 10, 15, 19]


def test_findings_and_numbers_to_predict(tmp_path: Path) -> None:
    images = np.zeros((5, 4, 4), dtype=np.uint8)
    findings = [{"target": [1, None]}, {"target": [1, 0]}, {"target": [0, 1]}, {"target": [0, 1]}, {"target": [0, 0]}]
    objective = {"name": "multilabel", "num_labels": 2}
    about = told_of(
        write_site(tmp_path / "a", images, findings, objective=objective, extra={"target_names": ["oedema", "mass"]})
    )
    assert counts_of(about) == {
        "oedema": {"no": 3, "yes": 2, "not known": 0},
        "mass": {"no": 2, "yes": 2, "not known": 1},
    }
    ages = [{"target": [float(age)]} for age in (10, 20, 30, 40, 50)]
    numbers = told_of(write_site(tmp_path / "b", images, ages, objective={"name": "regression"}))
    assert numbers_of(numbers)["0"] == [None, 20, 30, 40, None], "a tail of less than one case"


def test_nothing_outside_the_policy_and_no_identity_is_disclosed(tmp_path: Path) -> None:
    measured = measure_site(write_classes(tmp_path / "a", [30, 25], patients=30))
    parts = {
        "size": {"images", "patients"}, "label_counts": {"tables"}, "geometry": {"shape"},
        "intensities": {"numbers"}, "targets": set(),
    }  # fmt: skip
    for fact in DISCLOSURE_KINDS:
        about = disclose_statistics(measured, DisclosurePolicy([fact])).model_dump(exclude_defaults=True)
        assert about.keys() - {"objective", "classes", "min_count", "suppressed"} == parts[fact]
    assert "secret" not in json.dumps(disclose_statistics(measured, DisclosurePolicy()).model_dump())


def test_few_images_or_few_patients_disclose_nothing(tmp_path: Path) -> None:
    few = told_of(write_classes(tmp_path / "a", [5, 4]), least=10)
    one_patient = told_of(write_classes(tmp_path / "b", [50, 40], patients=3), least=10)
    for about in (few, one_patient):
        assert (about.images, about.patients, about.tables, about.numbers) == (None, None, [], [])
        assert about.suppressed == ["all numbers: there are fewer than 10 training images or patients"]


def test_as_many_images_and_patients_as_the_minimum_are_enough(tmp_path: Path) -> None:
    images = np.zeros((12, 4, 4), dtype=np.uint8)
    records = [{"label": row % 2, "subject_id": f"p{row}"} for row in range(12)]
    site = write_site(tmp_path / "a", images, records)
    assert told_of(site, 12).images == 12
    assert told_of(site, 13).images is None


def test_the_disclosed_quantiles_do_not_reveal_how_many_masks_are_empty(tmp_path: Path) -> None:
    """1 to 4 of 102 images have no lesion: the count is suppressed, and all cases look alike.

    With 100 images the 5 % quantile would reveal the count.
    """
    shown = set()
    for empty in (1, 2, 3, 4):
        masks = np.zeros((102, 4, 4), dtype=np.uint8)
        masks[empty:, 0] = 1
        objective = {"name": "segmentation", "channels": 2}
        images = np.zeros((102, 4, 4), dtype=np.uint8)
        about = told_of(
            write_site(tmp_path / str(empty), images, [{}] * 102, masks=masks, objective=objective), least=5
        )
        assert about.tables[0].counts == [None, None]
        shown.add(about.model_dump_json())
    assert len(shown) == 1


def test_a_quantile_is_disclosed_where_enough_images_have_the_number_for_sure(tmp_path: Path) -> None:
    """1 to 4 of 104 images have no lesion, so at least 100 have one, and 5 of these lie below the 5 % quantile."""
    for empty in (1, 4):
        masks = np.zeros((104, 4, 4), dtype=np.uint8)
        masks[empty:, 0] = 1
        objective = {"name": "segmentation", "channels": 2}
        images = np.zeros((104, 4, 4), dtype=np.uint8)
        folder = write_site(tmp_path / str(empty), images, [{}] * 104, masks=masks, objective=objective)
        assert numbers_of(told_of(folder, least=5))["share of an image that is 1"] == [0.25] * 5


def test_images_of_validation_and_test_stay_closed(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "a", [20, 20])
    content = json.loads((folder / "datalist.json").read_text())
    before = told_of(folder)
    content["test"] = [{"image": row, "label": 0} for row in range(5)]
    content["validation"] = [{"image": row, "label": 0} for row in range(5)]
    (folder / "datalist.json").write_text(json.dumps(content))
    assert told_of(folder) == before


# ---- noise


def noised(folder: Path, trial: int, privacy: Privacy, facts: list[str] | None = None) -> SiteStatistics:
    noise = NoiseOptions(privacy, trial.to_bytes(16, "big"), "one")
    return disclose_statistics(measure_site(folder), DisclosurePolicy(facts or DISCLOSURE_KINDS, 1), noise)


def test_the_noise_is_that_of_one_gaussian_release_of_all_counts(tmp_path: Path) -> None:
    """There are seven blocks: the number of images, the classes, and five histograms. An image changes each by one."""
    folder = write_classes(tmp_path / "a", [4000, 6000])
    privacy = Privacy(unit="sample", epsilon=2.0, delta=1e-5, adjacency="add_remove", clip=1.0)
    measured = measure_site(folder)
    blocks = 1 + 1 + 5
    drawn = []
    for trial in range(150):
        about = disclose_statistics(
            measured, DisclosurePolicy(DISCLOSURE_KINDS, 1), NoiseOptions(privacy, trial.to_bytes(16, "big"), "one")
        )
        assert about.images is not None
        counts = about.tables[0].counts
        assert counts[0] is not None
        assert counts[1] is not None
        drawn += [about.images - 10_000, counts[0] - 4000, counts[1] - 6000]
    assert about.guarantee is not None
    deviation = about.guarantee.deviation
    assert epsilon(deviation / math.sqrt(blocks), 1, 1e-5, 1.0) == pytest.approx(2.0, rel=1e-2)
    assert abs(np.mean(drawn)) < 4 * deviation / math.sqrt(len(drawn))
    assert np.std(drawn) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(drawn)))
    assert about.patients is None
    exact = numbers_of(disclose_statistics(measured, DisclosurePolicy(DISCLOSURE_KINDS, 1)))
    for title, quantiles in numbers_of(about).items():
        assert quantiles[2] == pytest.approx(exact[title][2], abs=255 / HISTOGRAM_BINS)


def test_an_image_moves_the_counts_by_no_more_than_the_bound(tmp_path: Path) -> None:
    """Almost without noise, two data sets that differ by one image differ by at most 1 in each block."""
    weak = Privacy(unit="sample", epsilon=1e6, delta=0.5, adjacency="add_remove", clip=1.0)
    released = []
    for number in (40, 41):
        folder = write_classes(tmp_path / str(number), [number, 30], seed=3)
        noise = NoiseOptions(weak, bytes(16), "one", lambda sigma, run, made_of: released.append((sigma, run)))
        about = disclose_statistics(measure_site(folder), DisclosurePolicy(["size", "label_counts"], 1), noise)
        assert about.images == number + 30
        assert about.tables[0].counts == [number, 30]
    assert released[0] == released[1]


def test_the_same_data_and_secret_give_the_same_numbers_and_others_give_others(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "a", [300, 200])
    privacy = Privacy(unit="sample", epsilon=1.0, clip=1.0)
    assert noised(folder, 1, privacy) == noised(folder, 1, privacy)
    assert noised(folder, 1, privacy) != noised(folder, 2, privacy)
    other = NoiseOptions(privacy, (1).to_bytes(16, "big"), "two")
    assert noised(folder, 1, privacy) != disclose_statistics(
        measure_site(folder), DisclosurePolicy(DISCLOSURE_KINDS, 1), other
    )


def test_numbers_whose_range_no_one_knows_are_suppressed_under_noise(tmp_path: Path) -> None:
    rows = np.stack([np.arange(50.0), np.arange(50) % 2], axis=1)
    folder = write_site(tmp_path / "a", rows, [{"target": [1.0]}] * 50, objective={"name": "regression"})
    about = noised(folder, 1, Privacy(unit="sample", epsilon=5.0, clip=1.0))
    assert (about.numbers, about.tables) == ([], []), "that a column has two values is read off the data, too"
    assert "0, 0, 1: the range is not known beforehand, so noise can't hide an image" in about.suppressed


def test_a_folder_without_sites_is_refused(tmp_path: Path) -> None:
    with refused(DataError, "missing_site", path=str(tmp_path)):
        compute_folder_statistics(tmp_path, ALL)
