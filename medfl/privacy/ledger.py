"""Privacy account of a site: the releases of its data, and the privacy budget that they spend over all runs.

Release: one noised value that leaves the site. Every run on the same data spends privacy again. So a site records its
releases in a privacy budget ledger, one file for each data set (`medfl.records.ledger`). A release is written and
flushed to the disk before it leaves the site: after a kill the ledger may count one release too many, never one too
few. A hash of its content identifies a release, so a release that is repeated after a kill counts once. The site's
folder of the run has a copy of the run's entry. If the ledger is moved or replaced, the entry is restored from there.

The name of a ledger is a fingerprint of the data and does not depend on their path. If the same patients are split in
another way, the site must add up the ledgers itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from medfl.errors import RefusedError, SettingsError, StoreError
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.privacy.policy import mechanism_of, policy_of
from medfl.records.ledger import Ledger, LedgerEntry, Mechanism
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, Settings
from medfl.types import Dataset, is_augmenting
from medfl.utils.locks import hold_lock
from medfl.utils.wire import digest

LOCK_SECONDS = 60.0
"""Seconds to wait for another process that writes the same ledger."""


@dataclass(frozen=True)
class Account:
    """Privacy account of one run on a site's data: it checks the budget and records each release in the ledger.

    The ledger also has the entries of all other runs on the same data.

    Attributes:
        path: Path of the ledger. The file is created at the first release.
        site: Name of the site, for messages.
        run: Name of the run. The same run in another folder has the same name.
        privacy: Privacy setting of the run.
        step: Noise of one planned release: noise multiplier, number of noised steps, sampling rate.
        planned: Maximum number of releases in the run.
        copy: Path of the file in the site's folder of the run that has a copy of this run's entry; None if the site
            keeps no ledger over several runs, so that `path` is in that folder.
        threshold: Number of sites whose shares of noise together make up the noise of a sum under secure aggregation;
            None if the site adds the full noise itself.
    """

    path: Path
    site: str
    run: str
    privacy: Privacy
    step: NoisedReleases
    planned: int
    copy: Path | None = None
    threshold: int | None = None

    @property
    def key(self) -> str:
        """Key of this run's entry in the ledger."""
        step = [self.step.sigma, self.step.count, self.step.rate, self.planned]
        text = json.dumps([self.site, self.run, self.privacy.unit, *step])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check(self) -> None:
        """Check that all planned releases fit into the total budget of the data.

        Raises:
            SettingsError: If the releases exceed the budget, with the numbers and a remedy.
            StoreError: If a file can't be read.
        """
        total = self.privacy.total_epsilon
        if total is None:
            return
        others = {key: entry for key, entry in self._read().items() if key != self.key}
        after = self._compose(others | {self.key: self._entry(self.planned)})
        if after > total * (1 + 1e-9):
            spent, count = self._compose(others), _runs_with_releases(others)
            raise SettingsError(
                "budget_spent",
                f"The privacy budget of site '{self.site}' is spent: its ledger holds {_number(spent)} of a total "
                f"epsilon of {total:g} (unit {self.privacy.unit}, '{self.privacy.adjacency}', delta "
                f"{self.privacy.delta:g}) from {count} {'run' if count == 1 else 'runs'} on the same data, and this "
                f"run of epsilon {self.privacy.epsilon:g} would make it {_number(after)}. Lower epsilon, or raise "
                "'total_epsilon' if the site agrees.",
                site=self.site,
                spent=spent,
                total_epsilon=total,
                epsilon=self.privacy.epsilon,
                runs=count,
            )

    def release(self, made_of: str) -> None:
        """Record a release in the files before it leaves the site, unless it is recorded already.

        Args:
            made_of: Identifier of the release: the round and a hash of the values that determine the release. A
                repeated release has the same identifier.

        Raises:
            RefusedError: If the release exceeds the planned number or the total budget.
            StoreError: If a file can't be read or written.
        """
        with self._locked():
            entries = self._read()
            entry = entries.get(self.key, self._entry(0))
            if made_of in entry.releases:
                return
            if len(entry.releases) >= self.planned:
                raise RefusedError(
                    "releases_exhausted",
                    f"Site '{self.site}' refuses further releases: its privacy budget covers {self.planned} releases, "
                    "and all were made. Either this run was computed before with other last bits (another device, "
                    "number of threads or version), which counts again: compute it as before, or start a run with "
                    "another seed, which has its own budget. Or the method sends more than one reply in a round.",
                    site=self.site,
                    maximum=self.planned,
                )
            try:
                self.check()  # another run may have spent since
            except SettingsError as error:
                raise RefusedError(error.code, str(error), **error.fields) from error
            entry = entry.model_copy(update={"releases": (*entry.releases, made_of)})
            self._write(entries | {self.key: entry})

    def restore(self) -> None:
        """Restore this run's entry from the copy, or the copy from the ledger, if one of them lacks releases.

        The method merges this run's releases from both files, and writes both files if they differ.

        Raises:
            SettingsError: If the run began with another ledger, which would miss the releases that follow.
            StoreError: If a file can't be read or written.
        """
        entry = self._read().get(self.key)
        if entry is None:
            return
        initial = self._load(self.copy or self.path).copy_of
        if initial not in (None, self.path) and initial.exists() and len(entry.releases) < self.planned:
            raise SettingsError(
                "other_ledger",
                f"The run began with the privacy ledger '{initial.parent}' for site '{self.site}', which would miss "
                "the further releases. Give the same 'ledger'; or, if you have moved it, delete it from there.",
                site=self.site,
                expected=initial.parent,
            )
        paths = [path for path in (self.path, self.copy) if path is not None]
        if any(self._load(path).entries.get(self.key) != entry for path in paths):
            with self._locked():
                self._write(self._read())

    def check_holds(self, made: Collection[str]) -> None:
        """Check that the account holds all releases that a continued run has already made.

        Args:
            made: Hashes of the releases in the run's stored steps.

        Raises:
            StoreError: If the account lacks one of these releases.
        """
        known = self._read().get(self.key, self._entry(0)).releases
        if missing := len(set(made) - set(known)):
            raise StoreError(
                "missing_releases",
                f"The privacy account '{self.path}' of site '{self.site}' lacks {missing} of the releases that the "
                "stored steps of this run made. Either the file was changed or removed: restore it from a copy. Or "
                "the images, their normalisation or the network are not those the run began with: restore these, or "
                "name another folder with --output_dir.",
                site=self.site,
                path=self.path,
                count=missing,
            )

    def report(self) -> PrivacyAccount:
        """Return the account: the releases of this run so far, and the privacy that all runs on the same data spent.

        Raises:
            StoreError: If a file can't be read.
        """
        entries = self._read()
        own = {key: entry for key, entry in entries.items() if key == self.key}
        return PrivacyAccount(
            unit=self.privacy.unit,
            adjacency=self.privacy.adjacency,
            delta=self.privacy.delta,
            sigma=self.step.sigma,
            rate=self.step.rate,
            steps=self.step.count,
            threshold=self.threshold,
            planned=self.planned,
            releases=sum(len(entry.releases) for entry in own.values()),
            stated_epsilon=self.privacy.epsilon,
            epsilon=_finite(self._compose(own)),
            composed=_finite(self._compose(entries)),
            runs=_runs_with_releases(entries),
            total_epsilon=self.privacy.total_epsilon,
            ledger=self.privacy.ledger is not None,
        )

    def _entry(self, count: int) -> LedgerEntry:
        """Return an entry of this run with a number of releases without hashes."""
        single: Mechanism = "gaussian" if self.step.rate == 1 else "poisson-subsampled gaussian"
        return LedgerEntry(
            unit=self.privacy.unit,
            mechanism="distributed discrete gaussian" if self.step.concentrated else single,
            adjacency=self.privacy.adjacency,
            sigma=self.step.sigma,
            rate=self.step.rate,
            steps=self.step.count,
            delta=self.privacy.delta,
            epsilon=self.privacy.epsilon,
            planned=self.planned,
            releases=("",) * count,
            threshold=self.threshold,
        )

    def _compose(self, entries: Mapping[str, LedgerEntry]) -> float:
        """Return epsilon of entries together, for this run's unit, adjacency and delta."""
        mechanism, parts = mechanism_of(self.privacy.unit), []
        for entry in entries.values():
            part = mechanism.part_of(entry, self.privacy.adjacency)
            if part is None:
                return math.inf
            parts.append(part)
        return epsilon(tuple(parts), self.privacy.delta, self.privacy.adjacency)

    def _load(self, path: Path) -> Ledger:
        return Ledger.load(path, self.site)

    def _read(self) -> dict[str, LedgerEntry]:
        """Return all entries. This run's entry has the releases of both files."""
        entries = dict(self._load(self.path).entries)
        own = self._load(self.copy).entries.get(self.key) if self.copy is not None else None
        if own is not None:
            known = entries.get(self.key, own).releases
            merged = tuple(dict.fromkeys([*known, *own.releases]))
            entries[self.key] = own.model_copy(update={"releases": merged})
        return entries

    def _write(self, entries: Mapping[str, LedgerEntry]) -> None:
        if self.copy is not None:
            own = self._load(self.copy).entries | {self.key: entries[self.key]}
            Ledger(entries=own, copy_of=self.path).write(self.copy)
        Ledger(entries=dict(entries)).write(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the ledger during a block.

        Raises:
            StoreError: If the ledger can't be written, or another process holds the lock for too long.
        """
        lock = self.path.with_suffix(".lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"Could not write the privacy ledger '{self.path}' of site '{self.site}': {error.strerror}. The site "
                "releases nothing until it can be written.",
                site=self.site,
                path=self.path,
            ) from error
        with hold_lock(lock, LOCK_SECONDS) as is_locked:
            if not is_locked:
                raise StoreError(
                    "file_in_use",
                    f"Another process holds the privacy ledger '{self.path}' of site '{self.site}' for more than "
                    f"{LOCK_SECONDS:g} seconds. Find that process, and run the same command again.",
                    site=self.site,
                    path=self.path,
                    seconds=LOCK_SECONDS,
                )
            yield


def open_account(
    settings: Settings, data: Dataset, data_digest: str, site: str, run: str, folder: Path
) -> Account | None:
    """Open the privacy account of a site in a run, restore its releases, and check its budget.

    The account is a file in the site's folder of the run, and an entry of the ledger if the site has one.

    Args:
        settings: Settings of the run.
        data: Training data of the site.
        data_digest: Digest of the site's data, after which the ledger is named; if empty, `hash_dataset` computes it.
        site: Name of the site.
        run: Name of the run.
        folder: Folder of the site in the run.

    Returns:
        None if the run has no privacy setting or the site has no training data.

    Raises:
        SettingsError: If the budget of the data is spent, or no noise keeps the budget of the run.
        StoreError: If a file can't be read or written.
    """
    policy = policy_of(settings)
    privacy, step = policy.privacy, policy.release(len(data)) if len(data) else None
    if privacy is None or step is None:
        return None
    path, copy = folder / Ledger.NAME, None
    if privacy.ledger is not None:
        path, copy = privacy.ledger / f"{data_digest or hash_dataset(data)}.json", path
    account = Account(
        path=path,
        site=site,
        run=run,
        privacy=privacy,
        step=step,
        planned=policy.planned_releases,
        copy=copy,
        threshold=policy.threshold,
    )
    account.restore()
    account.check()
    return account


def hash_dataset(data: Dataset) -> str:
    """Return a SHA-256 of all images, as a network receives them, and their labels, in order. Read all data once."""
    size = 1 if is_augmenting(data) else 256  # cases from transforms may have different sizes
    parts = (data.batch(rows) for rows in torch.arange(len(data)).split(size))
    return hashlib.sha256("".join(digest({"x": x, "y": y}) for x, y in parts).encode()).hexdigest()


def _runs_with_releases(entries: Mapping[str, LedgerEntry]) -> int:
    return sum(bool(entry.releases) for entry in entries.values())


def _number(value: float) -> str:
    return "more than can be bounded" if math.isinf(value) else f"{value:.4g}"


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
