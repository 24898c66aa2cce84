"""The federation that a bundle describes, read from its files without running it."""

from __future__ import annotations

from pathlib import Path

from monai.bundle import ConfigParser

from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.option_checks import check_options
from medfl.errors import SettingsError
from medfl.runs.setting_ids import to_ids
from medfl.types import Meta


def read_federation(root: Path, values: Meta) -> FederatedRun:
    """The federation that a bundle describes, with other values for some of its ids.

    Args:
        root: The bundle. Its ``$`` expressions are evaluated, so it must be one that you trust.
        values: Id or setting to value; ``optimizer#lr`` names a part.

    Raises:
        SettingsError: If it is no bundle that medfl can run, or an id means nothing to it.
    """
    files = [root / "configs" / name for name in ("train.json", "federate.json")]
    for file in files:
        if not file.is_file():
            raise SettingsError(f"'{root}' is no bundle of medfl: expected the file '{file}'.")
    parser = ConfigParser()
    parser.read_config([str(file) for file in files])
    check_options(parser, values)
    parser.update(pairs=to_ids(values, parser.get()))
    run = parser.get_parsed_content("federation")
    if not isinstance(run, FederatedRun):
        raise SettingsError(
            f"expected the id 'federation' of '{files[1]}' to be a medfl.bundle.federated_run.FederatedRun, got "
            f"{type(run).__name__}."
        )
    return run
