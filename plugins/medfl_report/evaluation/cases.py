"""Cases on which finished models are evaluated: images of a prepared site, or image files with a table of labels."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from medfl.data.datalists import DATALIST_FILE, SPLITS, Datalist, parse_datalist, read_datalist_bytes
from medfl.data.inference import ImageFiles
from medfl.data.ingest.columns.target_option import parse_target
from medfl.data.leaks import PlaceContents, contents_by_split, image_digests
from medfl.data.sites import SiteData, site_data, site_names
from medfl.errors import DataError, SettingsError
from medfl.records.calibration import Calibration
from medfl.utils.files import sha256_of
from medfl_report.cards.run_bundles import read_bundle_config
from medfl_report.evaluation.models import BundleTask

Split = Literal["test", "all"]
"""Images of a site that are evaluated: its test images, or the images of all splits."""


@dataclass(frozen=True)
class SiteCases:
    """Cases of a prepared site.

    Attributes:
        data: Data of the site; the evaluated cases are its test cases.
        contents: Keys of the evaluated images and patients.
        split: Evaluated split.
    """

    data: SiteData
    contents: PlaceContents
    split: Split


def site_folders(dataset_dir: Path) -> list[Path]:
    """Return the folders of the sites in a partitioned data set, or the folder itself if it is one site's folder.

    Args:
        dataset_dir: Folder of one site, or folder with one folder for each site.

    Raises:
        DataError: If there is no site.
    """
    if (dataset_dir / DATALIST_FILE).is_file():
        return [dataset_dir]
    return [dataset_dir / name for name in site_names(dataset_dir)]


def load_cases(folder: Path, task: BundleTask, split: Split) -> SiteCases:
    """Load the cases of a site, and check that they fit the model.

    Args:
        folder: Folder of the site.
        task: Configuration of the model's bundle.
        split: Images to evaluate.

    Raises:
        DataError: If data are missing or damaged, the site has no such images, or the learning problem, the classes or
            the shape of the images differ from the bundle's.
    """
    content = read_datalist_bytes(folder)
    datalist = parse_datalist(content, folder / DATALIST_FILE)
    if split == "all":
        records = [record for name in SPLITS for record in datalist.splits.get(name, [])]
        datalist = replace(datalist, splits={name: [] for name in SPLITS} | {"test": records})
    _check_class_count(folder, datalist, task)
    data = site_data(folder, content, datalist, task.objective, task.mean, task.std)
    _check_names(folder, data, task)
    if task.shape is not None and data.shape != task.shape:
        raise DataError(
            "different_shapes",
            f"expected images of shape {task.shape} (channels, then edges), as the model takes them, got {data.shape} "
            f"at '{folder}'. Prepare the images with the model's --size and channels.",
            path=folder,
            expected=list(task.shape),
            found=list(data.shape),
        )
    if not len(data.test):
        raise DataError(
            "no_images",
            f"expected test images in the data list of '{folder}', there are none. Add --split all to evaluate its "
            "images of all splits.",
            path=folder,
            split=split,
        )
    contents = contents_by_split(folder, replace(datalist, splits={"test": datalist.splits["test"]}))["test"]
    return SiteCases(data, contents, split)


def _check_class_count(folder: Path, datalist: Datalist, task: BundleTask) -> None:
    """Raise if a data list has another number of classes than the model."""
    if not (datalist.goal.has_class_labels and task.objective.has_class_labels):
        return  # loading the data compares the objectives
    if datalist.num_classes != task.objective.classes:
        raise DataError(
            "different_classes",
            f"expected {task.objective.classes} classes, as the model has them, got {datalist.num_classes} at "
            f"'{folder}'. Prepare the data with the classes of the model.",
            path=folder,
            expected=list(task.names) or task.objective.classes,
            found=datalist.num_classes,
        )


def _check_names(folder: Path, data: SiteData, task: BundleTask) -> None:
    """Raise if the classes or outputs of the data have other names than the model's, or another order."""
    names = data.classes if task.objective.has_class_labels else data.names
    if task.names and names and tuple(names) != task.names:
        raise DataError(
            "different_classes",
            f"expected the classes or outputs {', '.join(task.names)} in this order, as the model has them, got "
            f"{', '.join(names)} at '{folder}'. Prepare the data with the names and the order of the model.",
            path=folder,
            expected=list(task.names),
            found=list(names),
        )


# ---- image files with a table


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table with labels of image files.

    Attributes:
        image: Column with the path of the image file, relative to the folder of images.
        label: Column with the class.
        patient: Column with the patient; None if each image counts as one patient.
    """

    image: str
    label: str
    patient: str | None = None


@dataclass(frozen=True)
class LabelledImages:
    """Labels and patients of image files.

    Attributes:
        files: Path of each image relative to the folder of images.
        labels: Class name of each image.
        patients: Patient number of each image, from 0; None without a column of patients.
    """

    files: list[str]
    labels: list[str]
    patients: list[int] | None


@dataclass(frozen=True)
class PredictedFiles:
    """Predictions of a bundle's ``inference.json`` for the image files of a folder.

    Attributes:
        probabilities: Maps each file, relative to the folder, to its class probabilities.
        classes: Names of the classes.
        images: Images as the bundle reads them; None if the bundle reads files in its own way.
    """

    probabilities: Mapping[str, list[float]]
    classes: Sequence[str]
    images: ImageFiles | None = field(default=None, repr=False)

    def contents(self, files: Sequence[str]) -> PlaceContents | None:
        """Return the keys of some images; None if they can't be compared with prepared images."""
        if self.images is None:
            return None
        rows = {Path(self.images.name(row)).as_posix(): row for row in range(len(self.images))}
        digests = {digest for file in files for digest in image_digests(self.images.pixels(rows[file])[None])}
        return PlaceContents(set(), set(digests))


