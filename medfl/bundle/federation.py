"""Read the federation that a bundle describes from its files, without running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.option_checks import apply_options, check_options
from medfl.data.readers.quiet import drop_missing_codec
from medfl.engine.runs.provenance import run_files
from medfl.errors import SettingsError, own_error
from medfl.networks.bundle_parser import make_parser
from medfl.types import Meta

T = TypeVar("T")
"""Type of the object that MONAI builds."""


def unwrap_errors(build: Callable[[], T]) -> T:
    """Return the result of a call. If MONAI wraps medfl's error in a RuntimeError, raise medfl's error instead.

    Args:
        build: Call that lets MONAI build components.

    Raises:
        MedflError: If a component raised it.
    """
    try:
        return build()
    except RuntimeError as error:
        own = own_error(error)
        if own is None:
            raise
        raise own from None


def read_federation(root: Path, values: Meta) -> FederatedRun:
    """Build and return the federation that a bundle describes, with other values for some of its ids.

    Args:
        root: Folder of the bundle. Its ``$`` expressions are evaluated, so the bundle must be trusted.
        values: Maps ids or settings to values; ``optimizer#lr`` names a part of an id.

    Raises:
        SettingsError: If medfl can't run the bundle, or the bundle has no such id or setting.
    """
    files = run_files(root)
    drop_missing_codec()
    parser = make_parser()
    parser.read_config([str(file) for file in files])
    check_options(parser, values)
    apply_options(parser, values)
    run = unwrap_errors(lambda: parser.get_parsed_content("federation"))
    if not isinstance(run, FederatedRun):
        raise SettingsError(
            "wrong_type",
            f"Expected the id 'federation' of '{files[1]}' to be a medfl.bundle.federated_run.FederatedRun, got "
            f"{type(run).__name__}.",
            path=files[1],
            id="federation",
            found=type(run).__name__,
        )
    return run
