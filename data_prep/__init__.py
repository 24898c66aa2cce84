"""Prepared releases of medical images, with a folder for each.

A folder's ``RECORDS`` lists its data set. If it has sections of the report, ``SECTIONS`` lists them.
"""

import importlib
import pkgutil
from types import ModuleType

from medfl.hooks import DatasetRecord, SectionRecord, hookimpl


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """Return the data sets of all folders; nothing else of the folders is imported."""
    return [record for folder in _folders() for record in folder.RECORDS]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the report sections of the folders that have any."""
    return [record for folder in _folders() for record in getattr(folder, "SECTIONS", ())]


def _folders() -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
