"""A participant's own copy of a bundle, opened with the values of an offered run.

An offer is the server's proposal of a run, with bundle, method, settings and sites. An adopted bundle is a stock MONAI
bundle for which ``medfl adopt`` wrote a federation file. An id is the path of an entry in a bundle's configuration.

The configuration is read from the participant's disk after its hash was compared. It may contain ``$`` expressions, as
in any bundle. Values from other machines are JSON for listed ids (`medfl_flare.overrides`) and are never evaluated.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from medfl.bundle.adopted import ADOPTED
from medfl.bundle.bundle_folders import bundle_hash
from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.federation import read_federation
from medfl.bundle.option_checks import check_ids
from medfl.contract import Method
from medfl.data.readers.quiet import drop_missing_codec
from medfl.data.sites import SiteData
from medfl.data.source import ArraySource, DataSource
from medfl.engine.backend import MethodFactory
from medfl.engine.checks import check_names
from medfl.engine.plan import MethodChoice, RunPlan
from medfl.engine.runs.network_assignment import NetworkAssignment, read_assignment
from medfl.engine.runs.provenance import bundle_values, run_files
from medfl.engine.runs.start_source import find_start
from medfl.errors import MedflError, RefusedError, SettingsError, did_you_mean
from medfl.networks.memory_limit import MemoryLimit, TooLargeError
from medfl.networks.transfer.start import Start
from medfl.objectives import Objective
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import JoinedSite
from medfl.settings import Execution, Settings, read_settings
from medfl.task import ImageScale, Task
from medfl.training.devices import pick_device
from medfl.types import Meta
from medfl_flare.offer import LocalVersions, bundle_version, find_differences, local_versions
from medfl_flare.overrides import DATA_DEPENDENT_IDS, check_overrides
from medfl_flare.records.offer import Offer
from medfl_flare.sites.policy import check_run, network_too_large_error, with_own_ledger
from medfl_flare.sites.site_file import SiteBundle, SiteFile

logger = logging.getLogger(__name__)


def offered_ids(bundle: Meta) -> tuple[str, ...]:
    """Return the ids for which an offer of this bundle must contain values, because they depend on a site's data.

    An adopted bundle has no such ids.

    Args:
        bundle: Values of the bundle's files (`medfl.engine.runs.provenance.bundle_values`).
    """
    return () if ADOPTED in bundle else tuple(name for name in DATA_DEPENDENT_IDS if name in bundle)


@dataclasses.dataclass(frozen=True)
class OfferedRun:
    """An opened run: an offer, with everything that one participant (the server or a site) built for it.

    Attributes:
        offer: Offer of the run.
        folder: Folder of the participant's copy of the bundle.
        registry: The participant's plugins.
        built: Object at the bundle's id ``federation``, built with the offer's values: the method's name and arguments,
            the data source, the settings, and the scale of the images.
        task: Task on this participant's device.
        settings: Settings of the run, with this participant's own privacy ledger (its record of the privacy budget
            spent over all runs).
        execution: Settings of the computation on this machine.
        joined: Maps each site that joined after the run began to its first round and network (`medfl_flare.joining`).
    """

    offer: Offer
    folder: Path
    registry: Registry
    built: FederatedRun
    task: Task
    settings: Settings
    execution: Execution
    joined: dict[str, JoinedSite] = dataclasses.field(default_factory=dict)

    @property
    def assignment(self) -> NetworkAssignment | None:
        """Network assignment: the run's rule that chooses a network for each site, or None without a rule.

        Raises:
            SettingsError: If the rule's options are invalid, or not possible between machines.
        """
        assignment = read_assignment(self.built.network_assignment, self.registry)
        if assignment is not None:
            assignment.check_between_machines()
        return assignment

    @property
    def make_method(self) -> MethodFactory:
        """Function that makes a new instance of the method."""
        return lambda: self.registry.make_method(self.built.method, self.built.method_args)

    def plan(self, data_digest: str = "") -> RunPlan:
        """Return the run plan: method, task, settings and sites, for the server's loop or for the steps of a site.

        Args:
            data_digest: Digest of this participant's data, which must be unchanged when the run continues.
        """
        return RunPlan(
            method=MethodChoice(name=self.offer.method, make=self.make_method, args=self.built.method_args),
            task=self.task,
            settings=self.settings,
            sites=self.offer.sites,
            data_digest=data_digest,
            joined=self.joined,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image as the run's networks take it: channels, then the edges."""
        assert self.task.scale is not None
        return tuple(self.task.scale.shape)

    def with_networks(self, networks: dict[str, str], joined: dict[str, JoinedSite] | None = None) -> OfferedRun:
        """Return a copy with further networks of single sites, and with the sites that joined later.

        Args:
            networks: Maps each site whose network differs from the task's default to its network.
            joined: Maps each site that joined after the run began to its first round and network; None keeps the
                present value of `joined`.
        """
        settings = self.settings.model_copy(update={"networks_by_site": self.settings.networks_by_site | networks})
        return dataclasses.replace(self, settings=settings, joined=joined or self.joined)


