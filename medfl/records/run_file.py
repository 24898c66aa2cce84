"""Schema of ``run.json``: the identity of the run in a folder, and the origin of its settings, data and code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from medfl.records.partition import TestFold
from medfl.records.record import FileRecord, Record
from medfl.records.summary import BestRound
from medfl.settings import Execution, Settings, read_settings
from medfl.utils.text import SHOWN_DIGITS

IDENTITY_NAMES = {"networks_by_site": "networks"}
"""Maps the name of a setting to its name in `RunIdentity`, for settings whose names differ.

The name in `RunIdentity` enters the keys of noise streams.
"""


class TaskIdentity(Record):
    """Part of the learning problem that identifies a run.

    Attributes:
        networks: Maps the name of each network to a hash of its tensors' names and shapes.
        loss: Class, attributes and tensors of the loss function.
        optimizer: Class and options of the optimiser.
        metrics: Names of the metrics.
        num_classes: Number of classes; None if there is an `objective`.
        objective: Identifying fields of the objective; None for a multiclass classification.
        frozen: Maps the name of each network with frozen parameters to their digest.
        network_facts: Maps the name of each network to the descriptions of its modules, such as the size to which it
            resizes images; None if no module describes itself.
        augmentation: Description of the training augmentation.
        views: Description of the augmented views of an image, for methods with a contrastive loss.
        start: SHA-256 of the file of weights from which the default network starts; None if they are random.
        start_skip: Names of the tensors of this file that are left out, sorted; None without any.
        schedule: Description of the learning rate schedule.
        regions: Hash of the region labels (atlas) that divide an image into regions; None without regions.
    """

    networks: dict[str, str]
    loss: dict[str, Any]
    optimizer: str
    metrics: tuple[str, ...]
    num_classes: int | None = None
    objective: dict[str, Any] | None = None
    frozen: dict[str, str] | None = None
    network_facts: dict[str, Any] | None = None
    augmentation: Any = None
    views: Any = None
    start: str | None = None
    start_skip: tuple[str, ...] | None = None
    schedule: Any = None
    regions: str | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class RunIdentity(Record):
    """Identity of a run: runs with equal identities are the same run.

    The number of rounds is not part of the identity.

    Attributes:
        method: Name of the method.
        method_args: Settings of the method that the user gave, by name.
        settings: Maps the name of each setting of the run to its value; `RunFile.settings` has them with types.
        sites: Names of the sites.
        data: Digest of the data of all sites. It is equal for runs that can be compared image by image.
        task: Part of the learning problem that identifies a run.
    """

    method: str
    method_args: dict[str, Any]
    settings: dict[str, Any]
    sites: tuple[str, ...]
    data: str
    task: TaskIdentity

    @field_validator("sites")
    @classmethod
    def _are_folder_names(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_is_folder_name(site) for site in sites):  # sites are parts of paths that are read and written
            raise ValueError("expected names of sites that are names of folders")
        return sites

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["seed"])

    @property
    def run_id(self) -> str:
        """Identifier of the run from which the keys of its noise streams are derived.

        The data are left out, as no participant knows the data of all sites in a run between machines. Noise also
        depends on the noised values, so different data have different noise.
        """
        values = {name: value for name, value in self.to_json().items() if name != "data"}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def typed_settings(self, rounds: int) -> Settings:
        """Return the settings of the run with their types.

        Args:
            rounds: Number of rounds.
        """
        names = {name: field for field, name in IDENTITY_NAMES.items()}
        values = {names.get(name, name): value for name, value in self.settings.items()} | {"rounds": rounds}
        return read_settings(Settings, values, "the run")


class SettingOrigin(Record):
    """Value of a setting, and its origin.

    Attributes:
        value: Value as JSON.
        origin: Origin of the value, for example ``bundle``, ``command line`` or ``default of medfl``.
    """

    value: Any
    origin: str


class AssignedNetwork(Record):
    """Network that a rule chose for a site.

    A rule chooses, for example, a smaller network for a site with a weaker machine.

    Attributes:
        network: Name of the network. The setting ``networks_by_site`` and the site's own configuration take precedence.
        facts: Maps the name of each fact about the site's machine that the rule used to its value.
    """

    network: str
    facts: dict[str, float | str] = {}


class JoinedSite(Record):
    """A site that joined a run between machines after it began.

    Attributes:
        round: First round that the site takes part in.
        network: Name of the network that the site brought; None if the site trains the default network of the run.
    """

    round: int = Field(ge=0)
    network: str | None = Field(max_length=200)


def networks_of_joined_sites(joined: Mapping[str, JoinedSite]) -> dict[str, str]:
    """Return the name of the network that each site brought when it joined, by the name of the site.

    Sites that brought no network are left out.

    Args:
        joined: Maps each site that joined a run after it began to the record of its joining.
    """
    return {site: entry.network for site, entry in joined.items() if entry.network is not None}


class DataOrigin(Record):
    """Origin of the data of a run.

    Attributes:
        name: Name of the data set.
        sites: Maps each site, and the server's test set, to the digest of its data.
        folder: Path of the data, relative to the run folder.
        allowed_leaks: Kinds of violations of the splits that the user allowed.
        allowed_changes: Data files that changed since the partition and that the user allowed in spite of that.
        label_map: Maps each class of the public data to a class of the sites, or to None if it is left out.
        fold: Fold of a cross-validation that is the test set of every site; None without cross-validation.
        harmonisation: Harmonisation of images and features in words; empty without one.
        notes: Sentences of the data lists about the data, such as findings that were not assessed, and the numbers of
            cases that were left out.
    """

    name: str = ""
    sites: dict[str, str] = {}
    folder: str | None = None
    allowed_leaks: tuple[str, ...] = ()
    allowed_changes: tuple[str, ...] = ()
    label_map: dict[str, str | None] = {}
    fold: TestFold | None = None
    harmonisation: str = ""
    notes: tuple[str, ...] = ()


class StartOrigin(Record):
    """Origin of the weights from which a run's default network starts.

    Attributes:
        source: Source in short: the name of known weights, or a file or folder without the path to it.
        title: Name of the weights for reports.
        licence: Licence of the weights; empty if it is unknown.
        origin: Sentences on where the weights come from; empty if it is unknown.
        sha256: SHA-256 of the file that contains the weights.
        skip: Names, or prefixes of names, of tensors that were left out.
    """

    source: str
    title: str
    licence: str = ""
    origin: str = ""
    sha256: str
    skip: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Sentence that names the weights, their licence and origin, and the first digits of their SHA-256."""
        details = [f"licence: {self.licence or 'unknown'}", f"SHA-256 {self.sha256[:SHOWN_DIGITS]}"]
        details += [f"without {', '.join(self.skip)}"] if self.skip else []
        origin = f" {self.origin}" if self.origin else " Their origin is unknown."
        return f"{self.title} ({'; '.join(details)}).{origin}"


