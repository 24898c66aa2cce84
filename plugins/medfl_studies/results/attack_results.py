"""Results of a study's attacks for a results page, from raw results. Each row of a study is a method with settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from medfl.errors import StoreError
from medfl.hooks import AttackRecord
from medfl.plugins import load_plugins
from medfl_studies.attacks import attack_table, attacks_markdown
from medfl_studies.results.recorded_study import StudyResults


@dataclass(frozen=True, eq=False)
class AttackResults:
    """Results of the attacks on the runs of a study on one data set.

    Attributes:
        table: Means over the runs, with the columns of `medfl_studies.attacks.attack_table`.
        records: Attacks by name.
    """

    table: pd.DataFrame
    records: Mapping[str, AttackRecord]

    def tables(self) -> str:
        """Return a table in Markdown for each attack, below a heading, with the meaning of its measures."""
        return attacks_markdown(self.table, self.records).rstrip("\n")

    def mean(self, row: str, attack: str, measure: str, item: str = "") -> float:
        """Return the mean of a measure over the runs of a row.

        Args:
            row: Name of the row.
            attack: Name of the attack in the table.
            measure: Name of the measure, such as ``auc``.
            item: What was attacked, as in the table; empty for attacks without an item.

        Raises:
            StoreError: If the table has no or several such results.
        """
        wanted = {"label": row, "attack": attack, "item": item, "measure": measure}
        rows = self.table
        for column, value in wanted.items():
            rows = rows[rows[column] == value]
        if len(rows) != 1:
            raise StoreError(
                "no_result",
                f"expected one attack result for {wanted} in the raw results, got {len(rows)}. Correct the template.",
                wanted=wanted,
            )
        return float(rows["mean"].iloc[0])


def attack_results(results: StudyResults, data: str) -> AttackResults:
    """Return the results of a study's attacks on one data set, in the order of the study's rows.

    Args:
        results: Raw results of the study.
        data: Name of the data set.
    """
    values = results.attacks[results.attacks["data"] == data]
    order = {row: place for place, row in enumerate(results.raw.rows)}
    values = values.sort_values("row", key=lambda rows: rows.map(order), kind="stable")
    return AttackResults(attack_table(values), load_plugins().attacks)
