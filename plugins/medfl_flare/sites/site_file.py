"""A participant's own file, ``medfl-site.toml``: the participant's folders and its permissions for runs.

The participant's administrator writes it, and it never leaves the machine. A run can only be stricter than the file
(`medfl_flare.sites.policy`). ``medfl site check`` checks it before the participant connects.
"""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.errors import PluginError, RefusedError, SettingsError, StoreError, did_you_mean
from medfl.privacy.policy import mechanism_of
from medfl.settings import Device, Execution, StrictModel, read_settings
from medfl.types import SERVER
from medfl.utils.field_descriptions import PluginName
from medfl.utils.files import flush_to_disk
from medfl.utils.locks import hold_lock
from medfl.utils.text import name_problem
from medfl_flare.records.offer import NAME
from medfl_flare.statistics.site_statistics import DisclosureKind

SITE_FILE_NAME = "medfl-site.toml"
"""Name of the file in the folder ``local`` of a startup kit."""

SECRET_FILE_NAME = "secret"
"""Name of the file with the noise secret, in the state folder."""

SECRET_BYTES = 32
"""Length of the noise secret in bytes."""

SECRET_LOCK_SECONDS = 30.0
"""Seconds to wait for another process that is creating the secret."""

Name = Annotated[str, Field(pattern=NAME)]
"""Type of the name of a bundle."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Type of a finite number >= 0, for example a property of the machine."""


