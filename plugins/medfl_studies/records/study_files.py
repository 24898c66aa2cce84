"""Files that a study writes: identity of a finished run, preparation of a pooled data set, hyperparameter search.

Each row of a study is a method with settings. A search (`medfl tune`) runs trials of a row: runs with other parameters.
An adopted bundle is a stock MONAI bundle for which ``medfl adopt`` wrote a federation file.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import JsonValue

from medfl.records.record import FileRecord, Record


class JobIdentity(FileRecord):
    """Everything that determines the numbers of a study's run. The file in the run folder marks the run as finished.

    Attributes:
        options: Options of the run by name.
        configuration: Digest of the bundle's configuration files.
        data: Digest of the data lists.
        code: Digest of the bundle's folder if the bundle was adopted, else None.
        data_files: Digest of the names and sizes of the data set's files if the bundle was adopted, else None.
        commit: Git commit of medfl when the run was finished, with ``-dirty`` after changes; None outside of a
            checkout. It does not identify the run: two commits may give the same numbers.
    """

    NAME: ClassVar[str] = "study.json"
    """Name of the file in its folder."""

    options: dict[str, JsonValue]
    configuration: str
    data: str
    code: str | None = None
    data_files: str | None = None
    commit: str | None = None


class PoolPreparation(FileRecord):
    """The data set and options that a pooled data set was prepared with. The file is beside the pooled data set.

    Attributes:
        dataset: Name of the data set.
        options: Options of the data set by name.
    """

    NAME: ClassVar[str] = "prep.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Give another --out, or remove the pooled data set beside the file to prepare it again."
    """Advice for a user whose file is damaged; part of the error message."""

    dataset: str
    options: dict[str, JsonValue]


# ---- search for hyperparameters


class Trial(Record):
    """A trial of a row: one combination of parameters.

    Attributes:
        number: Number of the trial in its row, counted from 0.
        parameters: Maps each parameter name, such as ``method_args#mu`` or ``optimizer#lr``, to its value; empty for
            the row as it is.
    """

    number: int
    parameters: dict[str, JsonValue]


class TrialResult(Record):
    """The result of a trial.

    Attributes:
        row: Name of the row.
        trial: The trial.
        run: Number of the trial that was run: the trial itself, or an earlier trial with the same parameters.
        status: Final status of the run.
        score: Score on validation images, or None.
        seconds: Seconds of training and evaluation in all rounds, summed over the sites.
        sites: Number of sites with a score; None in records of earlier versions.
    """

    row: str
    trial: Trial
    run: int
    status: Literal["finished", "diverged"]
    score: float | None
    seconds: float
    sites: int | None = None


class PrivacyCost(Record):
    """Privacy budget that all trials spent together at the site that spent most, for one kind of guarantee.

    A kind of guarantee is a combination of `unit`, `adjacency` and `delta`; only epsilons of one kind can be combined.

    Attributes:
        unit: Unit of privacy, ``site`` or ``sample``.
        adjacency: How neighbouring data sets differ: ``add_remove`` if one unit is added or removed, ``replace`` if one
            unit is replaced.
        delta: Probability that the guarantee fails.
        trials: Number of trials with this kind of guarantee.
        largest: Largest epsilon of one run.
        epsilon: Epsilon of all runs together, or None if there is no bound.
        site: Name of the site.
    """

    unit: str
    adjacency: str
    delta: float
    trials: int
    largest: float
    epsilon: float | None
    site: str


class SearchDefinition(Record):
    """Everything that determines the trials of a search and their scores.

    Attributes:
        study: The study, without its description and its bundle.
        bundle: Name of the bundle's folder.
        metric: Metric that the search optimizes.
        optuna: Version of Optuna.
        split: Name of the split of a nested search; None for a search that is not nested.
    """

    study: dict[str, JsonValue]
    bundle: str
    metric: str
    optuna: str
    split: str | None = None

    def changes(self, other: SearchDefinition) -> list[str]:
        """Return the sorted names of the study's fields and other fields that differ between two definitions."""
        mine, others = ({**part.study, **part.to_json(), "study": None} for part in (self, other))
        return sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))


class SearchOutcome(Record):
    """The outcome of a search.

    Attributes:
        trials: Number of trials of each row.
        rounds: Number of rounds of each trial.
        score: How a trial's score is computed from the sites' scores: ``mean``, or ``worst`` for the worst site.
        seed: Seed of the trials' runs.
        winners: Maps each row to the number of its best trial.
        prices: Privacy budget that the trials spent, for each kind of guarantee; empty without privacy.
    """

    trials: int
    rounds: int
    score: Literal["mean", "worst"]
    seed: int
    winners: dict[str, int]
    prices: tuple[PrivacyCost, ...]


class SearchRecord(FileRecord):
    """The record of a search.

    Attributes:
        definition: Everything that determines the trials and their scores.
        results: Results of all trials so far, in the order of the search.
        outcome: The outcome, or None before the search has ended.
    """

    NAME: ClassVar[str] = "search.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Remove the file: finished trials are read again from their folders."
    """Advice for a user whose file is damaged; part of the error message."""

    definition: SearchDefinition
    results: tuple[TrialResult, ...]
    outcome: SearchOutcome | None = None
