"""The federation that a bundle describes, read from its files without running it."""

from __future__ import annotations

from pathlib import Path

from monai.bundle import ConfigParser

from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.option_checks import apply_options, check_options
from medfl.errors import SettingsError
from medfl.runs.provenance import run_files
from medfl.types import Meta


def read_federation(root: Path, values: Meta) -> FederatedRun:
    """The federation that a bundle describes, with other values for some of its ids.

    Args:
        root: The bundle. Its ``$`` expressions are evaluated, so it must be one that you trust.
        values: Id or setting to value; ``optimizer#lr`` names a part.

    Raises:
        SettingsError: If it is no bundle that medfl can run, or an id means nothing to it.
    """
    files = run_files(root)
    parser = ConfigParser()
    parser.read_config([str(file) for file in files])
    check_options(parser, values)
    apply_options(parser, values)
    run = parser.get_parsed_content("federation")
    if not isinstance(run, FederatedRun):
        raise SettingsError(
            f"expected the id 'federation' of '{files[1]}' to be a medfl.bundle.federated_run.FederatedRun, got "
            f"{type(run).__name__}."
        )
    return run
