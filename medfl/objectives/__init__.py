"""What is learned: a file for each kind of task, and nothing else in medfl asks which kind it is."""

from medfl.objectives.binary import Binary
from medfl.objectives.known import OBJECTIVES, check_metrics, read_objective
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.multilabel import Multilabel
from medfl.objectives.objective import Objective
from medfl.objectives.regression import Regression
from medfl.objectives.segmentation import Segmentation
from medfl.objectives.survival import Survival

__all__ = [
    "OBJECTIVES",
    "Binary",
    "Multiclass",
    "Multilabel",
    "Objective",
    "Regression",
    "Segmentation",
    "Survival",
    "check_metrics",
    "read_objective",
]
