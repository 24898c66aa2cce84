"""Objectives: the kinds of learning tasks, such as classification or segmentation, one file for each kind.

Only these files contain code that depends on the kind of a task.
"""

from medfl.objectives.binary import Binary
from medfl.objectives.lookup import check_metrics, objective_class, read_objective
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.multilabel import Multilabel
from medfl.objectives.objective import Objective
from medfl.objectives.regression import Regression
from medfl.objectives.segmentation import Segmentation
from medfl.objectives.survival import Survival

__all__ = [
    "Binary",
    "Multiclass",
    "Multilabel",
    "Objective",
    "Regression",
    "Segmentation",
    "Survival",
    "check_metrics",
    "objective_class",
    "read_objective",
]
