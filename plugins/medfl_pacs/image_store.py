"""A pseudonymised store of DICOM files.

Content of the folder:

* ``images/STUDY/SERIES/INSTANCE.dcm``: complete series that may be used; ``images.csv`` has one row for each.
* ``quarantine/``: complete series with signs of burned-in text, or with unreadable instances, until a person has
  decided; ``review.csv`` lists the instances.
* ``incoming/``: series that are being retrieved.
* ``journal.jsonl`` and ``store.json``: the state (`StoreJournal`) and the settings (`StoreFile`).

All names are pseudonyms. An instance is written to the disk before its line in the journal. So a killed retrieval
repeats at most one instance, under the same name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from medfl.errors import DamagedError, DataError, SettingsError, StoreError
from medfl.utils.files import private_files, write_atomic
from medfl.utils.locks import LOCK_FILE, hold_lock
from medfl_pacs.burned_in import burned_in_signs
from medfl_pacs.deidentification import deidentify, encode
from medfl_pacs.geometry import read_geometry
from medfl_pacs.pacs_source import InstanceReference, SeriesReference, is_stored_class
from medfl_pacs.profile_actions import EDITION
from medfl_pacs.pseudonyms import Pseudonyms
from medfl_pacs.store_journal import StoreJournal
from medfl_pacs.store_records import DecisionRecord, InstanceRecord, Place, SeriesRecord, StoreFile

if TYPE_CHECKING:
    from pydicom import Dataset

INCOMING, IMAGES, QUARANTINE = "incoming", "images", "quarantine"
"""Folders of series that are being retrieved, that may be used, and that a person must look at."""

JOURNAL_FILE = "journal.jsonl"
"""Name of the journal in the store."""

Status = Literal["stored", "skipped", "refused"]
"""Result for a retrieved instance."""


class ImageStore:
    """A pseudonymised store, opened by `open_store`.

    Args:
        folder: Folder of the store.
        pseudonyms: Pseudonyms of the site.
        keep_characteristics: Whether to keep sex, age, size and weight.
        keep_burned_in: Whether series with signs of burned-in text may be used without a review.
    """

    def __init__(
        self, folder: Path, pseudonyms: Pseudonyms, *, keep_characteristics: bool = False, keep_burned_in: bool = False
    ) -> None:
        self.folder, self.pseudonyms = folder, pseudonyms
        self.keep_characteristics, self.keep_burned_in = keep_characteristics, keep_burned_in
        self.journal = StoreJournal(folder / JOURNAL_FILE)

    def needs(self, reference: InstanceReference) -> bool:
        """Return True if an instance must be retrieved: it is new, was refused before, or its file is missing."""
        record = self.journal.instances.get(self._uid(reference.series.series_uid), {}).get(
            self._uid(reference.instance_uid)
        )
        if record is None or record.status == "refused":
            return True
        return record.status == "stored" and self.find_file(record) is None

    def find_file(self, record: InstanceRecord) -> Path | None:
        """Return the file of an instance, or None if there is none."""
        for place in (INCOMING, IMAGES, QUARANTINE):
            path = self.folder / place / record.study / record.series / f"{record.instance}.dcm"
            if path.is_file():
                return path
        return None

    def add(self, reference: InstanceReference, dataset: Dataset) -> Status:
        """Pseudonymise an instance and write it to the store.

        The instance is refused if it can't be read, or if its UIDs are not the requested ones.

        Args:
            reference: The requested instance.
            dataset: The retrieved instance, which is changed in place.

        Raises:
            StoreError: If the disk is full or can't be written.
        """
        try:
            uids = (dataset.StudyInstanceUID, dataset.SeriesInstanceUID, dataset.SOPInstanceUID)
            expected = (reference.series.study_uid, reference.series.series_uid, reference.instance_uid)
            if tuple(map(str, uids)) != expected:
                return self.refuse(reference, "other_instance")
            if not is_stored_class(str(dataset.SOPClassUID)):
                return self.skip(reference)
            signs = burned_in_signs(dataset)
            deidentify(dataset, self.pseudonyms, keep_characteristics=self.keep_characteristics)
            content = encode(dataset)
        except DataError as error:
            return self.refuse(reference, error.code)
        except SettingsError:
            raise
        except Exception:  # pydicom raises many kinds, with values of the file
            return self.refuse(reference, "unreadable_instance")
        record = self._record(reference, "stored", signs=signs)
        write_atomic(self._incoming(record), content)
        self.journal.append(record)
        return "stored"

    def skip(self, reference: InstanceReference) -> Status:
        """Record that an instance is neither an image nor a mask."""
        self.journal.append(self._record(reference, "skipped"))
        return "skipped"

    def refuse(self, reference: InstanceReference, code: str) -> Status:
        """Record that an instance could not be read or retrieved. The next retrieval tries again.

        Args:
            reference: The instance.
            code: Code of the reason.
        """
        self.journal.append(self._record(reference, "refused", reason=code))
        return "refused"

    def keep(self, record: InstanceRecord) -> None:
        """Record a person's decision to keep an instance in spite of its findings."""
        if not self.is_kept(record):
            decision = DecisionRecord(
                series=record.series, instance=record.instance, decision="keep", findings=record.findings
            )
            self.journal.append(decision)

    def delete(self, record: InstanceRecord) -> None:
        """Delete an instance, as a person has decided. It is not retrieved again.

        The file is deleted before the journal says so: after a crash, the decision is applied again.

        Raises:
            StoreError: If the file can't be deleted.
        """
        path = self.find_file(record)
        try:
            if path is not None:
                path.unlink()
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"Could not delete '{path}': {error.strerror}. Change the permissions, and repeat the command.",
                path=path,
                reason=error.strerror,
            ) from None
        self.journal.append(record.model_copy(update={"status": "deleted"}))

    def settle(self, study: str, series: str, *, keep_suspected: bool = False) -> None:
        """Move a complete series to its folder, and record it. Do nothing if the record is up to date.

        Args:
            study: Pseudonym of the study.
            series: Pseudonym of the series.
            keep_suspected: Whether the series may be used without a review, as with `keep_burned_in`.
        """
        records = self.journal.instances.get(series, {}).values()
        stored = [record for record in records if record.status == "stored"]
        former = self.journal.series.get(series)
        if not stored:
            self._record_absence(former)
            return
        is_refused = any(record.status == "refused" and not self.is_kept(record) for record in records)
        is_suspected = any(record.signs and not self.is_kept(record) for record in stored)
        may_be_suspected = self.keep_burned_in or keep_suspected
        place: Place = "quarantine" if is_refused or (is_suspected and not may_be_suspected) else "images"
        burned_in: Literal["no", "suspected", "reviewed"] = "no"
        if any(record.signs for record in stored):
            burned_in = "suspected" if is_suspected else "reviewed"
        refused = sum(record.status == "refused" for record in records)
        expected = (len(stored), place, burned_in, refused)
        is_current = former and (former.images, former.place, former.burned_in, former.refused) == expected
        if is_current and not (self.folder / INCOMING / study / series).exists():
            return
        self._move(study, series, place, {record.instance for record in stored})
        headers = self._headers(self.folder / place / study / series)
        if headers:
            self.journal.append(self._describe(headers, study, series, place, burned_in, refused))
        else:
            self._record_absence(former)

    def settle_reference(self, series: SeriesReference) -> None:
        """Move a complete series of the PACS to its folder, and record it; see `settle`."""
        self.settle(self._uid(series.study_uid), self._uid(series.series_uid))

    def is_kept(self, record: InstanceRecord) -> bool:
        """Return True if a person has decided to keep an instance in spite of all its present findings."""
        decision = self.journal.decisions.get(record.instance)
        return decision is not None and decision.decision == "keep" and set(record.findings) <= set(decision.findings)

    def _record_absence(self, former: SeriesRecord | None) -> None:
        """Record that a series has no files any more, because all were deleted."""
        if former is not None and former.images:
            self.journal.append(former.model_copy(update={"images": 0}))

    def _headers(self, folder: Path) -> list[Dataset]:
        """Return the headers of the files of a series, in the order of their names.

        Raises:
            DamagedError: If a file can't be read.
        """
        from pydicom import dcmread

        headers: list[Dataset] = []
        for path in sorted(folder.glob("*.dcm")):
            try:
                headers.append(dcmread(path, stop_before_pixels=True))
            except Exception:  # pydicom raises many kinds
                raise DamagedError(
                    "damaged_file",
                    f"'{path}' can't be read. Delete it; the next retrieval gets it again.",
                    path=path,
                ) from None
        return headers

    def _describe(
        self,
        headers: Sequence[Dataset],
        study: str,
        series: str,
        place: Place,
        burned_in: Literal["no", "suspected", "reviewed"],
        refused: int,
    ) -> SeriesRecord:
        """Return the record of a series from the headers of its files."""
        geometry = read_geometry(headers)
        first = headers[0]
        return SeriesRecord(
            patient=str(first.PatientID),
            study=study,
            series=series,
            folder=f"{place}/{study}/{series}",
            modality=str(first.get("Modality") or ""),
            plane=geometry.plane,
            images=len(headers),
            slices=geometry.slices,
            row_spacing_mm=geometry.row_spacing_mm,
            column_spacing_mm=geometry.column_spacing_mm,
            slice_spacing_mm=geometry.slice_spacing_mm,
            date=str(first.get("StudyDate") or first.get("SeriesDate") or ""),
            burned_in=burned_in,
            refused=refused,
        )

    def _move(self, study: str, series: str, place: Place, instances: Collection[str]) -> None:
        """Move the files of a series to a folder. Repeating it after a crash moves the remaining files.

        Files of other instances than `instances` are deleted: their signs are not in the journal, because a crash
        prevented that. The next retrieval gets them again.

        Raises:
            StoreError: If a file can't be moved.
        """
        target = self.folder / place / study / series
        try:
            target.mkdir(parents=True, exist_ok=True)
            for other in (INCOMING, IMAGES, QUARANTINE):
                folder = self.folder / other / study / series
                for path in sorted(folder.glob("*.dcm")):
                    if path.stem not in instances:
                        path.unlink()
                    elif other != place:
                        os.replace(path, target / path.name)
                for empty in (folder, folder.parent) if other != place else ():
                    with contextlib.suppress(OSError):  # other files or series are still there
                        empty.rmdir()
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"Could not move files to '{target}': {error.strerror}. Permit writing there, then repeat the same "
                "command.",
                path=target,
                reason=error.strerror,
            ) from None

    def _incoming(self, record: InstanceRecord) -> Path:
        """Return the path of an instance of a series that is being retrieved."""
        return self.folder / INCOMING / record.study / record.series / f"{record.instance}.dcm"

    def _record(
        self, reference: InstanceReference, status: Status, *, reason: str = "", signs: tuple[str, ...] = ()
    ) -> InstanceRecord:
        """Return the journal's record of an instance."""
        return InstanceRecord(
            study=self._uid(reference.series.study_uid),
            series=self._uid(reference.series.series_uid),
            instance=self._uid(reference.instance_uid),
            status=status,
            reason=reason,
            signs=signs,
        )

    def _uid(self, uid: str) -> str:
        return self.pseudonyms.uid(uid)


