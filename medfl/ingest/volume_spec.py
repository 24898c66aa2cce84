"""A release of volumes with masks, on one grid: what all such data sets do alike; see `VolumeSpec`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from medfl.ingest.choice import Choice, Outcome, exclusions
from medfl.ingest.labels import number_subjects
from medfl.ingest.masks import STRATA, about_empty, take_apart, with_masks
from medfl.ingest.options import Commas, Positional, read_edges
from medfl.ingest.pipeline import QUARANTINE
from medfl.ingest.spec import ImageSpec
from pydantic import BeforeValidator

from medfl.data.datalists import Datalist
from medfl.errors import DataError, SettingsError
from medfl.ingest.volumes import NEAR, Case, Grid, grid_of, read_case
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say, first_names

if TYPE_CHECKING:
    from medfl.data.transforms.frame import Frame

MULTIPLE = 16
"""Edges of a size that nobody gave are multiples of it: networks want them, which halve an image four times."""


@dataclass(frozen=True)
class Volumes:
    """What is known of volumes before they are read; lists have an entry for each case.

    Attributes:
        cases: Their files.
        numbers: What messages call each case: a number in `VolumeSpec.listing`.
        patients: Who is who; names are made up for them.
        facts: What is kept of each case.
        structures: Names of the labels by their numbers, the background first.
        channels: Names of the modalities, at least one.
        splits: For each case one of `medfl.data.datalists.SPLITS`; None means that all are in training.
        licence: Terms of use; None means those of the data set.
        extra: What else is said of the data set.
    """

    cases: Sequence[Case]
    numbers: Sequence[int]
    patients: Sequence[str]
    facts: Sequence[Mapping[str, str]]
    structures: Sequence[str]
    channels: Sequence[str]
    splits: Sequence[str] | None = None
    licence: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Task:
    """Volumes, and the spacing of all of them in the array."""

    volumes: Volumes
    spacing: tuple[float, ...]


def _numbers(text: Any) -> Any:
    """Numbers of a text such as 1x1x2.5 or -100,240."""
    if not isinstance(text, str):
        return text
    words = [word for word in re.split(r"[x,\s]+", text.strip()) if word]
    try:
        return tuple(map(float, words))
    except ValueError:
        raise SettingsError(
            "invalid_value", f"expected numbers such as 1x1x2.5 or -100,240, got '{text}'", found=text
        ) from None


Spacing = Annotated[tuple[float, ...] | None, BeforeValidator(_numbers)]
"""Millimetres along each axis, as 1x1x2.5."""

Window = Annotated[tuple[float, ...] | None, BeforeValidator(_numbers), Commas()]
"""Two intensities, as -100,240."""


class VolumeSpec(ImageSpec):
    """A data set of volumes with masks, which come onto one grid (`medfl.data.transforms.frame.Frame`).

    They are turned to one orientation, scaled, and padded to one size; no labelled voxel is cut off. The spacing is the
    same for all and stands in the data list, so that distances are in millimetres.

    Class attributes:
        listing: The file that lists the cases, for messages.
        numbered: What it numbers: ``case`` or ``table row``.
    """

    unreadable = "option skip_unreadable"
    item = "volume"
    listing: ClassVar[str]
    numbered: ClassVar[str]

    source: Annotated[Path, Positional()]
    """The folder of the release."""
    size: Annotated[tuple[int, ...] | None, BeforeValidator(read_edges)] = None
    """Of the volumes in the array, DxHxW; by default the smallest multiples of 16 that hold all."""
    spacing: Spacing = None
    """Resample all to these millimetres, as 1x1x2; by default they stay as they are, which must be alike."""
    window: Window = None
    """Lowest and highest intensity that become 0 and 1, as -100,240; by default each volume has its own scale."""

    @abstractmethod
    def volumes(self, files: Any, say: Say) -> Volumes:
        """What is known before volumes are read; whatever users should know first is said here.

        Args:
            files: What `find` gave.
            say: Gets warnings and notes.

        Raises:
            DataError: If a table is wrong.
        """

    def choose(self, files: Any, say: Say) -> Choice:
        """All cases whose heads can be read; the heads tell the size."""
        volumes = self.volumes(files, say)
        grids, missing = _grids(volumes)
        if not grids:
            raise DataError(
                "no_readable_image", self._to_mend(missing, volumes), count=len(missing), total=len(volumes.cases)
            )
        spacing = self._spacing(grids)
        frame = self._frame(grids, spacing)
        say(f"note: volumes become {'x'.join(map(str, frame.size))} voxels of {_mm(spacing)} mm")
        return Choice(
            items=[volumes.cases[place] for place in grids],
            places=list(grids),
            files=Case.files,
            load=partial(read_case, frame=frame, structures=len(volumes.structures)),
            shape=(*frame.size, len(volumes.channels) + 1),
            dtype=np.float32,
            recipe={"data set": self.dataset, "frame": repr(frame), "structures": list(volumes.structures)},
            cells=lambda place: (volumes.numbers[place],),
            columns=(self.numbered.replace(" ", "_"),),
            missing=missing,
            release=_Task(volumes, spacing),
        )

    def incomplete(self, outcome: Outcome) -> str:
        """Which cases of the list can't be read."""
        return self._to_mend(outcome.reasons, outcome.choice.release.volumes)

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        task: _Task = outcome.choice.release
        volumes = task.volumes
        subjects = number_subjects(volumes.patients)
        records: list[CaseRecord] = [
            make_record({"subject_id": subjects[place], **volumes.facts[place], **facts})
            for place, facts in zip(outcome.kept, outcome.facts, strict=True)
        ]
        made = self.make_datalist(
            STRATA,
            ", ".join(volumes.channels),
            records,
            None if volumes.splits is None else [volumes.splits[place] for place in outcome.kept],
            licence=volumes.licence,
            **volumes.extra,
            intensities=f"window {self.window} to [0, 1]" if self.window else "each channel of a volume: mean 0, SD 1",
            window=self.window,
            exclusions=exclusions(dict(Counter(outcome.reasons.values()).most_common())),
        )
        for line in about_empty(made):
            say(line)
        return with_masks(made, volumes.structures, task.spacing)

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """Take volumes and masks apart."""
        take_apart(folder)

    def _frame(self, grids: Mapping[int, Grid], spacing: Sequence[float]) -> Frame:
        from medfl.data.transforms.frame import Frame  # MONAI takes seconds to import

        for what, values, count in (("size", self.size, 3), ("spacing", self.spacing, 3), ("window", self.window, 2)):
            if values is not None and (len(values) != count or (what != "window" and min(values) <= 0)):
                raise SettingsError(
                    "setting_out_of_range",
                    f"expected {count} numbers for --{what}, above 0 if they are lengths, got {values}",
                    setting=what,
                    count=count,
                    found=values,
                )
        if self.window is not None and self.window[0] >= self.window[1]:
            raise SettingsError(
                "reversed_range",
                f"expected the lower end first in --window, got {self.window}.",
                setting="window",
                found=self.window,
            )
        shapes = np.array([grid.shape for grid in grids.values()])
        edges = np.array([grid.spacing for grid in grids.values()])
        largest = np.ceil(shapes * edges / np.array(spacing) - NEAR if self.spacing else shapes).max(axis=0)
        size = self.size or tuple(int(-(-edge // MULTIPLE) * MULTIPLE) for edge in largest)
        return Frame(size, self.spacing, None if self.window is None else (self.window[0], self.window[1]))

    def _spacing(self, grids: Mapping[int, Grid]) -> tuple[float, ...]:
        """The spacing that all have in the array."""
        if self.spacing is not None:
            return self.spacing
        edges = np.array([grid.spacing for grid in grids.values()])
        lowest, highest = edges.min(axis=0), edges.max(axis=0)
        if (highest - lowest > NEAR * highest).any():
            raise DataError(
                "mixed_spacing",
                f"expected volumes of one spacing, got {_mm(lowest)} to {_mm(highest)} mm. Have them resampled: "
                f"--spacing {_mm(np.median(edges, axis=0))} is the median.",
                minimum=lowest.tolist(),
                maximum=highest.tolist(),
            )
        return tuple(float(round(edge, 4)) for edge in np.median(edges, axis=0))

    def _to_mend(self, reasons: Mapping[int, str], volumes: Volumes) -> str:
        """What to say of cases that can't be read."""
        numbers: dict[str, list[int]] = {}
        for place, reason in reasons.items():
            numbers.setdefault(reason.rstrip("."), []).append(volumes.numbers[place])
        listed = "; ".join(f"{self.numbered} {first_names(some)}: {reason}" for reason, some in numbers.items())
        return (
            f"{len(reasons)} of {len(volumes.cases)} cases of {self.listing} can't be used: {listed}. Mend these "
            f"files, or leave them out with --skip-unreadable; {QUARANTINE} then lists them."
        )


def _grids(volumes: Volumes) -> tuple[dict[int, Grid], dict[int, str]]:
    """The grid of each case by its place, and why others have none."""
    grids: dict[int, Grid] = {}
    missing: dict[int, str] = {}
    for place, case in enumerate(volumes.cases):
        try:
            grids[place] = grid_of(case, len(volumes.channels))
        except DataError as error:
            missing[place] = str(error)
    return grids, missing


def _mm(edges: Sequence[float] | np.ndarray) -> str:
    return "x".join(f"{edge:.4g}" for edge in edges)
