"""Built-in data sets: one folder for each published release, registered as a medfl plugin.

`RECORDS` of a folder lists its data sets. `SECTIONS`, if a folder defines it, lists its sections of the report.
"""

import importlib
import pkgutil
from types import ModuleType

from medfl.hooks import DatasetRecord, SectionRecord, hookimpl


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """Return the data set records of all folders, without importing any other module of the folders."""
    return [record for folder in _folders() for record in folder.RECORDS]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the report sections of all folders that define `SECTIONS`."""
    return [record for folder in _folders() for record in getattr(folder, "SECTIONS", ())]


def _folders() -> list[ModuleType]:
    """Import and return the packages of all data set folders, sorted by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
