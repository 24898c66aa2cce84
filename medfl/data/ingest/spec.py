"""What a data set is made with: its options, as one frozen model, and what is read for it.

The command ``medfl prep NAME``, the keys of a study file (``prep: {dataset: NAME, ...}``) and the Python call
``prepare(HAM10000(source=...), out)`` all come from the fields of a `DatasetSpec`. A field is an option: its type, its
default and its bounds are those of the option, and the docstring below it is the help. `medfl.ingest.prepare` does what
is the same for all data sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from medfl.data.datalists import SPLITS, Datalist
from medfl.errors import DataError
from medfl.ingest.checkpoint import ARRAY
from medfl.ingest.choice import Choice, Outcome
from medfl.ingest.pipeline import QUARANTINE
from medfl.records.datalist import CaseRecord, Exclusion, make_record
from medfl.utils.text import Say, describe_counts


class DatasetSpec(BaseModel, ABC):
    """The options of a data set; its docstring is the help of its command. `ImageSpec` or `WholeSpec` is the base.

    Class attributes:
        dataset: What users type.
        unreadable: What is done about images that are missing or can't be read. ``leave out``: always listed in
            ``quarantine.csv``. ``option require_complete``: that, unless the user wants all. ``option
            skip_unreadable``: they stop the work, unless the user wants to leave them out.
        parallel: Whether several processes read.
        item: What one of the things that are read is called.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    dataset: ClassVar[str]
    unreadable: ClassVar[Literal["leave out", "option require_complete", "option skip_unreadable"]] = "leave out"
    parallel: ClassVar[bool] = True
    item: ClassVar[str] = "image"

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Where a release lies in the source folder of a study.

        Args:
            top: The source folder.
            options: What the study says; fields that are paths are relative to `top`.

        Returns:
            Values for fields that are paths and that the study does not name.

        Raises:
            DataError: If it is not there.
        """
        return {"source": folder_of(top, cls.dataset)}

    def inputs(self) -> list[Path]:
        """What is read and must not be replaced by what is written: by default all fields that are paths."""
        return [value for name in path_fields(type(self)) if (value := getattr(self, name)) is not None]

    def look(self) -> object:
        """List the files of the release, so that what is missing is said before anything is made.

        Raises:
            DataError: If the release is not as expected.
        """
        return None


class WholeSpec(DatasetSpec):
    """A data set that is made in a way of its own, without reading a file for each of its images."""

    @abstractmethod
    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set; the arguments are those of `medfl.ingest.prepare.prepare`."""


class ImageSpec(DatasetSpec):
    """A data set whose images are read from files: in parallel, resumable, with bad files left out and named.

    Class attributes:
        terms: Terms of use.
        citation: What users of the data are asked to cite.
    """

    terms: ClassVar[str]
    citation: ClassVar[str]

    def title(self) -> str:
        """The name of the data set that is made with these options."""
        return self.dataset

    def named_after(self, out: Path) -> Self:
        """The same options, completed by the folder that is written: by default they do not depend on it."""
        return self

    def credits(self) -> list[str]:
        """What is said first: terms of use and citation."""
        return [f"{self.title()}: licence {self.terms}", f"Please cite: {self.citation}"]

    def counted(self) -> str:
        """What is read, for progress."""
        return f"{self.item}s"

    @abstractmethod
    def find(self) -> Any:
        """The files of the release.

        Raises:
            DataError: If they are not as expected.
        """

    def look(self) -> object:
        """List the files."""
        return self.find()

    @abstractmethod
    def choose(self, files: Any, say: Say) -> Choice:
        """Read the tables and choose what is read; whatever users should know first is said here.

        Args:
            files: What `find` gave.
            say: Gets warnings and notes.

        Raises:
            DataError: If a table is wrong, or nothing can be read.
        """

    def left_out(self, outcome: Outcome, listed: int) -> list[str]:
        """What to warn of where images are left out, with `listed` lines in ``quarantine.csv``.

        Raises:
            DataError: If they are too many.
        """
        count = f"{listed} images"
        if self.unreadable == "option skip_unreadable":
            count = f"{listed} of {outcome.choice.count()} images can't be read and"
        return [f"warning: {count} were left out: see {QUARANTINE}"]

    def drop(self, outcome: Outcome, say: Say) -> dict[int, str]:
        """Rows of the array that do not stay now that all are known, such as copies, and why: by default none.

        Args:
            outcome: What became of all images.
            say: Gets notes.
        """
        return {}

    @abstractmethod
    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read.

        Args:
            outcome: What became of all images.
            say: Gets warnings.

        Raises:
            DataError: If no image of a class is left.
        """

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """Last, change the array or write other files into the folder: by default nothing.

        Args:
            folder: That is written, with the array.
            outcome: What became of all images.
            datalist: Is written after this.
        """

    def incomplete(self, outcome: Outcome) -> str:
        """What to say where all images are required and some are left out; it is said before any is read if it can."""
        return (
            f"all {self.item}s are required, {len(outcome.reasons)} of {outcome.choice.count()} are missing or can't "
            f"be read: {describe_counts(outcome.reasons)}. Unpack the release again."
        )

    def none_read(self, outcome: Outcome) -> str:
        """What to say where no image can be read."""
        if self.unreadable == "option skip_unreadable":
            return self.incomplete(outcome)
        failed = [outcome.reasons[place] for place in outcome.choice.places]
        return (
            f"none of the {len(failed)} {self.counted()} can be read: {describe_counts(dict(enumerate(failed)))}. "
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
        """A data list of the array's images.

        Args:
            classes: Names of the classes, by their numbers.
            modality: How the images were taken.
            records: What is said of each row of the array: ``label``, ``subject_id``, and what else is kept.
            splits: For each row one of `medfl.data.datalists.SPLITS`; None means that all are in training.
            licence: Terms of use; None means `terms`.
            exclusions: Images that were left out.
            warnings: Sentences on the data set that a partition repeats.
            extra: What else is said of the data set, in this order, after the citation.
        """
        dealt: dict[str, list[CaseRecord]] = {split: [] for split in SPLITS}
        for row, (record, split) in enumerate(zip(records, splits or [SPLITS[0]] * len(records), strict=True)):
            dealt[split].append(make_record({"image": row, **record}))
        return Datalist(
            name=self.title(),
            image_array=ARRAY,
            num_classes=len(classes),
            labels={str(label): name for label, name in enumerate(classes)},
            modality=modality,
            licence=self.terms if licence is None else licence,
            splits=dealt,
            extra=({"citation": self.citation} if self.citation else {}) | extra,
            exclusions=tuple(exclusions),
            warnings=tuple(warnings),
        )


def path_fields(kind: type[DatasetSpec]) -> list[str]:
    """The fields of a data set that are paths, in their order."""
    return [name for name, option in kind.model_fields.items() if is_path(option)]


def is_path(option: FieldInfo) -> bool:
    """Whether a field is a path, or a path that may be left out."""
    return option.annotation in (Path, Path | None)


def folder_of(top: Path, name: str) -> Path:
    """A folder in the source folder of a study.

    Raises:
        DataError: If it is not there.
    """
    if not (top / name).is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder '{top / name}', there is none. Put the release there.",
            path=top / name,
        )
    return top / name


def folder_or_top(top: Path, *names: str) -> Path:
    """The first of some folders that is in the source folder of a study, or that itself if none is."""
    return next((top / name for name in names if (top / name).is_dir()), top)


def folder_with(top: Path, name: str, file: str) -> Path:
    """A folder in the source folder of a study, or that itself: the first one that holds a file.

    Raises:
        DataError: If none does.
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