@contextlib.contextmanager
def locked_store(folder: Path) -> Iterator[None]:
    """Create the folder of a store if it does not exist, and lock it within the block.

    Files that are created in the block can be read by their owner only.

    Raises:
        StoreError: If another process uses the store, or the folder can't be written.
    """
    with private_files(), contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_locked = stack.enter_context(hold_lock(folder / LOCK_FILE))
        except OSError as error:
            raise StoreError(
                "unwritable_file",
                f"The store '{folder}' can't be written: {error.strerror}. Change its permissions or choose another "
                "folder with --out.",
                path=folder,
                reason=error.strerror,
            ) from None
        if not is_locked:
            raise StoreError(
                "store_in_use",
                f"Another process writes to the store '{folder}'. Wait until it has finished.",
                path=folder,
            )
        yield


@contextlib.contextmanager
def open_store(
    folder: Path, pseudonyms: Pseudonyms, *, keep_characteristics: bool = False, keep_burned_in: bool = False
) -> Iterator[ImageStore]:
    """Create or continue a store, and lock it within the block.

    Args:
        folder: Folder of the store: new, empty, or a store.
        pseudonyms: Pseudonyms of the site.
        keep_characteristics: Whether to keep sex, age, size and weight.
        keep_burned_in: Whether series with signs of burned-in text may be used without a review.

    Raises:
        DataError: If the folder contains something else.
        SettingsError: If the store was made with another key or other settings.
        StoreError: If the folder can't be written or is in use.
    """
    settings = StoreFile(key=pseudonyms.fingerprint(), edition=EDITION, keep_characteristics=keep_characteristics)
    path = folder / StoreFile.NAME
    with locked_store(folder):
        for unfinished in folder.glob(f".{StoreFile.NAME}.*.tmp"):  # of a process that was killed
            unfinished.unlink()
        if path.exists():
            _check_settings(folder, StoreFile.read(path), settings)
            _delete_unfinished(folder)
        elif any(entry.name != LOCK_FILE for entry in folder.iterdir()):
            raise DataError(
                "folder_not_empty",
                f"'{folder}' is neither empty nor a store. Choose another folder with --out.",
                path=folder,
            )
        else:
            settings.write(path)
        yield ImageStore(folder, pseudonyms, keep_characteristics=keep_characteristics, keep_burned_in=keep_burned_in)


def _delete_unfinished(folder: Path) -> None:
    """Delete unfinished files of a process that was killed, from the store's folder and from ``incoming``."""
    with contextlib.suppress(OSError):  # a file that can't be deleted disturbs nothing
        for path in (*folder.glob(".*.tmp"), *(folder / INCOMING).glob("*/*/.*.tmp")):
            path.unlink()


def _check_settings(folder: Path, existing: StoreFile, settings: StoreFile) -> None:
    """Raise if a store was made with another key or other settings."""
    remedies = {
        "key": "The same patient would get two pseudonyms. Name the first key with --key, or choose another store.",
        "edition": "Use the version of medfl that made the store, or choose another store.",
        "keep_characteristics": "Repeat --keep-characteristics as in the first command, or choose another store.",
    }
    for name, remedy in remedies.items():
        if getattr(existing, name) != getattr(settings, name):
            raise SettingsError(
                "other_store_settings",
                f"The store '{folder}' was made with another setting '{name}'. {remedy}",
                path=folder,
                setting=name,
            )