def open_offer(offer: Offer, site_file: SiteFile) -> OfferedRun:
    """Return an offer as an opened run, if this participant accepts it.

    Compares the offer with this participant's versions, checks that the participant's own file allows the run, and
    builds the run from the participant's copy of the bundle.

    If neither the bundle nor the offer contains `min_replies`, all sites with a request must reply in every step.

    Raises:
        RefusedError: If this participant has another bundle, method or version, or does not allow the run.
        SettingsError: If the run's settings are invalid for the bundle.
        PluginError: If the method, the privacy mechanism or the robust rule is not installed.
    """
    entry, registry = site_file.bundle(offer.bundle), load_plugins()
    for problem in registry.problems:
        logger.warning("%s", problem)
    folder = entry.folder
    here: LocalVersions = local_versions(folder, registry, offer.overrides, offer.bundle)
    if unlike := find_differences(offer, here):
        raise RefusedError(
            "different_setup",
            f"'{site_file.site}' refuses the run '{offer.run}': {'. '.join(unlike.values())}.",
            site=site_file.site,
            run=offer.run,
            differences=list(unlike),
        )
    check_overrides(offer.overrides, bundle_values(folder))
    built = build_run(folder, offer.overrides, site_file, entry.data)
    settings = read_settings(Settings, {"min_replies": max(len(offer.sites), 1)} | built.settings, "the run")
    settings = settings.for_sites(len(offer.sites))
    check_names(settings, registry)
    method: Method = registry.make_method(built.method, built.method_args)
    check_run(site_file, offer, settings, built.method, method)
    scale = ImageScale(
        case_shape(built.site_values), built.mean, built.std, int(built.site_values.get("image_features", 0))
    )
    task = dataclasses.replace(built.task, device=pick_device(site_file.device), scale=scale)
    start = _find_start(offer, settings, registry, folder, site_file)
    task = (task if start is None else task.with_start(start)).with_training_of(settings.train_part, settings.lora)
    return OfferedRun(offer, folder, registry, built, task, with_own_ledger(site_file, settings), site_file.execution)


def _find_start(
    offer: Offer, settings: Settings, registry: Registry, bundle: Path, site_file: SiteFile
) -> Start | None:
    """Return the weights from which the run starts, from this participant's own files.

    A source in the offer can't be a path. The participant's own bundle, which it has reviewed, may name one. The
    message of the error contains no path, as it may be sent to the server.

    Raises:
        RefusedError: If this participant does not have these weights.
    """
    is_offered = "start" in offer.overrides
    folders = None if not is_offered else [] if site_file.weights is None else [site_file.weights]
    try:
        return find_start(settings.start, registry, settings.start_skip, bundle=bundle, folders=folders)
    except MedflError as error:
        logger.error("The run '%s' can't start from '%s': %s", offer.run, settings.start, error)
        source = f"'{settings.start}'" if is_offered else "that its own bundle names"
        raise RefusedError(
            "start_not_available",
            f"'{site_file.site}' can't start from the weights {source} ({error.code}): expected known "
            "weights of an installed package, 'bundle', or the SHA-256 of a file in the folder 'weights' of its own "
            "file. Its log says more.",
            site=site_file.site,
            source=source,
            cause=error.code,
        ) from None


def build_run(folder: Path, overrides: Meta, site_file: SiteFile, data: Path | None) -> FederatedRun:
    """Build the run from the participant's own bundle.

    The offer supplies the values that depend on data, so no site's data decide them.

    Args:
        folder: Folder of the participant's copy of the bundle.
        overrides: Maps ids to the values of the offer, which `medfl_flare.overrides.check_overrides` has checked.
        site_file: The participant's own file.
        data: Folder of the participant's data; None at a server without data.

    Raises:
        RefusedError: If a value that depends on data is missing, or the network is larger than allowed.
        SettingsError: If the bundle can't be built with these values.
    """
    bundle = bundle_values(folder)
    needed = offered_ids(bundle)
    lacking = sorted(set(needed) - set(overrides))
    if lacking:
        raise RefusedError(
            "incomplete_offer",
            f"Expected the offer to contain {', '.join(needed)}; it lacks {', '.join(lacking)}.",
            missing=lacking,
        )
    own: Meta = {"bundle_root": str(folder), "dataset_dir": str(data or folder / "no-data"), "device": site_file.device}
    if data is None and "regions" in bundle:
        own["regions"] = None  # the file lies beside the data; only sites compute with regions
    try:
        with MemoryLimit(site_file.max_network_mb * 10**6):  # the optimizer needs the network's parameters
            return read_federation(folder, overrides | own)
    except TooLargeError:
        raise network_too_large_error(site_file, overrides.get("network_name", "")) from None
    except RuntimeError as error:  # MONAI raises it if a component can't be built
        if TooLargeError.behind(error):
            raise network_too_large_error(site_file, overrides.get("network_name", "")) from None
        raise SettingsError(
            "bundle_not_buildable", f"The bundle can't be built with the run's values: {error}", path=folder
        ) from error


