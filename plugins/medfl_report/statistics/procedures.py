"""Choice of the test and the interval for a question, by the number of units that are compared.

`PROCEDURES` is the table of the page docs/statistics.md. The functions of this module apply its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from medfl.utils.formats import table_lines
from medfl_report.statistics.intervals import LEVEL

MIN_PATIENTS = 6
"""Minimum number of patients for a claim: with fewer, no exchange test can reach the level of 5 %."""

EXHAUSTIVE = 10
"""Largest number of patients for which an exchange test computes all 2^n exchanges."""

MANY_PATIENTS, MANY_AT_SITE = 200, 50
"""Minimum numbers of patients, in all and at each site, for which a BCa bootstrap replaces the exchange test."""

MIN_SEEDS = 3
"""Minimum number of runs for a claim about a method: two runs give one difference to estimate a spread from."""

MIN_DATA_SETS = 6
"""Minimum number of data sets for a claim over data sets: with fewer, no signed-rank test can reach 5 %."""

MIN_SITES = 5
"""Minimum number of sites for a mixed model with random intercepts of the sites."""


class Question(Enum):
    """Question that a comparison of two methods answers."""

    MODELS = "Are these two models different on other patients?"
    SEEDS = "Are the methods different with other seeds and other patients, given one split?"
    SPLITS = "Are the methods different with other splits of the patients?"
    DATA_SETS = "Are the methods different on other data sets?"
    SITES = "Is the difference the same at all sites?"


@dataclass(frozen=True)
class Procedure:
    """One row of the table of procedures.

    Attributes:
        question: Question that the procedure answers.
        units: Units and the numbers of them for which the procedure is used.
        test: Test that decides a claim.
        interval: Interval that describes the difference.
    """

    question: Question
    units: str
    test: str
    interval: str


TOO_FEW = Procedure(Question.MODELS, f"fewer than {MIN_PATIENTS} patients", "none: no claim", "none")
EXACT_EXCHANGE = Procedure(
    Question.MODELS,
    f"{MIN_PATIENTS} to {EXHAUSTIVE} patients",
    "exchange test with all exchanges of the two models' predictions, exact",
    "BCa bootstrap over patients",
)
RANDOM_EXCHANGE = Procedure(
    Question.MODELS,
    f"more than {EXHAUSTIVE} patients",
    "exchange test with random exchanges",
    "BCa bootstrap over patients",
)
PATIENT_BOOTSTRAP = Procedure(
    Question.MODELS,
    f"at least {MANY_PATIENTS} patients, and {MANY_AT_SITE} at each site",
    "BCa bootstrap over patients, and Student's t with the jackknife's variance",
    "BCa bootstrap over patients",
)
TOO_FEW_SEEDS = Procedure(Question.SEEDS, f"fewer than {MIN_SEEDS} seeds", "none: no claim", "as below, from 2 seeds")
SEEDS_AND_PATIENTS = Procedure(
    Question.SEEDS,
    f"at least {MIN_SEEDS} seeds with the same test patients",
    "crossed variance of seeds and patients, and the test of the models",
    "quantiles of Student's t for both parts of the variance (Banerjee)",
)
SEEDS_ALONE = Procedure(
    Question.SEEDS,
    f"at least {MIN_SEEDS} seeds, no predictions kept",
    "Student's t over the seeds; claims are marked '(seeds only)'",
    "Student's t over the seeds",
)
CORRECTED_T = Procedure(
    Question.SPLITS,
    f"at least {MIN_SEEDS} splits: folds, or a split for each seed",
    "corrected resampled t test (Nadeau and Bengio), and the tests of the models, combined",
    "the same variance, Student's t",
)
RANKS = Procedure(
    Question.DATA_SETS,
    f"at least {MIN_DATA_SETS} data sets",
    "Friedman's test, then Nemenyi's critical difference; Bayesian signed-rank test with a region of practical "
    "equivalence",
    "posterior probabilities",
)
MIXED_MODEL = Procedure(
    Question.SITES,
    f"at least {MIN_SITES} sites",
    "linear mixed model: score ~ method + (1 | site)",
    "Wald interval of the method's effect",
)

PROCEDURES: tuple[Procedure, ...] = (
    TOO_FEW,
    EXACT_EXCHANGE,
    RANDOM_EXCHANGE,
    PATIENT_BOOTSTRAP,
    TOO_FEW_SEEDS,
    SEEDS_AND_PATIENTS,
    SEEDS_ALONE,
    CORRECTED_T,
    RANKS,
    MIXED_MODEL,
)
"""All procedures, in the order of the page."""


def choose_for_models(patients: Sequence[int]) -> Procedure:
    """Return the procedure that compares two models.

    Args:
        patients: Number of patients of each site, at least one site.
    """
    total = sum(patients)
    if total < MIN_PATIENTS:
        return TOO_FEW
    if total <= EXHAUSTIVE:
        return EXACT_EXCHANGE
    is_many = total >= MANY_PATIENTS and min(patients) >= MANY_AT_SITE
    return PATIENT_BOOTSTRAP if is_many else RANDOM_EXCHANGE


def choose_over_runs(runs: int, has_own_splits: bool, has_patients: bool) -> Procedure:
    """Return the procedure that compares two methods over several runs.

    Args:
        runs: Number of pairs of runs.
        has_own_splits: True if the runs have different splits of the patients, such as folds.
        has_patients: True if the variance from the choice of patients is known.
    """
    if has_own_splits:
        return CORRECTED_T if runs >= MIN_SEEDS else TOO_FEW_SEEDS
    if runs < MIN_SEEDS:
        return TOO_FEW_SEEDS
    return SEEDS_AND_PATIENTS if has_patients else SEEDS_ALONE


def can_decide(patients: int) -> bool:
    """Return whether a test over that many patients can reach the significance level `LEVEL`.

    With n patients, at best 2 of the 2^n exchanges have the largest difference, so that p >= 2^(1 - n).
    """
    return 2.0 ** (1 - patients) <= LEVEL


def procedures_markdown() -> str:
    """Return the table of procedures in Markdown."""
    lines = [["question", "units", "test", "interval"]]
    lines += [[row.question.value, row.units, row.test, row.interval] for row in PROCEDURES]
    return table_lines(lines)
