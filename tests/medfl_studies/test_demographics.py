"""Studies without rows: the table of the demographics of the sites."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import pytest
from refusals import refused

from medfl.data.datalists import Datalist, write_datalist
from medfl.errors import SettingsError
from medfl_datasets.abide.synthetic import write_release
from medfl_datasets.abide.tables import PHENOTYPE_FILE, read_phenotypes
from medfl_studies.demographics import ALL_SITES, demographics_table
from medfl_studies.study import run_study

CENTRES = ("LEUVEN_1", "LEUVEN_2", "UCLA_1", "NYU", "YALE")
TABLE_ONE: dict[str, Any] = {
    "rows": None,
    "baseline": None,
    "seeds": 1,
    "data": {
        "abide": {
            "prep": {"dataset": "abide", "derivatives": ["reho"], "size": 8},
            "partition": {"scheme": "by_site", "column": "site", "test": "k_fold", "folds": 2, "server_test": "none"},
        }
    },
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    write_release(folder / "abide", per_centre=4, centres=CENTRES, derivatives=("reho",), size=8)
    return folder


def test_a_study_without_rows_shows_who_is_at_the_sites(load, tmp_path: Path, release: Path) -> None:
    """The counts by diagnosis, sex, centre and age agree with the phenotypic file, and both folds share them."""
    assert run_study(load(TABLE_ONE, source=release)).status == {}
    results = tmp_path / "out" / "results"
    assert sorted(path.name for path in results.iterdir()) == ["abide.csv", "abide.md"]
    people = pd.read_csv(results / "abide.csv", keep_default_na=False, na_values={"age_std": "", "age_mean": ""})
    assert people.pop("seed").unique().tolist() == [0]
    table = people.set_index(["site", "centre"])
    subjects = read_phenotypes(release / "abide" / PHENOTYPE_FILE).subjects
    places = sorted({(subject.site, centre) for subject in subjects for centre in ("", subject.centre)})
    assert table.index.tolist() == [*places, (ALL_SITES, "")]
    for site, centre in table.index:
        own = [subject for subject in subjects if site in (ALL_SITES, subject.site) and centre in ("", subject.centre)]
        row, ages = table.loc[(site, centre)], [subject.age for subject in own]
        assert (row["images"], row["people"], row["age_known"]) == (len(own), len(own), len(own))
        assert [row["class: control"], row["class: autism"]] == [
            sum(subject.label == n for subject in own) for n in (0, 1)
        ]
        assert [row["sex: female"], row["sex: male"]] == [
            sum(subject.sex == s for subject in own) for s in ("female", "male")
        ]
        if len(own) >= 5:
            assert (row["age_mean"], row["age_std"]) == pytest.approx((fmean(ages), stdev(ages)))
        else:
            assert pd.isna(row["age_mean"])
    text = (results / "abide.md").read_text()
    assert "| site | centre | images | people | control | autism | female | male | age |" in text
    row = table.loc[("US-East", "")]
    cells = [
        f"{row[name]:.0f}"
        for name in ("images", "people", "class: control", "class: autism", "sex: female", "sex: male")
    ]
    assert f"| US-East |  | {' | '.join(cells)} | {row['age_mean']:.3f} ± {row['age_std']:.3f} |" in text
    picture = text.split("](")[1].split(")")[0]
    assert (results / picture).is_file()


def test_a_person_with_several_images_counts_once(tmp_path: Path, source: Path) -> None:
    """An image without a known person counts as a person. Data without demographics have their classes."""
    table = demographics_table(source / "cohort").set_index("site")
    assert table.loc[ALL_SITES, "images"] == 40
    assert Counter(table["centre"]) == {"": 3}
    assert not [name for name in table.columns if name.startswith("sex")]
    assert table.loc[ALL_SITES, [name for name in table.columns if name.startswith("class")]].sum() == 40


def test_what_needs_rows_is_refused_without_them(load) -> None:
    with refused(SettingsError, "unknown_choice", what="baseline", choice="alone"):
        load({"rows": None})


def test_ages_and_sexes_are_those_of_persons_not_of_images(tmp_path: Path) -> None:
    """Six persons are 30 to 80 years old; the oldest has three images."""
    records = [
        {"image": row, "label": row % 2, "subject_id": f"p{min(row, 5)}", "sex": "male", "age": 30.0 + 10 * min(row, 5)}
        for row in range(8)
    ]
    (tmp_path / "site-01").mkdir()
    splits = {"training": records[:4], "validation": records[4:6], "test": records[6:]}
    write_datalist(tmp_path / "site-01", Datalist("toy", "images.npy", 2, licence="CC0 1.0", splits=splits))
    row = demographics_table(tmp_path).set_index(["site", "centre"]).loc[("site-01", "")]
    assert (row["images"], row["people"], row["sex: male"], row["age_known"]) == (8, 6, 6, 6)
    assert (row["class: 0"], row["class: 1"]) == (4, 4)
    assert (row["age_mean"], row["age_std"]) == pytest.approx((55.0, stdev(range(30, 90, 10))))