def class_column(target: str) -> str:
    """Return the column that the option ``--target`` of ``medfl evaluate`` names: ``class:COLUMN`` or ``COLUMN``.

    Raises:
        SettingsError: If the target is of another kind, or names several columns.
    """
    option = parse_target(target)
    if option.kind not in ("", "class") or len(option.words) != 1:
        raise SettingsError(
            "unsupported_target",
            f"A table of image files is scored by its classes, as in --target class:diagnosis; got '{target}'. For "
            "other targets prepare the images with `medfl prep folder` and give the folder of the site.",
            setting="target",
            kind=option.kind,
        )
    return option.words[0]


def read_labels(table: Path, columns: TableColumns) -> LabelledImages:
    """Return the labels and patients in a table.

    Raises:
        DataError: If a column is missing, a cell is empty, or an image has several rows.
    """
    from medfl.data.table import read_table

    rows = read_table(table)
    rows.require([column for column in (columns.image, columns.label, columns.patient) if column is not None])
    files = [Path(file).as_posix() for file in rows.column(columns.image)]
    if twice := [file for file, count in Counter(files).items() if count > 1]:
        raise DataError(
            "duplicate_image",
            f"expected one row for each image in '{table}', got several rows for {len(twice)} of them. Remove all but "
            "one of each.",
            path=table,
            count=len(twice),
        )
    labels = rows.column(columns.label)
    if columns.patient is None:
        return LabelledImages(files, labels, None)
    groups = rows.column(columns.patient)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return LabelledImages(files, labels, [numbers[group] for group in groups])


def choose_rows(labelled: LabelledImages, predicted: PredictedFiles, images: Path) -> list[int]:
    """Return the rows of the table whose images have predictions, after checking their labels.

    Args:
        labelled: Labels of images.
        predicted: Predictions for the images of the folder.
        images: Folder of images, for messages.

    Raises:
        DataError: If no image of the folder has a label, or a label is not one of the bundle's classes.
    """
    rows = [row for row, file in enumerate(labelled.files) if file in predicted.probabilities]
    if not rows:
        raise DataError(
            "no_labelled_images",
            f"expected images of the table in '{images}', but none of its {len(labelled.files)} paths is there. Paths "
            "are relative to the folder of images.",
            path=images,
            count=len(labelled.files),
        )
    if unknown := sorted({labelled.labels[row] for row in rows} - set(predicted.classes)):
        raise DataError(
            "unknown_class",
            f"expected the bundle's classes {', '.join(predicted.classes)} as labels, got {', '.join(unknown)}.",
            known=predicted.classes,
            found=unknown,
        )
    return rows


def predict_files(bundle: Path, images: Path, table: Path, image_column: str, out: Path) -> PredictedFiles:
    """Predict the image files of a folder with a bundle's ``inference.json``, which writes ``predictions.csv``.

    The predictions are the network's own, also if ``medfl calibrate`` has calibrated the bundle.

    Args:
        bundle: Folder of the bundle.
        images: Folder of image files.
        table: Table with one row for each image. A network that takes table columns beside an image reads them here.
        image_column: Column of the table with the path of the image file.
        out: Folder for the predictions.

    Raises:
        DataError: If there is no image in the folder, or a file can't be read.
    """
    from monai.bundle import ConfigParser, run

    from medfl.engine.runs.records import PREDICTIONS

    config = str(bundle / "configs" / "inference.json")
    places = {"bundle_root": bundle, "dataset_dir": images, "output_dir": out, "ckpt_dir": bundle / "models"}
    own_predictions = {"calibration": "$None"} if (bundle / "configs" / Calibration.NAME).is_file() else {}
    takes_table = "table" in read_bundle_config(bundle, "inference.json")
    features = {"table": str(table), "image_column": image_column} if takes_table else {}
    with warnings.catch_warnings():
        # MONAI warns that a configuration runs code, on every call; the help of the command says so once.
        warnings.filterwarnings("ignore", category=UserWarning, module="monai.bundle.scripts")
        run(config_file=config, **{name: str(path) for name, path in places.items()}, **own_predictions, **features)
    probabilities, classes = read_probabilities(out / PREDICTIONS)
    parser = ConfigParser()
    parser.read_config(config)
    parser.update(pairs={"bundle_root": str(bundle), "dataset_dir": str(images)} | features)
    files = parser.get_parsed_content("dataset")
    return PredictedFiles(probabilities, classes, files if isinstance(files, ImageFiles) else None)


def read_probabilities(path: Path) -> tuple[dict[str, list[float]], list[str]]:
    """Return the class probabilities of each case in a prediction file, and the names of the classes."""
    prefix = "probability_"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = [column for column in reader.fieldnames or () if column.startswith(prefix)]
        cases = {Path(row["case"]).as_posix(): [float(row[column]) for column in columns] for row in reader}
    return cases, [column.removeprefix(prefix) for column in columns]


def files_digest(images: Path, files: Sequence[str], labels: Sequence[str]) -> str:
    """Return a SHA-256 digest of images and their labels; an image is a file, or a folder of a DICOM series."""
    hashes = [_image_hash(images / file) for file in files]
    return hashlib.sha256(repr(sorted(zip(files, labels, hashes, strict=True))).encode()).hexdigest()


def _image_hash(path: Path) -> str:
    """Return the SHA-256 of a file, or over those of all files in a folder, in any order."""
    if not path.is_dir():
        return sha256_of(path)
    hashes = sorted(sha256_of(file) for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("".join(hashes).encode()).hexdigest()
