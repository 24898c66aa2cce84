"""Specs of data sets: the options of a data set as one frozen model, and its methods for reading a release.

A release is the set of files that a data set's publisher distributes. A study is a file that lists data sets, methods
and seeds to compare; its data sets are searched in one source folder.

The fields of a `DatasetSpec` define the command ``medfl prep NAME``, the keys of a study file (``prep: {dataset: NAME,
...}``) and the Python call ``prepare(HAM10000(source=...), out)``. A field is an option: its type, default and bounds
are the option's, and the docstring below it is the help text. `medfl.data.ingest.prepare` runs the steps that all data
sets share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from medfl.data.datalists import SPLITS, Datalist
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.pipeline import QUARANTINE
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, Exclusion, make_record
from medfl.utils.text import Say, describe_counts


class DatasetSpec(BaseModel, ABC):
    """Base class of all specs: the options of a data set. Derive from `ImageSpec` or `WholeSpec` instead.

    The docstring of a subclass is the help text of its command.

    Class attributes:
        dataset: Name of the data set, as users type it.
        unreadable: Treatment of images that are missing or can't be read. ``leave out``: always exclude them and list
            them in ``quarantine.csv``. ``option require_complete``: the same, unless the user requires all images.
            ``option skip_unreadable``: stop, unless the user asks to exclude them.
        parallel: Whether several processes can read, so that the command has the option ``--workers``.
        item: Name of one item that is read, in the singular, for messages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    """Settings of pydantic: specs are immutable, accept no unknown option, and take help texts from docstrings."""

    dataset: ClassVar[str]
    unreadable: ClassVar[Literal["leave out", "option require_complete", "option skip_unreadable"]] = "leave out"
    parallel: ClassVar[bool] = True
    item: ClassVar[str] = "image"

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release in the source folder of a study.

        Args:
            top: Source folder.
            options: Options of the data set in the study file; paths are relative to `top`.

        Returns:
            Maps the name of each field with a path that the study file leaves out to the path that was found.

        Raises:
            DataError: If the release does not exist.
        """
        return {"source": study_folder(top, cls.dataset)}

    @classmethod
    def pools_statistics(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the prepared values depend on statistics over several sites, such as a common mean.

        A study that leaves a site out refuses such data, because the other sites' values then depend on that site.

        Args:
            options: Options of the data set in the study file.
        """
        return False

    def inputs(self) -> list[Path]:
        """Return the paths that the output must not replace: by default the values of all path fields."""
        return [value for name in path_fields(type(self)) if (value := getattr(self, name)) is not None]

    def check_release(self) -> object:
        """Check the files of the release, so that missing files are reported before anything is written.

        Raises:
            DataError: If the release is not as expected.
        """
        return None


