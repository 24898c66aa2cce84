"""Statistics of the sites in a folder on this machine, as the sites of a federation would disclose them."""

from __future__ import annotations

import secrets
from pathlib import Path

from medfl.data.sites import site_names
from medfl.settings import Privacy
from medfl_flare.statistics.disclosure import DisclosurePolicy, NoiseOptions, disclose_statistics
from medfl_flare.statistics.measurements import measure_site
from medfl_flare.statistics.site_statistics import SiteStatistics


def compute_folder_statistics(
    dataset_dir: Path, policy: DisclosurePolicy, privacy: Privacy | None = None
) -> dict[str, SiteStatistics]:
    """Return the statistics that each site of a partitioned data set would disclose.

    Args:
        dataset_dir: Folder with one folder for each site.
        policy: Disclosure policy of all sites.
        privacy: Privacy setting of unit ``sample``, to show the effect of noise. Each call draws new noise, and no
            ledger is kept. None discloses exact numbers.

    Raises:
        DataError: If there is no site, or if a list or an array is missing or invalid.
    """
    noise = None if privacy is None else NoiseOptions(privacy, secrets.token_bytes(32), "here")
    return {
        site: disclose_statistics(measure_site(dataset_dir / site), policy, noise) for site in site_names(dataset_dir)
    }
