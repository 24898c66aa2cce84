"""Base class of specs for releases of volumes with masks, which are brought onto one grid.

A spec contains the options of one data set and the methods that read it (`medfl.data.ingest.spec`). A release is the
set of files that a data set's publisher distributes. A case is a volume with its mask. A grid is the number of voxels
and the voxel size along each axis.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.masks import MASK_STRATA, add_masks, empty_mask_notes, separate_masks
from medfl.data.ingest.options import Positional, Spacing, read_edges
from medfl.data.ingest.pipeline import QUARANTINE
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec
from medfl.data.ingest.volumes import (
    GRID_TOLERANCE,
    VolumeFiles,
    VolumeGrid,
    grid_of,
    mixed_spacing_error,
    read_case,
    scale_entries,
    spacing_text,
)
from medfl.data.readers.image_reading import make_image_reading
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say, first_names

if TYPE_CHECKING:
    from medfl.data.transforms.frame import Frame

EDGE_DIVISOR = 16
"""Number of which each edge of an automatically chosen size is a multiple: networks halve an image up to four times."""


@dataclass(frozen=True)
class VolumeListing:
    """Metadata of the volumes before reading; lists have one entry for each case.

    Attributes:
        cases: Files of each case.
        numbers: Number of each case in the release's list of cases, for messages.
        patients: Identifier of each case's patient in the release; it is replaced by a generated one.
        facts: Entries to copy into the record of each case.
        structures: Names of the structures, by their mask numbers; the background is first.
        channels: Names of the modalities, at least one.
        splits: One of `medfl.data.datalists.SPLITS` for each case; None puts all cases into training.
        licence: Terms of use; None means the terms of the data set.
        extra: Further entries of the data list.
    """

    cases: Sequence[VolumeFiles]
    numbers: Sequence[int]
    patients: Sequence[str]
    facts: Sequence[Mapping[str, str]]
    structures: Sequence[str]
    channels: Sequence[str]
    splits: Sequence[str] | None = None
    licence: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _PlannedVolumes:
    """Metadata of the volumes, and their common voxel spacing in the array."""

    volumes: VolumeListing
    spacing: tuple[float, ...]


class VolumeSpec(ImageSpec):
    """Base class for data sets of volumes with masks, brought onto one grid (`medfl.data.transforms.frame.Frame`).

    Volumes are rotated to one orientation, their intensities are scaled, and they are padded to one size. No labelled
    voxel is cut off. All volumes have the same spacing, which is stored in the data list so that distances can be
    computed in millimetres.

    Class attributes:
        listing: Name of the file that lists the cases, for messages.
        numbered: Meaning of the case numbers in that file: ``case`` or ``table row``.
    """

    unreadable = "option skip_unreadable"
    """Treatment of volumes that can't be read: stop, unless the user gives ``--skip-unreadable``."""
    item = "volume"
    """Name of one item that is read, for messages."""
    listing: ClassVar[str]
    """Name of the file of the release that lists the cases, for messages."""
    numbered: ClassVar[str]
    """Meaning of the case numbers: ``case`` for the position in the list, or ``table row``."""

    source: Annotated[Path, Positional()]
    """Folder of the release."""
    size: Annotated[tuple[int, ...] | None, BeforeValidator(read_edges)] = None
    """Size of the volumes in the array, DxHxW; by default the smallest multiples of 16 that contain all volumes."""
    spacing: Spacing = None
    """Resample all volumes to these millimetres, as 1x1x2; by default they keep their spacing, which must be equal."""
    window: str | None = None
    """Map this window to [0, 1]: lung, mediastinum, soft-tissue, liver, bone or brain (CT), or LEVEL,WIDTH in the unit
    of the files; by default each volume is normalised by itself."""

    @abstractmethod
    def volumes(self, files: Any, say: Say) -> VolumeListing:
        """Return the metadata of the volumes before they are read; report to the user what they should know first.

        Args:
            files: Result of `find`.
            say: Receives warnings and notes.

        Raises:
            DataError: If a table is wrong.
        """

    def plan_reading(self, files: Any, say: Say) -> ReadPlan:
        """Plan the cases to read: all whose headers are readable. The headers decide the common size and spacing.

        Args:
            files: Result of `find`.
            say: Receives warnings and notes.

        Raises:
            DataError: If no case is readable, or the spacings differ and the user gave none.
            SettingsError: If size, spacing or window is not valid.
        """
        volumes = self.volumes(files, say)
        grids, missing = _read_grids(volumes)
        if not grids:
            raise DataError(
                "no_readable_image",
                self._unreadable_cases_message(missing, volumes),
                count=len(missing),
                total=len(volumes.cases),
            )
        spacing = self._spacing(grids)
        frame = self._frame(grids, spacing)
        say(f"note: volumes become {'x'.join(map(str, frame.size))} voxels of {spacing_text(spacing)} mm")
        return ReadPlan(
            items=[volumes.cases[place] for place in grids],
            places=list(grids),
            files=VolumeFiles.files,
            load=partial(read_case, frame=frame, structures=tuple(volumes.structures)),
            shape=(*frame.size, len(volumes.channels) + 1),
            dtype=np.float32,
            recipe={"data set": self.dataset, "frame": repr(frame), "structures": list(volumes.structures)},
            cells=lambda place: (volumes.numbers[place],),
            columns=(self.numbered.replace(" ", "_"),),
            missing=missing,
            release=_PlannedVolumes(volumes, spacing),
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message for unreadable cases if all are required; it lists their numbers."""
        return self._unreadable_cases_message(outcome.reasons, outcome.plan.release.volumes)

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Return the data list of the cases that were read. Warn about empty masks."""
        planned: _PlannedVolumes = outcome.plan.release
        volumes = planned.volumes
        subjects = number_subjects(volumes.patients)
        records: list[CaseRecord] = [
            make_record({"subject_id": subjects[place], **volumes.facts[place], **facts})
            for place, facts in zip(outcome.kept, outcome.facts, strict=True)
        ]
        datalist = self.make_datalist(
            MASK_STRATA,
            ", ".join(volumes.channels),
            records,
            None if volumes.splits is None else [volumes.splits[place] for place in outcome.kept],
            licence=volumes.licence,
            **volumes.extra,
            **scale_entries(make_image_reading(window=self.window)),
            exclusions=exclusions(dict(Counter(outcome.reasons.values()).most_common())),
        )
        for line in empty_mask_notes(datalist):
            say(line)
        return add_masks(datalist, volumes.structures, planned.spacing)

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Split the array in the output folder into an image array and a mask array, as the last step."""
        separate_masks(folder)

    def _frame(self, grids: Mapping[int, VolumeGrid], spacing: Sequence[float]) -> Frame:
        from medfl.data.transforms.frame import Frame  # MONAI takes seconds to import

        if self.size is not None and (len(self.size) != 3 or min(self.size) < 1):
            raise SettingsError(
                "setting_out_of_range",
                f"expected three edges >= 1 for --size, got {self.size}",
                setting="size",
                count=3,
                found=self.size,
            )
        window = make_image_reading(window=self.window).window
        shapes = np.array([grid.shape for grid in grids.values()])
        edges = np.array([grid.spacing for grid in grids.values()])
        largest = np.ceil(shapes * edges / np.array(spacing) - GRID_TOLERANCE if self.spacing else shapes).max(axis=0)
        size = self.size or tuple(int(-(-edge // EDGE_DIVISOR) * EDGE_DIVISOR) for edge in largest)
        return Frame(size, self.spacing, window)

    def _spacing(self, grids: Mapping[int, VolumeGrid]) -> tuple[float, ...]:
        """Return the common spacing in the array.

        Raises:
            DataError: If the volumes differ in spacing and the user gave none.
        """
        if self.spacing is not None:
            return self.spacing
        edges = np.array([grid.spacing for grid in grids.values()])
        lowest, highest = edges.min(axis=0), edges.max(axis=0)
        if (highest - lowest > GRID_TOLERANCE * highest).any():
            raise mixed_spacing_error(edges)
        return tuple(float(round(edge, 4)) for edge in np.median(edges, axis=0))

    def _unreadable_cases_message(self, reasons: Mapping[int, str], volumes: VolumeListing) -> str:
        """Return the error message for cases that can't be read."""
        numbers: dict[str, list[int]] = {}
        for place, reason in reasons.items():
            numbers.setdefault(reason.rstrip("."), []).append(volumes.numbers[place])
        listed = "; ".join(f"{self.numbered} {first_names(some)}: {reason}" for reason, some in numbers.items())
        return (
            f"{len(reasons)} of {len(volumes.cases)} cases of {self.listing} can't be used: {listed}. Repair these "
            f"files, or leave them out with --skip-unreadable; {QUARANTINE} then lists them."
        )


def _read_grids(volumes: VolumeListing) -> tuple[dict[int, VolumeGrid], dict[int, str]]:
    """Return the grid of each readable case by its place, and the reason for each unreadable one."""
    grids: dict[int, VolumeGrid] = {}
    missing: dict[int, str] = {}
    for place, case in enumerate(volumes.cases):
        try:
            grids[place] = grid_of(case, len(volumes.channels))
        except DataError as error:
            missing[place] = str(error)
    return grids, missing
