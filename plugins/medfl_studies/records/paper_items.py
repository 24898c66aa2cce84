"""Schema of ``papers.yaml``: tables and figures of papers, their printed numbers, and the studies that repeat them.

A row of a study is a method with settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from medfl.settings import StrictModel, read_settings
from medfl.utils.strict_yaml import read_yaml
from medfl_report.claims import CLAIMABLE

CurveKind = Literal["server", "trained", "seconds", "sites", "networks", "public", "epochs"]
"""Quantity of a curve.

``server``: global model on the server's test set, by round. ``seconds``: the same by the seconds of work of all sites.
``trained``: sites' models right after training. ``sites``: exported models on the sites' own test sets. ``networks``:
the same, separately for the sites with each network. ``public``: global model on the public test set. ``epochs``: a
student on the public test set, by epoch of its training.
"""


class PaperColumn(StrictModel):
    """A column of a table of a paper, or a quantity of one of its figures.

    Attributes:
        name: Name of the column.
        ours: Name of the column of our runs, such as another partition; empty for `name`.
        printed: Maps each method to the number that the paper prints; larger is better. Empty if it prints none.
        orders: Pairs (better, worse) of methods that a figure or the text states without numbers.
        data: Data set of the study that repeats the column; None if no study does.
        measure: Measure of the runs, a key of `medfl_report.claims.CLAIMABLE`; given together with `data`.
        metric: Metric of the measure.
    """

    name: str
    ours: str = ""
    printed: dict[str, float] = {}
    orders: tuple[tuple[str, str], ...] = ()
    data: str | None = None
    measure: str | None = None
    metric: str = "accuracy"

    @property
    def label(self) -> str:
        """Name of the column, followed by the name of our column if it differs."""
        return f"{self.name} (medfl: {self.ours})" if self.ours else self.name

    @model_validator(mode="after")
    def _check_measure(self) -> Self:
        """Check that data set and measure are given together, and that the measure is known."""
        if (self.data is None) != (self.measure is None):
            raise ValueError(f"expected 'data' and 'measure' together in the column '{self.name}'")
        if self.measure is not None and self.measure not in CLAIMABLE:
            raise ValueError(f"expected a measure out of {', '.join(CLAIMABLE)}, got '{self.measure}'")
        return self


class PaperCurve(StrictModel):
    """Curves of a figure of a paper, one for each method.

    Attributes:
        name: Name of the quantity.
        data: Data set of the study.
        kind: Quantity on the vertical axis.
        metric: Metric of the scores.
        methods: Methods with a curve; empty means all.
        claimed_at: Second at which the paper states a gain of the last method over the first; None without a claim.
    """

    name: str
    data: str
    kind: CurveKind
    metric: str = "accuracy"
    methods: tuple[str, ...] = ()
    claimed_at: int | None = None


class PaperGroups(StrictModel):
    """Groups of persons whose AUCs an item compares.

    Attributes:
        kind: ``centre`` for the first method of the item's rows against the second one at each scanning centre, or
            ``sex`` for men and women with each method.
        data: Data set of the study.
    """

    kind: Literal["centre", "sex"]
    data: str


class PaperItem(StrictModel):
    """A table or a figure of a paper, and the study that repeats it.

    Attributes:
        item: Name in the paper, such as ``table 1``.
        shows: Content of the table or figure.
        data: Data of the paper.
        our_data: Name of the data of our runs if the paper has others; empty otherwise.
        studies: Names of the study files that repeat it; empty without any.
        raw: Folder of raw results that the page shows; None if no study was run.
        differs: Differences between the runs and the paper, as sentences.
        reason: Reason why there are no runs, or none for a part, as sentences.
        rows: Maps each method of the paper to the row of the study.
        percent: True if the numbers of the paper are percentages.
        decimals: Number of decimals of the paper's numbers.
        columns: Columns of the table.
        curves: Curves of the figure.
        groups: Groups of persons that the item compares; None without any.
        tried: Ingredients that were tried where an order does not hold, if the results are kept; empty
            if none was tried.
    """

    item: str
    shows: str
    data: str
    our_data: str = ""
    studies: tuple[str, ...] = ()
    raw: str | None = None
    differs: str = ""
    reason: str = ""
    rows: dict[str, str] = {}
    percent: bool = False
    decimals: int = 3
    columns: tuple[PaperColumn, ...] = ()
    curves: tuple[PaperCurve, ...] = ()
    groups: PaperGroups | None = None
    tried: str = ""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        """Check that each item has raw results or a reason, and that all orders and curves have known methods."""
        if self.raw is None and not self.reason:
            raise ValueError(f"expected 'raw' or a 'reason' in '{self.item}'")
        named = {name for column in self.columns for pair in column.orders for name in pair}
        named |= {name for curve in self.curves for name in curve.methods}
        if unknown := sorted(named - self.rows.keys()):
            raise ValueError(f"expected methods out of 'rows' in '{self.item}', got {', '.join(unknown)}")
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods with a row or a printed number: those of `rows` first, in their order."""
        printed = [name for column in self.columns for name in column.printed]
        return tuple(dict.fromkeys([*self.rows, *printed]))


class Paper(StrictModel):
    """A paper.

    Attributes:
        name: Name of its method.
        source: Authors, title, place and year.
        others: Tables and figures without an item, such as drawings of the method, as sentences.
        items: Its tables and figures.
    """

    name: str
    source: str
    others: str
    items: tuple[PaperItem, ...]


class PaperList(StrictModel):
    """Content of ``papers.yaml``.

    Attributes:
        papers: The papers.
    """

    papers: tuple[Paper, ...]


def read_papers(path: Path) -> tuple[Paper, ...]:
    """Read a list of papers.

    Args:
        path: YAML file with the schema `PaperList`.

    Raises:
        SettingsError: If the file is missing or not valid.
    """
    return read_settings(PaperList, read_yaml(path, "list of papers"), f"the list of papers '{path}'").papers
