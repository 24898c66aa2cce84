"""Describe the sites of a folder on this machine, as they would be described across machines."""

from __future__ import annotations

import secrets
from pathlib import Path

from medfl.data.sites import site_names
from medfl.settings import Privacy
from medfl_flare.statistics.description import Description
from medfl_flare.statistics.measures import measure_site
from medfl_flare.statistics.telling import Noise, Policy, describe


def describe_folder(dataset_dir: Path, policy: Policy, privacy: Privacy | None = None) -> dict[str, Description]:
    """What each site of a partitioned data set would tell.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        policy: Of all sites.
        privacy: Of unit ``sample``, to see what noise does; it is fresh each time, and no account is kept here. None
            for exact numbers.

    Raises:
        DataError: If there is no site, or a list or an array is missing or wrong.
    """
    noise = None if privacy is None else Noise(privacy, secrets.token_bytes(32), "here")
    return {site: describe(measure_site(dataset_dir / site), policy, noise) for site in site_names(dataset_dir)}
