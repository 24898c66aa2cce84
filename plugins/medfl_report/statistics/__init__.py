"""Confidence intervals and significance tests: over patients, over repeated runs, and over data sets.

`procedures` decides which test answers a question. The unit is the patient: images of one patient are resampled and
exchanged together. If patients are not known, each image counts as one patient.
"""

from medfl_report.statistics.exchange import (
    ExchangeDistribution,
    combine_p,
    exchange_models,
    mean_exchange,
    standardise,
)
from medfl_report.statistics.families import holm
from medfl_report.statistics.intervals import LEVEL, ROUNDING, Interval, wilson, wilson_over_patients
from medfl_report.statistics.procedures import can_decide, choose_for_models, choose_over_runs
from medfl_report.statistics.repetitions import (
    HEADER,
    PairedTests,
    RunsTest,
    explain,
    fold_ratio,
    mean_std,
    paired_t,
    paired_tests,
    runs_test,
    seeds_and_patients_test,
    signed_rank,
)
from medfl_report.statistics.resampling import (
    PatientBootstrap,
    bootstrap,
    mean_bootstrap,
    paired_bootstrap,
    resample_differences,
    resample_patients,
)
from medfl_report.statistics.weighted_scores import ScoreFunction

__all__ = [
    "HEADER",
    "LEVEL",
    "ROUNDING",
    "ExchangeDistribution",
    "Interval",
    "PairedTests",
    "PatientBootstrap",
    "RunsTest",
    "ScoreFunction",
    "bootstrap",
    "can_decide",
    "choose_for_models",
    "choose_over_runs",
    "combine_p",
    "exchange_models",
    "explain",
    "fold_ratio",
    "holm",
    "mean_bootstrap",
    "mean_exchange",
    "mean_std",
    "paired_bootstrap",
    "paired_t",
    "paired_tests",
    "resample_differences",
    "resample_patients",
    "runs_test",
    "seeds_and_patients_test",
    "signed_rank",
    "standardise",
    "wilson",
    "wilson_over_patients",
]
