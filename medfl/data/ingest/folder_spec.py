"""Prepare the user's own image files and table of targets as a pooled data set (``medfl prep folder``).

The pooled data set contains no file names and no patient identifiers; patients get running numbers. Only the table
columns that the user names are kept: targets, sites and further columns.

A spec contains the options of one data set and the methods that read it (`medfl.data.ingest.spec`). A study is a file
that lists data sets, methods and seeds to compare.

The rules of `medfl.data.readers.images` apply to reading. The array is uint8 if all files have 8 bits per channel. If
any file is deeper (grey DICOM, NIfTI, 16 bits), the array is float32 in [0, 1] for all. On request, files are read like
the mammograms of published data sets (`medfl.data.readers.mammogram_image`); the array is then uint16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from medfl.data.arrays import FEATURES
from medfl.data.datalists import Datalist
from medfl.data.features.feature_encoding import COLUMNS, encode_rows
from medfl.data.ingest.columns.feature_options import FeatureOptions, describe_features
from medfl.data.ingest.columns.labels import LabelledRows, TableColumns, read_rows
from medfl.data.ingest.columns.mask_files import (
    DEFAULT_STRUCTURE,
    ImageAndMask,
    mask_name,
    read_image_and_mask,
)
from medfl.data.ingest.columns.target_option import spellings_text
from medfl.data.ingest.columns.target_values import NO_TARGET, describe_targets, with_objective
from medfl.data.ingest.folder_contents import FolderContents, image_records
from medfl.data.ingest.folder_format import check_resampled, choose_format, common_spacing, inspect_images, read_row
from medfl.data.ingest.image_folder import ImageFolder
from medfl.data.ingest.masks import add_masks, empty_mask_notes, separate_masks, structure_notes
from medfl.data.ingest.options import OneOf, Positional, Spacing, Words, read_edges, size_text
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions, unreadable_rows_message
from medfl.data.ingest.spec import ImageSpec
from medfl.data.ingest.volumes import (
    MASK_RESAMPLED_KEY,
    VolumeFiles,
    grid_of,
    mixed_spacing_error,
    read_case,
    scale_entries,
)
from medfl.data.readers.dicom_identity import IDENTITY_CHECKS
from medfl.data.readers.dicom_intent import report_intents
from medfl.data.readers.dicom_series import ImageSource, source_files
from medfl.data.readers.image_reading import DEFAULT_READING, PLANES, SCALES, ImageReading, make_image_reading
from medfl.data.readers.mammogram_image import reading_entries
from medfl.data.readers.volumes import voxel_edges
from medfl.data.table import read_table, row_list
from medfl.errors import DataError, SettingsError
from medfl.records.feature_columns import FeatureColumns
from medfl.utils.text import Say, visible

NO_GROUPS_WARNING = (
    "warning: without --group-column each image counts as a patient of its own: "
    "images of one patient may then be at several sites and in several splits"
)
"""Warning if the table has no patient column."""


def _serialize_size(size: tuple[int, ...]) -> int | str:
    return size_text(size)


class FolderSpec(FeatureOptions, ImageSpec):
    """Your own image files with a table of targets. File names and patient identifiers are not kept.

    --target states what is learned: class:diagnosis, multilabel:effusion,nodule (yes, no, or empty where a finding was
    not assessed), number:age[years], survival:months[months],death, or mask:mask_file. Give only the column where the
    table is clear. Masks can also be found by name: --mask-suffix _mask takes scan_mask.png for scan.png. Columns that
    look like names, dates or numbers of patients are refused.

    8-bit images keep their values and are only resized. DICOM, NIfTI and deeper images are scaled to [0, 1], each by
    its own range, ignoring padding, or by --window or --scale. The aspect ratio is not preserved. With --crop-breast,
    --align or --voi, mammograms are read as by medfl prep cbis_ddsm, for training and for inference.

    A cell of the image column may name the folder of a DICOM series, or its SeriesInstanceUID, StudyInstanceUID,
    AccessionNumber or PatientID, so that no file needs a new name; the slices then become a volume. With several series
    in a folder or study, choose one with --plane, --series-modality and --series-description, for example --plane axial
    --window lung --size 96x96x32. Volumes with masks are not resized but padded to --size. They keep their spacing, or
    are resampled to --spacing. A mask on another grid is resampled to the grid of its image.

    With --number and --category, networks take columns of the table as input beside the image, such as age and sex.

    Example: medfl prep folder images --table labels.csv --image-column file --target class:diagnosis --group-column
    patient --site-column hospital --size 64 --out data/own
    """

    dataset = "folder"
    """Name of the data set, as users type it after ``medfl prep``."""
    unreadable = "option skip_unreadable"
    """Treatment of images that can't be read: stop, unless the user gives ``--skip-unreadable``."""
    terms = ""
    """Terms of use; empty because the user states them with `licence`."""
    citation = ""
    """Publication to cite; empty because the user's own images have none."""

    images: Annotated[Path, Positional()]
    """Folder of the image files: PNG, JPEG, TIFF, DICOM, NIfTI, NRRD, MHA, ..."""
    table: Path
    """CSV or TSV file with one row for each image."""
    image_column: str
    """Column with the path of the file or of a DICOM series' folder, relative to IMAGES, or with a UID, AccessionNumber
    or PatientID."""
    size: Annotated[tuple[int, ...], BeforeValidator(read_edges), PlainSerializer(_serialize_size)]
    """Size of the images in the array: 224, 224x160 (HxW) or 64x64x32 (DxHxW)."""
    target: str | None = None
    """What is learned, and its columns: KIND:COLUMN,... with the kinds class, multilabel, number, survival and mask."""
    mask_suffix: str | None = None
    """Suffix of the mask files' names, instead of --target: _mask takes scan_mask.png as mask of scan.png."""
    structures: Words = (DEFAULT_STRUCTURE,)
    """Names of the structures in the masks, in the order of their values from 1; in DICOM masks, names of segments."""
    channels: int | None = None
    """Number of channels, 1 or 3; by default 3 if any image is in colour."""
    crop_breast: bool = False
    """Crop whole mammograms to the breast (needs the extra `mammography`)."""
    align: bool = False
    """Mirror right breasts, so that the chest wall is always on the left."""
    voi: bool = False
    """Apply the display window that a DICOM file contains."""
    deidentify_check: Annotated[str, OneOf(IDENTITY_CHECKS)] = "strip"
    """DICOM files that may identify the patient: strip keeps nothing of it, refuse stops."""
    window: str | None = None
    """Map this window to [0, 1]: lung, mediastinum, soft-tissue, liver, bone or brain (CT), or LEVEL,WIDTH in HU."""
    scale: Annotated[str, OneOf(SCALES)] = "range"
    """Without --window, scale each image by its range or percentiles (MR), or PET by SUV: range, percentiles, suv."""
    spacing: Spacing = None
    """Resample volumes, and their masks, to these millimetres, as 1x1x2.5, and pad or crop them to --size. The axes run
    from left to right, back to front and feet to head."""
    plane: Annotated[str | None, OneOf(PLANES)] = None
    """Of several DICOM series, take the one with slices in this plane: axial, coronal or sagittal."""
    series_modality: str | None = None
    """Of several DICOM series, take the one of this modality, such as CT."""
    series_description: str | None = None
    """Of several DICOM series, take the one whose description contains this regular expression; it is recorded."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Return the paths that a study does not name: none, because a study names folder and table itself."""
        return {}

    def column_names(self) -> TableColumns:
        """Return the column names of the table."""
        return self.table_columns(self.image_column, self.target)

    def reading(self) -> dict[str, bool] | None:
        """Return the reading options of mammograms (`READING`), or None if none is set."""
        reading = {"crop_breast": self.crop_breast, "align": self.align, "voi": self.voi}
        return reading if any(reading.values()) else None

    def image_reading(self) -> ImageReading:
        """Return the rule for reading images.

        Raises:
            SettingsError: If the options contradict each other, or the options of mammograms.
        """
        rule = make_image_reading(
            window=self.window,
            scale=self.scale,
            plane=self.plane or "",
            modality=self.series_modality or "",
            description=self.series_description or "",
            spacing=self.spacing,
        )
        if self.reading() is not None and rule != DEFAULT_READING:
            raise SettingsError(
                "conflicting_settings",
                "--crop-breast, --align and --voi read 2-D mammograms, which have no --window, --scale, --spacing "
                "or series. Leave out one group of options.",
                settings=["crop_breast", "align", "voi", "window", "scale", "spacing", "plane", "series_modality"],
            )
        return rule

    def named_after(self, out: Path) -> Self:
        """Return the spec with a name: the user's, or the name of the folder `out`."""
        return self.model_copy(update={"name": self.name or visible(out.absolute().name)})

    def title(self) -> str:
        """Return the data set's name: the user's, or ``folder``."""
        return self.name or self.dataset

    def credits(self) -> list[str]:
        """Return the lines about the terms of use that ``medfl prep`` shows first."""
        return [self.credit(self.title())]

    def find(self) -> tuple[LabelledRows, list[ImageSource | DataError]]:
        """Find the images: return the rows of the table, and the file or series of each, or why there is none.

        Raises:
            SettingsError: If not exactly one of --target and --mask-suffix is given.
            DataError: If the table or the files are not as expected.
        """
        if (self.target is None) == (self.mask_suffix is None):
            raise SettingsError(
                "missing_setting" if self.target is None else "incompatible_settings",
                f"expected the target of the images, by --target or --mask-suffix. {spellings_text()}",
                setting="target",
                settings=["target", "mask_suffix"],
            )
        choice = self.image_reading().series
        rows = read_rows(read_table(self.table), self.column_names())
        return rows, ImageFolder(self.images, choice).find(rows.images, rows.numbers)

    def find_masks(self, rows: LabelledRows, sources: Sequence[ImageSource | DataError]) -> dict[int, Path]:
        """Return the mask file of each row that has an image, by its place; empty if the target is no mask.

        Args:
            rows: Rows of the table.
            sources: Source of the image of each row.

        Raises:
            DataError: If a mask file is missing, or two rows name the same one.
            SettingsError: If the images are read as mammograms.
        """
        if rows.targets.kind != "mask":
            return {}
        if self.reading() is not None:
            raise SettingsError(
                "incompatible_settings",
                "masks need images that keep their grid. Leave out --crop-breast, --align and --voi.",
                settings=["target", "crop_breast", "align", "voi"],
            )
        present = {place: source for place, source in enumerate(sources) if not isinstance(source, DataError)}
        if self.mask_suffix is None:
            names = [rows.targets.masks[place] for place in present]
        else:
            names = [mask_name(rows.images[place], self.mask_suffix) for place in present]
        numbers = [rows.numbers[place] for place in present]
        try:
            located = ImageFolder(self.images).find(names, numbers)
        except DataError as error:
            raise DataError(error.code, f"masks: {error}", what="mask", **error.fields) from None
        masks = {place: mask for place, mask in zip(present, located, strict=True) if isinstance(mask, Path)}
        folders = [rows.numbers[place] for place in present if place not in masks]
        if folders:
            raise DataError(
                "unsupported_file",
                f"expected files as masks, got folders in {row_list(folders)}. Name the file of each mask.",
                what="mask",
                rows=folders,
            )
        same = [rows.numbers[place] for place, mask in masks.items() if mask in source_files(present[place])]
        if same:
            raise DataError(
                "image_is_mask",
                f"expected another file for the mask than for the image, got the same one in {row_list(same)}.",
                rows=same,
            )
        return masks

    def plan_reading(self, files: tuple[LabelledRows, list[ImageSource | DataError]], say: Say) -> ReadPlan:
        """Plan the images to read: all whose headers are readable. The headers decide the common format.

        Args:
            files: Result of `find`.
            say: Receives warnings and notes.

        Raises:
            DataError: If no image is readable, or a mask file is missing.
        """
        rows, sources = files
        rule = self.image_reading()
        if self.group_column is None:
            say(NO_GROUPS_WARNING)
        if rows.left_out:
            say(f"note: {rows.left_out} rows are left out: {NO_TARGET}")
        columns, features = self._read_features(rows, say)
        masks = self.find_masks(rows, sources)
        kinds, failed = inspect_images(sources, self.deidentify_check, say, rule)
        if not kinds:
            raise DataError(
                "no_readable_image",
                unreadable_rows_message(failed, len(sources), rows.numbers.__getitem__),
                count=len(failed),
                total=len(sources),
            )
        numbered = {rows.numbers[place]: kind for place, kind in kinds.items()}
        form = choose_format(numbered, self.size, self.channels, self.reading(), rule)
        if rule.spacing is not None:
            check_resampled(kinds.values(), form.size, rule.spacing, say)
        warnings = [*report_intents([kind.intent for kind in kinds.values()], say), *rows.targets.warnings]
        for sentence in rows.targets.warnings:
            say(f"note: {sentence}")
        plan = ReadPlan(
            items=[sources[place] for place in kinds],
            places=list(kinds),
            files=source_files,
            load=partial(read_row, form=form),
            shape=form.shape(),
            dtype=form.dtype,
            recipe={
                "data set": "folder",
                "dtype": str(form.dtype),
                "shape": form.shape(),
                "reading": form.reading,
                **({} if rule == DEFAULT_READING else {"image reading": rule.to_json()}),
            },
            cells=lambda place: (rows.numbers[place],),
            columns=("table_row",),
            missing=failed,
            release=FolderContents(rows, kinds, warnings, columns, features),
        )
        if not masks:
            return plan
        if len(form.size) == 3:
            return self._plan_volumes(plan, masks)
        return replace(
            plan,
            items=[ImageAndMask(image, masks[place]) for place, image in zip(plan.places, plan.items, strict=True)],
            files=ImageAndMask.files,
            load=partial(read_image_and_mask, form=form, structures=len(self.structures)),
            shape=(*form.size, form.channels + 1),
            recipe={**plan.recipe, "structures": len(self.structures)},
        )

    def _read_features(self, rows: LabelledRows, say: Say) -> tuple[FeatureColumns | None, np.ndarray | None]:
        """Return the typed columns that networks take beside the images, and their features; None without any.

        Raises:
            DataError: If a column is not as expected.
            SettingsError: If the targets are masks, or columns are named twice.
        """
        if not self.number and not self.category and self.columns is None:
            return None, None
        if rows.targets.kind == "mask":
            raise SettingsError(
                "incompatible_settings",
                "networks for masks take images only. Leave out --number, --category and --columns.",
                settings=["target", "number", "category", "columns"],
            )
        columns = self.feature_columns(rows, self.image_column, self.target)
        features = encode_rows(rows.table, columns, tuple(self.missing or ()))
        for line in describe_features(columns, features):
            say(line)
        return columns, features

    def _plan_volumes(self, plan: ReadPlan, masks: Mapping[int, Path]) -> ReadPlan:
        """Return the plan of volumes with masks: padded to one size, with one spacing, as bundles of volumes read them.

        Args:
            plan: Plan of the volumes without masks.
            masks: Maps the place of each volume to its mask file.

        Raises:
            DataError: If the volumes differ in spacing, or no mask lies on the grid of its image.
            SettingsError: If the scale is not that of such bundles.
        """
        from medfl.data.transforms.frame import Frame  # MONAI takes seconds to import

        rule = self.image_reading()
        if rule.scale not in ("range", "window"):
            raise SettingsError(
                "incompatible_settings",
                "volumes with masks are scaled by --window, or each to mean 0 and standard deviation 1. Leave "
                "out --scale.",
                settings=["scale", "target"],
            )
        if rule.spacing is None and common_spacing(plan.release.kinds.values()) is None:
            grids = [kind.grid for kind in plan.release.kinds.values() if kind.grid is not None]
            raise mixed_spacing_error(np.array([voxel_edges(grid.affine) for grid in grids]))
        cases = {place: VolumeFiles(item, masks[place]) for place, item in zip(plan.places, plan.items, strict=True)}
        missing = dict(plan.missing)
        for place, case in cases.items():
            try:
                grid_of(case, channels=1, resample_masks=True)
            except DataError as error:
                missing[place] = str(error)
        places = [place for place in plan.places if place not in missing]
        if not places:
            numbers = plan.release.rows.numbers
            raise DataError(
                "no_readable_image",
                unreadable_rows_message(missing, plan.count(), numbers.__getitem__),
                count=len(missing),
                total=plan.count(),
            )
        frame = Frame((plan.shape[0], plan.shape[1], plan.shape[2]), rule.spacing, rule.window)
        return replace(
            plan,
            items=[cases[place] for place in places],
            places=places,
            missing=missing,
            files=VolumeFiles.files,
            load=partial(
                read_case,
                frame=frame,
                structures=("background", *self.structures),
                any_structure=self.structures == (DEFAULT_STRUCTURE,),
                resample_masks=True,
            ),
            shape=(*frame.size, 2),
            dtype=np.float32,
            recipe={"data set": "folder", "frame": repr(frame), "structures": list(self.structures)},
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message for unreadable images if all are required; it lists their table rows."""
        contents: FolderContents = outcome.plan.release
        return unreadable_rows_message(outcome.reasons, outcome.plan.count(), contents.rows.numbers.__getitem__)

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Return the data list of the images that were read.

        Raises:
            DataError: If a class has no readable image.
        """
        contents: FolderContents = outcome.plan.release
        rows, reading, targets = contents.rows, self.reading(), contents.rows.targets
        if targets.kind == "class":
            present = {targets.entries[place]["label"] for place in outcome.kept}
            missing = [name for label, name in enumerate(targets.groups) if label not in present]
            if missing:
                listed = ", ".join(f"'{name}'" for name in missing)
                raise DataError(
                    "class_without_images",
                    f"no readable image is left of the classes {listed}. Repair the files of these classes.",
                    classes=missing,
                )
        entries = self.image_reading().entries() if reading is None else reading_entries(reading)
        kinds = [contents.kinds[place] for place in outcome.kept]
        has_masks, warnings = targets.kind == "mask", contents.warnings
        spacing = self.image_reading().spacing or common_spacing(kinds, None if has_masks else outcome.plan.shape)
        if spacing is not None and not has_masks:
            entries |= {"spacing": list(spacing)}
        if has_masks and any(kind.grid is not None for kind in kinds):
            entries |= scale_entries(self.image_reading())
            if resampled := sum(MASK_RESAMPLED_KEY in facts for facts in outcome.facts):
                note = f"{resampled} of {len(kinds)} masks were resampled to the grid of their image (nearest voxel)"
                say(f"note: {note}")
                warnings = [*warnings, note]
        if contents.columns is not None:
            values = [column.to_json() for column in contents.columns.columns]
            entries |= {FEATURES: contents.columns.features, COLUMNS: values}
        records = image_records(contents, outcome)
        reasons = Counter(outcome.reasons.values())
        datalist = self.make_datalist(
            targets.groups,
            "not stated",
            records,
            [rows.splits[place] for place in outcome.kept],
            licence=self.licence,
            exclusions=exclusions({**dict(reasons.most_common()), NO_TARGET: rows.left_out}),
            warnings=warnings,
            **targets.extra,
            **entries,
        )
        if has_masks:
            for line in (*empty_mask_notes(datalist), *structure_notes(datalist, self.structures)):
                say(line)
            return add_masks(datalist, ("background", *self.structures), spacing)
        for line in describe_targets(targets, records):
            say(line)
        return with_objective(datalist, targets.objective)

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Split the array in `folder` into images and masks if there are any, and write the file of typed columns."""
        if datalist.mask_array:
            separate_masks(folder)
        columns = outcome.plan.release.columns
        if columns is not None:
            columns.write(folder / FeatureColumns.NAME)
