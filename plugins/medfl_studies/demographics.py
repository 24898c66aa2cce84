"""Demographics of the sites of a partition: images of each class, sex, age and scanning centre.

A partition is a data set that is divided into a folder for each site.

Source: Weng, Cai and Zhou, FedSKD, 2025, table 1.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medfl.data.datalists import SPLITS, entry_text, read_datalist
from medfl.data.sites import site_names
from medfl.records.datalist import CaseRecord
from medfl.utils.formats import plus_minus, table_lines
from medfl_report.sections.class_counts_figure import COUNTS_FIGURE
from medfl_report.statistics import mean_std

ALL_SITES = "all sites"
"""Text in the column ``site`` of the table's last row, which summarizes all sites together."""

MIN_PEOPLE_FOR_AGE = 5
"""Minimum number of people with known age behind a published mean age, so that it reveals no person's age."""

TABLE_NOTES = (
    "All prepared images: training, validation and test images together.",
    "Sex and age count each person once, with the data of the first image. Age: mean ± standard deviation (ddof = 1) "
    f"in years over the people with known age, if there are at least {MIN_PEOPLE_FOR_AGE}.",
)
"""Notes below the table on the meaning of the numbers."""


def demographics_table(dataset_dir: Path) -> pd.DataFrame:
    """Build a table with a row for each site, for each of its scanning centres if known, and for all sites.

    Args:
        dataset_dir: Folder of a partition.

    Returns:
        Table with the columns site, centre (empty in the row of a whole site), images, people, ``class: <name>``
            (number of images), ``sex: <word>`` (number of people), age_known, age_mean and age_std. An image without a
            known person counts as a separate person.

    Raises:
        DataError: If a data list can't be read.
    """
    lists = {site: read_datalist(dataset_dir / site) for site in site_names(dataset_dir)}
    first = next(iter(lists.values()))
    names = {label: first.labels.get(str(label), str(label)) for label in range(first.num_classes)}
    held = {site: [record for split in SPLITS for record in datalist.splits[split]] for site, datalist in lists.items()}
    all_records = [record for records in held.values() for record in records]
    sexes = sorted({sex for record in all_records if (sex := entry_text(record, "sex"))})
    rows = []
    for site, records in held.items():
        rows.append(_demographics_row(site, "", records, names, sexes))
        for centre in sorted({centre for record in records if (centre := entry_text(record, "centre"))}):
            centre_records = [record for record in records if entry_text(record, "centre") == centre]
            rows.append(_demographics_row(site, centre, centre_records, names, sexes))
    return pd.DataFrame([*rows, _demographics_row(ALL_SITES, "", all_records, names, sexes)])


def demographics_markdown(table: pd.DataFrame, dataset_dir: Path, page: Path) -> str:
    """Return the table in Markdown, with notes below it and a link to the figure of class counts if the figure exists.

    The Markdown table has one column for age (mean ± standard deviation), and a column ``centre`` only if a centre is
    known.

    Args:
        table: Table from `demographics_table`.
        dataset_dir: Folder of the partition.
        page: Path of the Markdown file that will contain the text; the link to the figure is relative to this file.
    """
    shown = [name for name in table.columns if name == "centre" or not name.startswith(("site", "age"))]
    shown = [name for name in shown if name != "centre" or table["centre"].any()]
    lines = [["site", *(name.partition(": ")[2] or name for name in shown), "age"]]
    for row in table.to_dict("records"):
        lines.append([row["site"], *(str(row[name]) for name in shown), plus_minus(row["age_mean"], row["age_std"])])
    picture = os.path.relpath(dataset_dir / COUNTS_FIGURE, page.parent)
    drawn = [f"![Images of each class at each site]({picture})\n"] if (dataset_dir / COUNTS_FIGURE).is_file() else []
    return "\n".join([f"{table_lines(lines)}\n", *(f"- {note}" for note in TABLE_NOTES), "", *drawn])


def _demographics_row(
    site: str, centre: str, records: Sequence[CaseRecord], classes: Mapping[int, str], sexes: Sequence[str]
) -> dict[str, Any]:
    """Build the row of a site, a centre or all sites."""
    people = {entry_text(record, "subject_id") or (site, record["image"]): record for record in reversed(records)}
    labels = Counter(record["label"] for record in records)
    sex = Counter(entry_text(record, "sex") for record in people.values())
    ages = [float(age) for record in people.values() if (age := entry_text(record, "age"))]
    mean, std = mean_std(ages) if len(ages) >= MIN_PEOPLE_FOR_AGE else (math.nan, None)
    return {
        "site": site,
        "centre": centre,
        "images": len(records),
        "people": len(people),
        **{f"class: {name}": labels[label] for label, name in classes.items()},
        **{f"sex: {word}": sex[word] for word in sexes},
        "age_known": len(ages),
        "age_mean": mean,
        "age_std": math.nan if std is None else std,
    }
