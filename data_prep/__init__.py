"""Prepared releases of medical images: a folder for each, whose ``RECORDS`` say what it brings."""

import importlib
import pkgutil

from medfl.hooks import DatasetRecord, hookimpl


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """The records of all folders; nothing else of them is imported."""
    folders = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return [record for name in folders for record in importlib.import_module(f"{__name__}.{name}").RECORDS]