def case_shape(values: Meta) -> tuple[int, ...]:
    """Return the shape of a case from the values that all sites' bundles get; empty if it is unknown.

    It is channels and edges of an image, or the number of features of a table row. Features that belong to an image are
    channels, too.

    Args:
        values: Maps ids of the bundle to values (`medfl.bundle.federated_run.FederatedRun.site_values`).
    """
    if "size" not in values:
        return (int(values["in_features"]),) if "in_features" in values else ()
    size: Any = values["size"]
    edges = [size] * int(values["spatial_dims"]) if isinstance(size, int) else size
    return (int(values["in_channels"]) + int(values.get("image_features", 0)), *map(int, edges))


# ---- checks before anything connects


def check_configuration(bundle: SiteBundle) -> str:
    """Check that the configurations of a bundle can be read, and return a sentence with their version and hash.

    Nothing in them is evaluated.
    """
    from monai.bundle.properties import TrainProperties

    properties: Any = TrainProperties
    check_ids(_parser(bundle, bundle.folder / "no-data"), properties, f"of '{bundle.folder}'")
    return f"version {bundle_version(bundle.folder)}, hash {bundle_hash(bundle.folder)}, in '{bundle.folder}'"


def _parser(bundle: SiteBundle, dataset_dir: Path) -> Any:
    """Return a parser with the bundle's configurations."""
    from monai.bundle import ConfigParser

    drop_missing_codec()
    parser = ConfigParser()
    parser.read_config([str(path) for path in run_files(bundle.folder)])
    parser.update(pairs={"bundle_root": str(bundle.folder), "dataset_dir": str(dataset_dir), "device": "cpu"})
    return parser


def data_dependent_values(bundle: SiteBundle, dataset_dir: Path) -> Meta:
    """Return the values that the bundle computes from the data in a folder, by id (`DATA_DEPENDENT_IDS`)."""
    parser = _parser(bundle, dataset_dir)
    return {
        name: parser.get_parsed_content(name) for name in offered_ids(bundle_values(bundle.folder)) if name in parser
    }


def read_source(bundle: SiteBundle, dataset_dir: Path) -> tuple[DataSource, Objective]:
    """Return the bundle's reader for the data of the sites, and its learning objective."""
    parser = _parser(bundle, dataset_dir)
    objective: Objective = parser.get_parsed_content("objective")
    return parser.get_parsed_content("source") if "source" in parser else ArraySource(objective), objective


def required_options(bundle: SiteBundle, facts: Meta) -> str:
    """Return a clause that lists the options that a run on a site's data must set; empty if none is needed.

    An option is needed if the bundle's default value does not fit the data.

    Args:
        bundle: The bundle at this participant.
        facts: Values for the data, from `data_dependent_values`.
    """
    own = data_dependent_values(bundle, bundle.folder / "no-data")
    words = [f"{name} {value}" for name, value in facts.items() if name != "size" and value != own[name]]
    words += [f"size {facts['size']}"] if "size" in facts and _edges(facts) != _edges(own) else []
    return f"; a run on these data needs the options {', '.join(words)}" if words else ""


def _edges(facts: Meta) -> list[int]:
    """Return the spatial edges of an image."""
    size, dimensions = facts["size"], int(facts["spatial_dims"])
    return [size] * dimensions if isinstance(size, int) else [int(edge) for edge in size]


def check_network(bundle: SiteBundle, data: SiteData | None, dataset_dir: Path) -> str:
    """Build the run's network, pass one image of zeros through it, and return the network's description.

    An adopted bundle's network is only built, as its own transforms decide the input shape.

    Raises:
        SettingsError: If the network is unknown, or if its output has another shape or is not finite.
    """
    parser = _parser(bundle, dataset_dir)
    if ADOPTED in parser:  # the bundle's own transforms decide the input shape of its network
        task = parser.get_parsed_content("task")
        return f"'{task.network}' has {sum(parameter.numel() for parameter in task.build().parameters()):,} parameters"
    networks, name = parser.get_parsed_content("networks"), bundle.network or parser.get_parsed_content("network_name")
    if data is not None:  # without data a task may lack an input that it reads from them, such as an atlas
        networks = parser.get_parsed_content("task").networks
    if name not in networks:
        raise SettingsError(
            "unknown_network",
            f"unknown network '{name}'. {did_you_mean(str(name), networks)}",
            name=str(name),
            known=sorted(networks),
        )
    facts = data_dependent_values(bundle, dataset_dir)
    shape = data.shape if data is not None else (int(facts["in_channels"]), *_edges(facts))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = networks[name]().eval()
        outputs = model(torch.zeros(1, *shape))
    expected = (1, *parser.get_parsed_content("objective").output_shape(shape))
    if tuple(outputs.shape) != expected or not bool(torch.isfinite(outputs).all()):
        raise SettingsError(
            "wrong_network_output",
            f"expected finite outputs of shape {expected} of the network '{name}', got {tuple(outputs.shape)}; correct "
            "the bundle",
            network=name,
            expected=expected,
            found=tuple(outputs.shape),
        )
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"'{name}' has {count:,} parameters and maps an image to {expected[1]} finite outputs"
