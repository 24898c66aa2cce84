"""A participant's own file, ``medfl-site.toml``: what it has, and what a run may ask of it.

It is written by the participant's administrator and never travels. A run can only be stricter than it
(`medfl_flare.sites.policy`); ``medfl site check`` proves it before anyone connects.
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

from medfl.bundle.files import shipped
from medfl.errors import PluginError, RefusedError, SettingsError, StoreError, did_you_mean
from medfl.privacy.policy import mechanism_of
from medfl.settings import Device, Execution, Strict, read_settings
from medfl.types import SERVER
from medfl.utils.field_words import PluginName
from medfl.utils.files import flush_folder
from medfl.utils.locks import held
from medfl.utils.text import name_problem
from medfl_flare.records.offer import NAME
from medfl_flare.statistics.description import Fact

FILE = "medfl-site.toml"
"""Its name in the folder ``local`` of a startup kit."""

SECRET = "secret"
"""The secret's file in the state folder."""

SECRET_BYTES = 32
"""Its length."""

PATIENCE = 30.0
"""Seconds to wait for another process that makes the secret at this moment."""

Name = Annotated[str, Field(pattern=NAME)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Floor(Strict):
    """The privacy that a run must promise at least, over all its releases (`medfl.settings.Privacy`).

    Attributes:
        unit: A privacy mechanism's, for example ``site``, which is stronger than ``sample``.
        adjacency: ``replace`` is stronger than ``add_remove``.
        epsilon: A run's may not be above it, > 0.
        delta: A run's may not be above it, in (0, 1).
        ledger: Folder of the site's account over all runs; None keeps account in each run alone.
        total_epsilon: Budget over all runs in the ledger, >= `epsilon`; None only keeps account.
    """

    unit: PluginName
    adjacency: Literal["add_remove", "replace"] = "replace"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    ledger: Path | None = None
    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', a folder for the account")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than epsilon {self.epsilon:g} of one run")
        return self


class BundleEntry(Strict):
    """A bundle as it is written in the file.

    Attributes:
        folder: The participant's reviewed copy; None is the bundle of that name that comes with medfl.
        data: Folder with this site's ``datalist.json``; at the server a folder with ``global`` and ``public``, or None.
        network: Which of the bundle's networks this site trains; None is the bundle's own choice.
        allow_changes: Files of the data that may have changed since ``medfl partition``, by their names in its
            ``partition.json``.
    """

    folder: Path | None = None
    data: Path | None = None
    network: str | None = None
    allow_changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteBundle:
    """A bundle that may run here.

    Attributes:
        folder: The participant's reviewed copy.
        data: Its data for it; None at a server without any.
        network: The network that the site trains; None is the bundle's own choice.
        allow_changes: As in `BundleEntry`.
    """

    folder: Path
    data: Path | None = None
    network: str | None = None
    allow_changes: tuple[str, ...] = ()


class SiteFile(Strict):
    """What a participant has, and what a run may ask of it. Made by `read_site_file`.

    Attributes:
        site: Its name in the federation; ``server`` makes it the server's file.
        state: Folder where runs keep their state, and the secret.
        methods: Names of methods that may run here.
        max_rounds: Rounds of a run, at most.
        max_message_mb: Size of a message in MB (10^6 bytes), at most.
        max_network_mb: Size of a network in MB, at most; none beyond it is built.
        min_count: Fewest images of which numbers may leave, >= 1.
        disclose: Facts that may be told about the training data.
        profile: Facts that may be reported about this machine, for runs that assign networks by them: ``live`` measures
            them, a table has numbers by name, None reports nothing.
        exchange: Whether models of other sites may be scored here, and this site's elsewhere.
        shared_test: Whether this site's own model may be scored on a test set that all sites share, the folder
            ``global`` beside its data; the scores leave.
        threads: Threads of a job, >= 1.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        cache: Where cases of an adopted bundle are kept as they are before its first random transform.
        cache_dir: Folder of the cache on disk; None takes one in the site's data.
        loaders: Processes that load cases of an adopted bundle ahead of training, >= 0.
        least_threshold: Smallest number of sites, each with a certificate of the kit's root, in whose sum an update may
            leave (`secure_aggregation`); None lets it leave alone.
        privacy: The least privacy that a run must promise, or None.
        bundles: Name to bundle; no other may run.
    """

    site: str
    state: Path
    methods: tuple[str, ...] = ()
    max_rounds: int = Field(200, ge=1)
    max_message_mb: int = Field(512, ge=1, le=100_000)
    max_network_mb: int = Field(1024, ge=1, le=100_000)
    min_count: int = Field(10, ge=1)
    disclose: tuple[Fact, ...] = ("size",)
    profile: Literal["live"] | dict[str, Amount] | None = None
    cross_site_evaluation: bool = False
    shared_test: bool = False
    threads: int = Field(1, ge=1)
    device: Device = "cpu"
    cache: Literal["memory", "disk", "none"] = "memory"
    cache_dir: Path | None = None
    loaders: int = Field(0, ge=0)
    least_threshold: int | None = Field(None, ge=2)
    privacy: Floor | None = None
    bundles: dict[Name, BundleEntry] = {}
    _path: Path = PrivateAttr(Path(FILE))

    @field_validator("site")
    @classmethod
    def _can_be_called(cls, site: str) -> str:
        if site != SERVER and (problem := name_problem([site])):
            raise ValueError(problem)
        return site

    @model_validator(mode="after")
    def _sites_have_data(self) -> Self:
        without = [name for name, entry in self.bundles.items() if entry.data is None]
        if without and not self.is_server:
            raise ValueError(f"bundle '{without[0]}' needs 'data', the folder with this site's datalist.json")
        return self

    @property
    def is_server(self) -> bool:
        """Whether it is the server's file."""
        return self.site == SERVER

    @property
    def execution(self) -> Execution:
        """How a run computes here; an offer has no say in it."""
        own = {name for name in Execution.model_fields if name in SiteFile.model_fields}
        return Execution(**{name: getattr(self, name) for name in own})

    @property
    def path(self) -> Path:
        """Where it was read from."""
        return self._path

    def bundle(self, name: str) -> SiteBundle:
        """A bundle that may run here.

        Raises:
            RefusedError: If it is not listed, or its folder is no bundle. The message names no path: it may travel.
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
        folder = entry.folder or shipped().get(name)
        if folder is None:
            raise RefusedError(
                "unknown_bundle",
                f"The file of '{self.site}' lists the bundle '{name}' without a 'folder', and no bundle of that name "
                f"comes with medfl. {did_you_mean(name, shipped())}",
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
        """The secret that privacy noise comes from: read, or made the first time.

        Returns:
            32 random bytes, kept in a file of the state folder that only its owner can read.

        Raises:
            SettingsError: If others can read it, or its length is wrong.
            StoreError: If it can't be read or made.
        """
        path = self.state / SECRET
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
    """Read a participant's own file. Relative paths in it begin at its folder.

    Raises:
        SettingsError: If it can't be read, or is not valid: file, key, what was expected and what came.
    """
    file = Path(path).absolute()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            "unreadable_file",
            f"Could not read the site's file '{file}': {error.strerror}. Give its path, or write it: docs/deploy.md "
            "shows one.",
            path=file,
        ) from None
    except ValueError as error:
        raise SettingsError(
            "invalid_toml", f"The site's file '{file}' is no valid TOML: {error}. Correct it there.", path=file
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
    """The same with absolute paths."""

    def absolute(values: Strict, *names: str) -> Any:
        paths = {name: getattr(values, name) for name in names}
        return values.model_copy(
            update={name: start / path.expanduser() for name, path in paths.items() if path is not None}
        )

    bundles = {name: absolute(entry, "folder", "data") for name, entry in site_file.bundles.items()}
    floor = None if site_file.privacy is None else absolute(site_file.privacy, "ledger")
    changed: SiteFile = absolute(site_file, "state", "cache_dir")
    return changed.model_copy(update={"bundles": bundles, "privacy": floor})


def _read_secret(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        content = file.read(SECRET_BYTES + 1)
    if mode & 0o077:
        raise SettingsError(
            "insecure_permissions",
            f"Others than its owner may use the secret '{path}' (mode {mode:04o}, expected 0600): who knows it can "
            f"take privacy noise away again. Give the command `chmod 600 {path}`. If someone may have read it, remove "
            "it instead, and a new one is made for new runs.",
            path=path,
            mode=mode,
        )
    if len(content) != SECRET_BYTES:
        raise SettingsError(
            "wrong_secret_length",
            f"Expected {SECRET_BYTES} bytes in the secret '{path}', got another number. Put it back from a copy, or "
            "remove it to have a new one made for new runs.",
            path=path,
            expected=SECRET_BYTES,
        )
    return content


def _make_secret(path: Path) -> None:
    """Make the secret whole or not at all; of several processes at once, one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with held(path.with_name(f".{SECRET}.lock"), PATIENCE, remove=True) as alone:
        if not alone or path.exists():
            return
        temporary = path.with_name(f".{SECRET}.tmp")
        temporary.unlink(missing_ok=True)  # left by a kill; nobody else is here
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
        flush_folder(path.parent)
