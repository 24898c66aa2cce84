"""Who is at the sites of a partition: images of each class, sex, age and scanning centre.

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
from medfl_report.sections.holdings import PICTURE
from medfl_report.statistics import mean_std

ALL = "all sites"
"""Stands for a site in the last row."""

FEWEST = 5
"""Of fewer people no age is told, so that it is nobody's own."""

NOTES = (
    "Training, validation and test images together, of those that were prepared.",
    "Sex and age count each person once, by the first image. Age: mean ± standard deviation (ddof = 1) in years, of "
    f"those whose age is known if they are {FEWEST} or more.",
)
"""What the numbers mean."""


def people_table(dataset_dir: Path) -> pd.DataFrame:
    """A row for each site, below it one for each of its scanning centres where they are known, and one for all sites.

    Args:
        dataset_dir: The folder of a partition.

    Returns:
        Columns: site, centre (empty in the row of a whole site), images, people (an image of nobody known is a person's
        of its own), ``class: <name>`` in images, ``sex: <word>`` in people, age_known, age_mean and age_std.

    Raises:
        DataError: If a data list can't be read.
    """
    lists = {site: read_datalist(dataset_dir / site) for site in site_names(dataset_dir)}
    first = next(iter(lists.values()))
    names = {label: first.labels.get(str(label), str(label)) for label in range(first.num_classes)}
    held = {site: [record for split in SPLITS for record in datalist.splits[split]] for site, datalist in lists.items()}
    everybody = [record for records in held.values() for record in records]
    sexes = sorted({sex for record in everybody if (sex := entry_text(record, "sex"))})
    rows = []
    for site, records in held.items():
        rows.append(_row(site, "", records, names, sexes))
        for centre in sorted({centre for record in records if (centre := entry_text(record, "centre"))}):
            own = [record for record in records if entry_text(record, "centre") == centre]
            rows.append(_row(site, centre, own, names, sexes))
    return pd.DataFrame([*rows, _row(ALL, "", everybody, names, sexes)])


def people_markdown(table: pd.DataFrame, dataset_dir: Path, page: Path) -> str:
    """The table, what its numbers mean, and the picture that the partition drew of it.

    Args:
        table: From `people_table`.
        dataset_dir: The folder of the partition.
        page: The file that it will stand in.
    """
    shown = [name for name in table.columns if name == "centre" or not name.startswith(("site", "age"))]
    shown = [name for name in shown if name != "centre" or table["centre"].any()]
    lines = [["site", *(name.partition(": ")[2] or name for name in shown), "age"]]
    for row in table.to_dict("records"):
        lines.append([row["site"], *(str(row[name]) for name in shown), plus_minus(row["age_mean"], row["age_std"])])
    picture = os.path.relpath(dataset_dir / PICTURE, page.parent)
    drawn = [f"![Images of each class at each site]({picture})\n"] if (dataset_dir / PICTURE).is_file() else []
    return "\n".join([f"{table_lines(lines)}\n", *(f"- {note}" for note in NOTES), "", *drawn])


def _row(
    site: str, centre: str, records: Sequence[CaseRecord], classes: Mapping[int, str], sexes: Sequence[str]
) -> dict[str, Any]:
    people = {entry_text(record, "subject_id") or (site, record["image"]): record for record in reversed(records)}
    labels = Counter(record["label"] for record in records)
    sex = Counter(entry_text(record, "sex") for record in people.values())
    ages = [float(age) for record in people.values() if (age := entry_text(record, "age"))]
    mean, std = mean_std(ages) if len(ages) >= FEWEST else (math.nan, None)
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