class MinimumPrivacy(StrictModel):
    """Minimum privacy that a run must guarantee, over all its releases (`medfl.settings.Privacy`).

    A release is one noised value that leaves the site.

    Attributes:
        unit: Unit of a privacy mechanism, for example ``site``, which is stronger than ``sample``.
        adjacency: Definition of neighbouring data sets. ``add_remove``: one unit is added or removed. ``replace``: one
            unit is replaced by another; this guarantee is stronger.
        epsilon: Largest epsilon of a run, > 0.
        delta: Largest delta of a run, in (0, 1).
        ledger: Folder of the site's ledger, its record of the privacy budget spent over all runs; None keeps a separate
            record in each run.
        total_epsilon: Budget over all runs in the ledger, >= `epsilon`; None records the account without a limit.
    """

    unit: PluginName
    adjacency: Literal["add_remove", "replace"] = "replace"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    ledger: Path | None = None
    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Raise if the total budget has no ledger or is below the budget of one run."""
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', a folder for the ledger")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than epsilon {self.epsilon:g} of one run")
        return self


class BundleEntry(StrictModel):
    """A bundle that may run here, as the participant's own file lists it; `SiteFile.bundle` resolves its folders.

    Attributes:
        folder: The participant's reviewed copy of the bundle; None means the bundle of that name that comes with medfl.
        data: Folder with this site's ``datalist.json``; at the server a folder with ``global`` and ``public``, or None.
        network: Network of the bundle that this site trains; None means the bundle's own choice.
        allow_changes: Names, as in the data's ``partition.json``, of the files that may have changed since ``medfl
            partition``.
    """

    folder: Path | None = None
    data: Path | None = None
    network: str | None = None
    allow_changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteBundle:
    """A bundle that may run at this participant, with resolved folders.

    Attributes:
        folder: The participant's reviewed copy of the bundle.
        data: Folder with the participant's data for the bundle; None at a server without data.
        network: Network that the site trains; None means the bundle's own choice.
        allow_changes: Names, as in the data's ``partition.json``, of the files that may have changed since ``medfl
            partition``.
    """

    folder: Path
    data: Path | None = None
    network: str | None = None
    allow_changes: tuple[str, ...] = ()


class SiteFile(StrictModel):
    """Contents of a participant's own file: folders, and permissions for runs. `read_site_file` returns it.

    Attributes:
        site: Name of the participant in the federation; ``server`` makes it the server's file.
        state: Folder for the state of runs and for the noise secret.
        methods: Names of the methods that may run here.
        max_rounds: Maximum number of rounds of a run.
        max_message_mb: Maximum size of a message in MB (10^6 bytes).
        max_network_mb: Maximum size of a network in MB; a larger one is not built.
        min_count: Minimum number of images behind a disclosed number, >= 1.
        disclose: Kinds of information about the training data that may be disclosed: ``size``, ``label_counts``,
            ``geometry``, ``intensities``, ``targets``; and ``feature_sums``, the sum and the sum of squared deviations
            of each feature of a frozen encoder, to runs that harmonise features.
        profile: Properties of this machine, such as its memory, that may be disclosed to runs that assign networks by
            such properties. ``live`` measures them, a table maps the name of each property to its value, None discloses
            nothing.
        cross_site_evaluation: Whether the cross-site evaluation is allowed: models of other sites are scored here, and
            this site's model is scored elsewhere.
        shared_test: Whether this site's own model may be scored on a test set that all sites share, the folder
            ``global`` beside its data. The scores leave the site.
        evaluation_scores: Names of the scores of finished models on this site's test images that may be disclosed to
            ``medfl federate evaluate``; empty refuses every such evaluation.
        threads: Number of threads of a job, >= 1.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        cache: Where the cases of an adopted bundle (a stock MONAI bundle that ``medfl adopt`` prepared) are stored
            after their deterministic transforms: ``memory``, ``disk`` or ``none``.
        cache_dir: Folder of the caches on disk; None means a folder within the site's data.
        feature_cache: Whether the features of a frozen body are computed once and stored in the cache on disk.
        loaders: Number of processes that load cases of an adopted bundle ahead of training, >= 0.
        checkpoint_minutes: Most minutes of training within a step that are lost by a kill, >= 0; 0 writes a checkpoint
            after each batch.
        weights: Folder with files of weights from which a run may start. A run names such a file by its SHA-256, never
            by its path. None if there is no such folder.
        least_threshold: Smallest number of sites over which secure aggregation must sum the updates, so that the server
            can't see this site's update alone. Each site must have a certificate of the kit's root. None lets an update
            leave outside of a sum.
        privacy: Minimum privacy that a run must guarantee, or None.
        bundles: Maps the name of each bundle that may run here to its entry.
    """

    site: str
    state: Path
    methods: tuple[str, ...] = ()
    max_rounds: int = Field(200, ge=1)
    max_message_mb: int = Field(512, ge=1, le=100_000)
    max_network_mb: int = Field(1024, ge=1, le=100_000)
    min_count: int = Field(10, ge=1)
    disclose: tuple[Literal[DisclosureKind, "feature_sums"], ...] = ("size",)
    profile: Literal["live"] | dict[str, Amount] | None = None
    cross_site_evaluation: bool = False
    shared_test: bool = False
    evaluation_scores: tuple[str, ...] = ()
    threads: int = Field(1, ge=1)
    device: Device = "cpu"
    cache: Literal["memory", "disk", "none"] = "memory"
    cache_dir: Path | None = None
    feature_cache: bool = True
    loaders: int = Field(0, ge=0)
    checkpoint_minutes: float = Field(10.0, ge=0, allow_inf_nan=False)
    weights: Path | None = None
    least_threshold: int | None = Field(None, ge=2)
    privacy: MinimumPrivacy | None = None
    bundles: dict[Name, BundleEntry] = {}
    _path: Path = PrivateAttr(Path(SITE_FILE_NAME))

    @field_validator("site")
    @classmethod
    def _can_be_called(cls, site: str) -> str:
        """Raise if the name is not a valid site name."""
        if site != SERVER and (problem := name_problem([site])):
            raise ValueError(problem)
        return site

    @model_validator(mode="after")
    def _sites_have_data(self) -> Self:
        """Raise if a bundle of a site has no data."""
        without = [name for name, entry in self.bundles.items() if entry.data is None]
        if without and not self.is_server:
            raise ValueError(f"bundle '{without[0]}' needs 'data', the folder with this site's datalist.json")
        return self

    @property
    def is_server(self) -> bool:
        """True if the file belongs to the server."""
        return self.site == SERVER

    @property
    def execution(self) -> Execution:
        """Settings of the computation on this machine, such as device and threads. No run can change them."""
        own = {name for name in Execution.model_fields if name in SiteFile.model_fields}
        return Execution(**{name: getattr(self, name) for name in own})

    @property
    def path(self) -> Path:
        """Path from which the file was read."""
        return self._path

    def bundle(self, name: str) -> SiteBundle:
        """Return a bundle that may run here.

        Raises:
            RefusedError: If the bundle is not listed, or if its folder is not a bundle. The message contains no path,
                as it may be sent to the server.
        """
        if name not in self.bundles:
            raise RefusedError(
                "bundle_not_allowed",
                f"The run wants the bundle '{name}'; '{self.site}' allows: "
                f"{', '.join(sorted(self.bundles)) or 'none'}.",
                site=self.site,
                bundle=name,
                allowed=sorted(self.bundles),
            )
        entry = self.bundles[name]
        folder = entry.folder or shipped_bundles().get(name)
        if folder is None:
            raise RefusedError(
                "unknown_bundle",
                f"The file of '{self.site}' lists the bundle '{name}' without a 'folder', and no bundle of that name "
                f"comes with medfl. {did_you_mean(name, shipped_bundles())}",
                site=self.site,
                bundle=name,
            )
        if not (folder / "configs" / "metadata.json").is_file():
            raise RefusedError(
                "invalid_bundle_folder",
                f"The folder of the bundle '{name}' at '{self.site}' has no configs/metadata.json. Its administrator "
                "can find out with `medfl site check`.",
                site=self.site,
                bundle=name,
            )
        return SiteBundle(folder, entry.data, entry.network, entry.allow_changes)

    def secret(self) -> bytes:
        """Return the secret from which privacy noise is derived. The first call creates it.

        Returns:
            32 random bytes, stored in a file of the state folder that only its owner can read.

        Raises:
            SettingsError: If others can read the file, or if its length is wrong.
            StoreError: If the file can't be read or created.
        """
        path = self.state / SECRET_FILE_NAME
        try:
            if not path.exists():
                _make_secret(path)
            return _read_secret(path)
        except OSError as error:
            raise StoreError(
                "unreadable_secret",
                f"Could not read or make the secret '{path}': {error.strerror}. The owner of the job's process must be "
                "able to write its folder.",
                path=path,
            ) from error


def read_site_file(path: str | Path) -> SiteFile:
    """Read a participant's own file. Relative paths in it are relative to its folder.

    Raises:
        SettingsError: If the file can't be read or is invalid. The message contains the file, the key, the expected and
            the found value.
    """
    file = Path(path).absolute()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            "unreadable_file",
            f"Could not read the site's file '{file}': {error.strerror}. Give its path, or write it: docs/deploy.md "
            "contains an example.",
            path=file,
        ) from None
    except ValueError as error:
        raise SettingsError(
            "invalid_toml", f"The site's file '{file}' is not valid TOML: {error}. Correct that line.", path=file
        ) from None
    site_file = read_settings(SiteFile, values, f"the site's file '{file}'")
    if site_file.privacy is not None:
        try:
            mechanism_of(site_file.privacy.unit)
        except PluginError as error:
            raise SettingsError(
                error.code,
                f"'privacy.unit' of the site's file '{file}' is not valid: {error}",
                settings=["privacy.unit"],
                **error.fields,
            ) from None
    site_file = _anchored(site_file, file.parent)
    site_file._path = file
    return site_file


def _anchored(site_file: SiteFile, start: Path) -> SiteFile:
    """Return a copy with absolute paths."""

    def absolute(values: StrictModel, *names: str) -> Any:
        paths = {name: getattr(values, name) for name in names}
        return values.model_copy(
            update={name: start / path.expanduser() for name, path in paths.items() if path is not None}
        )

    bundles = {name: absolute(entry, "folder", "data") for name, entry in site_file.bundles.items()}
    floor = None if site_file.privacy is None else absolute(site_file.privacy, "ledger")
    changed: SiteFile = absolute(site_file, "state", "cache_dir", "weights")
    return changed.model_copy(update={"bundles": bundles, "privacy": floor})


def _read_secret(path: Path) -> bytes:
    """Read the secret; raise if its permissions or its length are wrong."""
    descriptor = os.open(path, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        content = file.read(SECRET_BYTES + 1)
    if mode & 0o077:
        raise SettingsError(
            "insecure_permissions",
            f"Other users than its owner can use the secret '{path}' (mode {mode:04o}, expected 0600). Anyone who "
            f"knows it can remove the privacy noise. Run `chmod 600 {path}`. If someone may have read the secret, "
            "delete it instead: medfl then makes a new one for new runs.",
            path=path,
            mode=mode,
        )
    if len(content) != SECRET_BYTES:
        raise SettingsError(
            "wrong_secret_length",
            f"Expected {SECRET_BYTES} bytes in the secret '{path}', got another number. Restore it from a copy, or "
            "delete it: medfl then makes a new one for new runs.",
            path=path,
            expected=SECRET_BYTES,
        )
    return content


def _make_secret(path: Path) -> None:
    """Create the secret atomically. If several processes call this at once, one of them creates it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with hold_lock(path.with_name(f".{SECRET_FILE_NAME}.lock"), SECRET_LOCK_SECONDS, remove=True) as alone:
        if not alone or path.exists():
            return
        temporary = path.with_name(f".{SECRET_FILE_NAME}.tmp")
        temporary.unlink(missing_ok=True)  # left by a killed process; the lock excludes other processes
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
