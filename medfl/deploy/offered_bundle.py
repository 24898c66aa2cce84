"""A participant's own copy of a bundle, opened with the values of an offered run.

The configuration is read from this participant's disk after its hash was compared, and may hold ``$`` expressions, as
any bundle does. What comes from elsewhere is JSON for listed ids (`medfl.deploy.overrides`), which is never evaluated.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.federation import read_federation
from medfl.contract import Method
from medfl.core.carrier import MethodFactory
from medfl.deploy.offer import Here, Offer, describe_bundle, differences
from medfl.deploy.overrides import FACTS, check_overrides
from medfl.deploy.policy import check_run, tightened
from medfl.deploy.site_file import SiteFile
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import Registry, load_plugins
from medfl.runs.provenance import bundle_values
from medfl.settings import Execution, Settings, read_settings
from medfl.task import Scale, Task
from medfl.training.loop import pick_device
from medfl.types import Meta

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class OfferedRun:
    """An offered run at one participant.

    Attributes:
        offer: The run.
        folder: The participant's copy of the bundle.
        registry: Its plugins.
        built: The run as the bundle describes it.
        task: The learning problem on this participant's device.
        settings: Of the run, with this participant's own account of privacy.
        execution: How this participant computes.
    """

    offer: Offer
    folder: Path
    registry: Registry
    built: FederatedRun
    task: Task
    settings: Settings
    execution: Execution

    @property
    def make_method(self) -> MethodFactory:
        """Makes the method anew."""
        return lambda: self.registry.make_method(self.built.method, self.built.method_args)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image as the run's networks take it: channels, then the edges."""
        assert self.task.scale is not None
        return tuple(self.task.scale.shape)

    def with_networks(self, networks: dict[str, str]) -> OfferedRun:
        """The same run, knowing the network of each site that has not the task's own."""
        settings = self.settings.model_copy(update={"networks_by_site": self.settings.networks_by_site | networks})
        return dataclasses.replace(self, settings=settings)


def open_offer(offer: Offer, site_file: SiteFile) -> OfferedRun:
    """Compare an offer with what this participant has, check that it is allowed, and open the bundle.

    Raises:
        RefusedError: If this participant has something else, or does not allow the run.
        SettingsError: If the run's settings are not valid for the bundle.
        PluginError: If the method is not installed here.
    """
    entry, registry = site_file.bundle(offer.bundle), load_plugins()
    for problem in registry.problems:
        logger.warning("%s", problem)
    folder = entry.folder
    here: Here = describe_bundle(folder, registry, offer.overrides, offer.bundle)
    if unlike := differences(offer, here):
        raise RefusedError(f"'{site_file.site}' refuses the run '{offer.run}': {'. '.join(unlike)}.")
    check_overrides(offer.overrides, bundle_values(folder))
    built = _build(folder, offer.overrides, site_file, entry.data)
    execution = read_settings(Execution, {"threads": site_file.threads, "device": site_file.device}, "the site's file")
    settings = read_settings(Settings, built.settings, "the run")
    method: Method = registry.make_method(built.method, built.method_args)
    check_run(site_file, offer, settings, built.method, method)
    scale = Scale(_shape(built.site_values), built.mean, built.std)
    task = dataclasses.replace(built.task, device=pick_device(execution.device), scale=scale)
    return OfferedRun(offer, folder, registry, built, task, tightened(site_file, settings), execution)


def _build(folder: Path, overrides: Meta, site_file: SiteFile, data: Path | None) -> FederatedRun:
    """The run as this participant's own bundle describes it. `FACTS` are the offer's: nobody's data decide them."""
    needed = [name for name in FACTS if name in bundle_values(folder)]
    lacking = sorted(set(needed) - set(overrides))
    if lacking:
        raise RefusedError(f"Expected the offer to say {', '.join(needed)}; it lacks {', '.join(lacking)}.")
    own: Meta = {"bundle_root": str(folder), "dataset_dir": str(data or folder / "no-data"), "device": site_file.device}
    if data is None and "regions" in bundle_values(folder):
        own["regions"] = None  # they lie beside the data; only sites reckon with them
    try:
        return read_federation(folder, overrides | own)
    except RuntimeError as error:  # MONAI's, when a part can't be built
        raise SettingsError(f"The bundle can't be built with the run's values: {error}") from error


def _shape(values: Meta) -> tuple[int, ...]:
    """Channels and edges of an image, from the values that the bundles of all sites get."""
    size: Any = values["size"]
    edges = [size] * int(values["spatial_dims"]) if isinstance(size, int) else size
    return (int(values["in_channels"]), *map(int, edges))
