"""What is learned: a file for each kind of task, and nothing else in medfl asks which kind it is."""

from medfl.objectives.known import OBJECTIVES, read_objective
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.objective import Objective

__all__ = ["OBJECTIVES", "Multiclass", "Objective", "read_objective"]
