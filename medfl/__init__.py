"""medfl: federated learning on medical images.

The names below are the Python API (`medfl.api`). Each is imported at its first use, so that ``import medfl`` takes a
few milliseconds. Authors of methods start with `medfl.contract`.
"""

from typing import TYPE_CHECKING, Any

from medfl.version import __version__ as __version__

if TYPE_CHECKING:
    from medfl.api import PreparedData as PreparedData
    from medfl.api import Run as Run
    from medfl.api import compare as compare
    from medfl.api import evaluate as evaluate
    from medfl.api import load_run as load_run
    from medfl.api import partition as partition
    from medfl.api import prepare as prepare
    from medfl.api import run as run
    from medfl.errors import MedflError as MedflError
    from medfl.objectives import Binary as Binary
    from medfl.objectives import Multiclass as Multiclass
    from medfl.objectives import Multilabel as Multilabel
    from medfl.objectives import Regression as Regression
    from medfl.objectives import Segmentation as Segmentation
    from medfl.objectives import Survival as Survival
    from medfl.task import Task as Task

_MODULES = {
    "medfl.api": ("PreparedData", "Run", "compare", "evaluate", "load_run", "partition", "prepare", "run"),
    "medfl.errors": ("MedflError",),
    "medfl.objectives": ("Binary", "Multiclass", "Multilabel", "Regression", "Segmentation", "Survival"),
    "medfl.task": ("Task",),
}
"""Mapping from each module to the names that this package exports from it."""

__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Import a name of the Python API at its first use."""
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'medfl' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the names of the package, including those not imported yet."""
    return [*globals(), *__all__]