class WholeSpec(DatasetSpec):
    """Base class for data sets that implement the whole preparation themselves, without one file per image."""

    @abstractmethod
    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set; arguments as in `medfl.data.ingest.prepare.prepare`."""


class ImageSpec(DatasetSpec):
    """Base class for data sets that are read from image files: in parallel, resumable, excluding unreadable files.

    `medfl.data.ingest.prepare.prepare` calls `find`, `plan_reading`, `rows_to_drop`, `datalist` and `finish` in this
    order.

    Class attributes:
        terms: Terms of use.
        citation: Publication that users of the data are asked to cite.
    """

    terms: ClassVar[str]
    citation: ClassVar[str]

    def title(self) -> str:
        """Return the name of the data set, for the data list. By default the options do not change it."""
        return self.dataset

    def named_after(self, out: Path) -> Self:
        """Return a spec that names the data set after the output folder; by default return this spec unchanged."""
        return self

    def credits(self) -> list[str]:
        """Return the lines with terms of use and citation that ``medfl prep`` shows first."""
        return [f"{self.title()}: licence {self.terms}", f"Please cite: {self.citation}"]

    def item_plural(self) -> str:
        """Return the name of the items in the plural, for progress messages."""
        return f"{self.item}s"

    @abstractmethod
    def find(self) -> Any:
        """Find the files of the release.

        Returns:
            Any description of the files; it is passed to `plan_reading`.

        Raises:
            DataError: If the files are not as expected.
        """

    def check_release(self) -> object:
        """Check the files of the release, so that missing files are reported early; here by calling `find`."""
        return self.find()

    @abstractmethod
    def plan_reading(self, files: Any, say: Say) -> ReadPlan:
        """Read the tables and plan the images to read; report to the user what they should know before reading starts.

        Args:
            files: Result of `find`.
            say: Receives warnings and notes.

        Raises:
            DataError: If a table is wrong, or nothing can be read.
        """

    def exclusion_warnings(self, outcome: ReadOutcome, listed: int) -> list[str]:
        """Return warnings about excluded images.

        Args:
            outcome: Outcome of reading the images.
            listed: Number of lines in ``quarantine.csv``.

        Raises:
            DataError: If too many images are excluded.
        """
        count = f"{listed} images"
        if self.unreadable == "option skip_unreadable":
            count = f"{listed} of {outcome.plan.count()} images can't be read and"
        return [f"warning: {count} were left out: see {QUARANTINE}"]

    def rows_to_drop(self, outcome: ReadOutcome, say: Say) -> dict[int, str]:
        """Return rows to remove from the array now that all images are read, such as copies; by default none.

        Args:
            outcome: Outcome of reading the images.
            say: Receives notes.

        Returns:
            Maps each row to remove to the reason.
        """
        return {}

    @abstractmethod
    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Return the data list of the images that were read.

        Args:
            outcome: Outcome of reading the images.
            say: Receives warnings.

        Raises:
            DataError: If no image of a class is left.
        """

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Change the array or write further files into the output folder, as the last step; by default do nothing.

        Args:
            folder: Folder that is being written, with the array.
            outcome: Outcome of reading the images.
            datalist: Data list, which is written afterwards.
        """

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message for missing or unreadable images if all images are required.

        It is used before reading if images are missing by then, otherwise after reading.
        """
        return (
            f"all {self.item}s are required, {len(outcome.reasons)} of {outcome.plan.count()} are missing or can't "
            f"be read: {describe_counts(outcome.reasons)}. Unpack the release again."
        )

    def none_read_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if no image can be read."""
        if self.unreadable == "option skip_unreadable":
            return self.incomplete_message(outcome)
        failed = [outcome.reasons[place] for place in outcome.plan.places]
        return (
            f"none of the {len(failed)} {self.item_plural()} can be read: {describe_counts(dict(enumerate(failed)))}. "
            "Download them again."
        )

    def make_datalist(
        self,
        classes: Sequence[str],
        modality: str,
        records: Sequence[CaseRecord],
        splits: Sequence[str] | None = None,
        *,
        licence: str | None = None,
        exclusions: Sequence[Exclusion] = (),
        warnings: Sequence[str] = (),
        **extra: Any,
    ) -> Datalist:
        """Return a data list of the array's images.

        Args:
            classes: Class names, by label number.
            modality: Imaging modality.
            records: Record of each row of the array without its row number: ``label``, ``subject_id`` and further
                entries.
            splits: One of `medfl.data.datalists.SPLITS` for each row; None puts all rows into training.
            licence: Terms of use; None means `terms`.
            exclusions: Exclusions of images.
            warnings: Warnings about the data set, one sentence each; partitions repeat them.
            extra: Further entries of the data list, written in this order after the citation.
        """
        by_split: dict[str, list[CaseRecord]] = {split: [] for split in SPLITS}
        for row, (record, split) in enumerate(zip(records, splits or [SPLITS[0]] * len(records), strict=True)):
            by_split[split].append(make_record({"image": row, **record}))
        return Datalist(
            name=self.title(),
            image_array=ARRAY_FILE,
            num_classes=len(classes),
            labels={str(label): name for label, name in enumerate(classes)},
            modality=modality,
            licence=self.terms if licence is None else licence,
            splits=by_split,
            extra=({"citation": self.citation} if self.citation else {}) | extra,
            exclusions=tuple(exclusions),
            warnings=tuple(warnings),
        )


def path_fields(kind: type[DatasetSpec]) -> list[str]:
    """Return the names of a spec's fields that are paths, in their order."""
    return [name for name, option in kind.model_fields.items() if is_path(option)]


def is_path(option: FieldInfo) -> bool:
    """Return True if a field is a path, or an optional path."""
    return option.annotation in (Path, Path | None)


def study_folder(top: Path, name: str) -> Path:
    """Return the folder `name` in the source folder `top` of a study.

    Raises:
        DataError: If it does not exist.
    """
    if not (top / name).is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder '{top / name}', there is none. Put the release there.",
            path=top / name,
        )
    return top / name


def folder_or_top(top: Path, *names: str) -> Path:
    """Return the first of the named folders that exists in a study's source folder, or the source folder itself."""
    return next((top / name for name in names if (top / name).is_dir()), top)


def folder_with(top: Path, name: str, file: str) -> Path:
    """Return the folder `name` in a study's source folder if it contains a file, or else the source folder itself.

    Args:
        top: Source folder of the study.
        name: Name of a folder in it.
        file: Name of the file.

    Raises:
        DataError: If neither contains the file.
    """
    for folder in (top / name, top):
        if (folder / file).is_file():
            return folder
    raise DataError(
        "missing_file",
        f"expected '{file}' in '{top / name}' or '{top}', there is none. Put the release there, or give another "
        "--source.",
        file=file,
        folders=(top / name, top),
    )