class Provenance(Record):
    """Origin of the settings, the data and the code of a run.

    Attributes:
        settings: Maps the name of each setting to its value and origin; empty in a site's own folder.
        data: Origin of the data.
        plugins: Maps the name of each loaded plugin to its distribution and version, or its file.
        assigned_networks: Maps each site to the network that a network assignment gave it.
        offer: Offer of a run between machines: the proposal of method, settings and task that the researcher submitted
            to the sites. None for a run on one machine.
        joined: Maps each site that joined after the run began to the record of its joining.
        start: Origin of the weights from which the default network starts; None if they are random.
    """

    settings: dict[str, SettingOrigin] = {}
    data: DataOrigin = DataOrigin()
    plugins: dict[str, str] = {}
    assigned_networks: dict[str, AssignedNetwork] = {}
    offer: dict[str, Any] | None = None
    joined: dict[str, JoinedSite] = {}
    start: StartOrigin | None = None

    @property
    def late_networks(self) -> dict[str, str]:
        """Maps each site that joined after the run began and brought a network to the name of that network."""
        return networks_of_joined_sites(self.joined)


class Versions(Record):
    """Versions of the software, and kind of processor.

    Attributes:
        medfl: Version of medfl.
        torch: Version of PyTorch.
        python: Version of Python.
        machine: Architecture of the processor.
        cpu: Instruction set of the processor that PyTorch uses, such as ``AVX2``.
    """

    medfl: str
    torch: str
    python: str
    machine: str
    cpu: str


class RunFile(FileRecord):
    """Content of ``run.json``.

    Attributes:
        identity: Identity of the run.
        rounds: Number of rounds.
        execution: Workers, threads and device.
        backend: Backend that runs the sites: ``local`` (on this machine) or ``flare`` (on other machines).
        versions: Versions of the software.
        provenance: Origin of the settings, the data and the code.
        best_round: Round with the best validation score; None while the run is not over, or if it does not compare
            rounds.
        cleaned: True if ``medfl clean`` deleted the state, so that the run can't be continued.
    """

    NAME: ClassVar[str] = "run.json"
    """Name of the file in its folder."""
    HAS_CHECKSUM: ClassVar[bool] = True
    """Whether the file holds a checksum of its other content, which the reader verifies."""
    REPAIR: ClassVar[str] = "Put it back from a copy, or start the run in a new folder."
    """Sentence that tells a user what to do about a damaged file."""

    identity: RunIdentity
    rounds: int
    execution: Execution
    backend: str = "local"
    versions: Versions
    provenance: Provenance = Provenance()
    best_round: BestRound | None = None
    cleaned: bool = False

    @cached_property
    def settings(self) -> Settings:
        """Settings of the run with their types."""
        return self.identity.typed_settings(self.rounds)


def _is_folder_name(name: str) -> bool:
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}
