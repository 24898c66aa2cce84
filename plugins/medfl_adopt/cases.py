"""Find the ids of a bundle's case lists, and the files that a site's folder must contain.

An id is the path of an entry in a bundle's configuration, such as ``train#dataset#data``. A cut is a slice of a list of
cases by position, such as ``[:-9]``. A run ignores the cuts, as each site has other cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from medfl.errors import DataError, SettingsError
from medfl_adopt.config import BundleConfig, base_name, is_expression
from medfl_adopt.expressions import CaseListExpression, find_site_paths, list_files, read_listing
from medfl_adopt.parts import PartIds

Mode = Literal["one_list", "own_lists", "dataset_dir"]
"""Form in which a bundle lists its cases.

* ``one_list``: training and validation cases come from one list, which the site splits.
* ``own_lists``: training and validation cases have separate lists at the site.
* ``dataset_dir``: the data sets find their cases in the folder ``dataset_dir`` themselves.
"""

DATASET_DIR = "dataset_dir"
"""Id of the folder of the cases in a bundle's configuration; each site replaces it by its own folder."""

SUPPORTED_DATASETS = ("Dataset", "CacheDataset", "PersistentDataset", "SmartCacheDataset", "LMDBDataset")
"""Names of MONAI's data sets that only apply transforms to each case of a list and may cache the result."""


@dataclass(frozen=True)
class CaseLayout:
    """Ids and files that define a site's cases.

    Attributes:
        mode: How the bundle lists its cases (`Mode`).
        train: Id of the list of training cases, which a site's training cases replace; None with the mode
            ``dataset_dir``.
        validation: Id of the list of validation cases, which a site's validation cases replace; None if the bundle has
            no such list.
        train_list: Expression of the list at `train` without cuts: of all cases (``one_list``) or of the training cases
            (``own_lists``). None if the list at `train` is not cut.
        validation_list: Expression of the validation list without cuts, with ``own_lists``; None if it is not cut.
        test: Id of the list that the bundle's configuration ``evaluate`` scores; None if that is the validation list.
        test_list: Expression of the test list without cuts; None if it is not cut.
        cuts: Pairs of the id of an expression that cuts a list by position, and the cut, for example ``[:-9]``.
        list_files: Maps ids to paths within the bundle, each of a file that lists cases. A file of the same name in a
            site's folder replaces the bundle's file.
        needs: Patterns of the files and folders that a site's folder must contain, as for ``glob``.
        relative: Whether the lists come from `list_files` alone; then paths in them are relative to the site's folder.
    """

    mode: Mode
    train: str | None = None
    validation: str | None = None
    train_list: str | None = None
    validation_list: str | None = None
    test: str | None = None
    test_list: str | None = None
    cuts: tuple[tuple[str, str], ...] = ()
    list_files: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    relative: bool = False


def read_cases(config: BundleConfig, parts: PartIds) -> CaseLayout:
    """Return the ids and files of a bundle that define the cases of a site.

    The cases come from the lists at ``train#dataset#data`` and ``validate#dataset#data``. If the data sets have no such
    lists, the cases come from the folder ``dataset_dir``.

    Args:
        config: Training configuration of the bundle.
        parts: Ids of the parts of the training configuration.

    Raises:
        SettingsError: If there are several lists that can't be distinguished, if no list depends on ``dataset_dir`` or
            on a list file of the bundle, or if a data set does more than apply transforms.
    """
    train = _find_list_id(config, parts.train_dataset)
    validation = _find_list_id(config, parts.val_dataset) if parts.val_dataset else None
    used = [id_ for id_ in (train, validation) if id_] or [parts.train_dataset, *filter(None, [parts.val_dataset])]
    files = {key: path for id_ in used for key, path in list_files(config, id_).items()}
    for id_ in used:
        if not _depends_on_site(config, id_):
            raise SettingsError(
                "site_independent_list",
                f"'{id_}' does not depend on '{DATASET_DIR}', so every site would read the same cases: expected a list "
                f"of files in @{DATASET_DIR}, or a list read from a file of the bundle (each site then has its own "
                f"file). Write its paths relative to the folder, for example as @{DATASET_DIR} + '/images'.",
                id=id_,
            )
    patterns = [path for id_ in used for path in find_site_paths(config, id_)]
    if train is None:
        _check_one_source(config, parts.train_dataset)
        patterns += [path for id_ in used for path in _decathlon_file(config, id_)]
    needs = tuple(dict.fromkeys([*patterns, *(Path(path).name for path in files.values())]))
    if train is None:
        return CaseLayout("dataset_dir", list_files=files, needs=needs)
    _check_datasets(config, [parts.train_dataset, *filter(None, [parts.val_dataset])])
    relative = not any(DATASET_DIR in config.reachable_ids(id_) for id_ in used)
    cases = CaseLayout("own_lists", train, validation, list_files=files, needs=needs, relative=relative)
    first = _read_list(config, train)
    if validation is None:
        return replace(
            cases, mode="one_list", train_list=_expression_without_cuts(first), cuts=tuple(dict.fromkeys(first.cuts))
        )
    second = _read_list(config, validation)
    cuts = tuple(dict.fromkeys(first.cuts + second.cuts))
    if first.expanded == second.expanded:
        return replace(cases, mode="one_list", train_list=_expression_without_cuts(first), cuts=cuts)
    return replace(
        cases, train_list=_expression_without_cuts(first), validation_list=_expression_without_cuts(second), cuts=cuts
    )


def add_test_list(cases: CaseLayout, config: BundleConfig, evaluate: BundleConfig, parts: PartIds) -> CaseLayout:
    """Return a case layout with the list that the bundle's configuration ``evaluate`` scores, its test cases.

    The layout is returned unchanged if that list is the validation list.

    Args:
        cases: Result of `read_cases`.
        config: Training configuration.
        evaluate: Training configuration overlaid with ``evaluate``.
        parts: Ids of the parts of the training configuration.

    Raises:
        SettingsError: If the list can't be read.
    """
    id_ = _find_list_id(evaluate, parts.val_dataset) if parts.val_dataset else None
    if cases.validation is None or id_ is None or not _depends_on_site(evaluate, id_):
        return cases
    test = _read_list(evaluate, id_)
    if test.expanded == _read_list(config, cases.validation).expanded:
        return cases
    return replace(
        cases, test=id_, test_list=_expression_without_cuts(test), cuts=tuple(dict.fromkeys((*cases.cuts, *test.cuts)))
    )


def check_folder(needs: Sequence[str], folder: Path, site: str) -> None:
    """Raise DataError if a site's folder lacks files that the bundle reads.

    Args:
        needs: Patterns of the files and folders that the site's folder must contain, as for ``glob``.
        folder: Folder of the site.
        site: Name of the site, for the message.

    Raises:
        DataError: If the folder or a file is missing; the message names all missing patterns.
    """
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"Site '{site}' has no folder: expected '{folder}', which the bundle uses as its dataset_dir.",
            site=site,
            path=folder,
        )
    missing = [pattern for pattern in needs if next(folder.glob(pattern), None) is None]
    if missing:
        raise DataError(
            "missing_file",
            f"The folder of site '{site}' lacks files that the bundle reads: expected {', '.join(missing)} in "
            f"'{folder}'. Put the site's files, or links to them, there under these names.",
            site=site,
            path=folder,
            expected=missing,
        )


def _depends_on_site(config: BundleConfig, id_: str) -> bool:
    """Return whether a list depends on the site: on files in its folder, or on a list file in its folder."""
    return DATASET_DIR in config.reachable_ids(id_) or bool(list_files(config, id_))


def _check_datasets(config: BundleConfig, datasets: Sequence[str]) -> None:
    """Check that data sets only apply transforms to the cases of their list, because medfl does no more.

    Raises:
        SettingsError: If a data set does more; the message names the first.
    """
    for id_ in datasets:
        target = config.target(id_)
        if base_name(target) not in SUPPORTED_DATASETS or not (
            target in SUPPORTED_DATASETS or target.startswith("monai.data.")
        ):
            raise SettingsError(
                "unsupported_dataset",
                f"'{config.follow(id_)}' is a '{target}', which may do more than apply transforms, for example cut "
                f"patches from whole-slide images: expected one of MONAI's data sets {', '.join(SUPPORTED_DATASETS)}. "
                "Move the additional steps into the transforms.",
                id=config.follow(id_),
                found=target,
            )


def _read_list(config: BundleConfig, id_: str) -> CaseListExpression:
    """Read a list and its cuts.

    Raises:
        SettingsError: If the expression can't be read, or its parts have different cuts.
    """
    listing = read_listing(config, id_)
    if listing.whole is None and is_expression(config.value(id_)):
        raise SettingsError(
            "invalid_expression",
            f"expected a Python expression such as '$[...]' at '{id_}', got '{config.value(id_)}'.",
            id=id_,
        )
    kinds = sorted({cut for _, cut in listing.cuts})
    if len(kinds) > 1:
        raise SettingsError(
            "unlike_cuts",
            f"'{id_}' consists of lists with different cuts: {', '.join(kinds)}. At another site it is unknown which "
            "cases are for training and which for validation. Write one list that is cut in one place.",
            id=id_,
            cuts=kinds,
        )
    return listing


def _find_list_id(config: BundleConfig, dataset: str) -> str | None:
    """Return the id of a data set's list, or None if it has no list."""
    return f"{dataset}#data" if config.child(dataset, "data") else None


def _decathlon_file(config: BundleConfig, dataset: str) -> list[str]:
    """Return the file that MONAI's ``DecathlonDataset`` reads, as a list; empty for other data sets."""
    task = config.value(f"{dataset}#task")
    known = base_name(config.target(dataset)) == "DecathlonDataset" and isinstance(task, str) and task[:1] not in "$@"
    return [f"{task}/dataset.json"] if known else []


def _expression_without_cuts(listing: CaseListExpression) -> str | None:
    """Return the expression without cuts, or None if the list is not cut."""
    return listing.whole if listing.cuts else None


def _check_one_source(config: BundleConfig, dataset: str) -> None:
    """Raise SettingsError for a data set without a list that is composed of several data sets with lists."""
    below = config.targets([dataset, *(config.reachable_ids(dataset) - {dataset})])
    lists = sorted(f"{id_}#data" for id_ in below if id_ != dataset and config.child(id_, "data"))
    if lists:
        raise SettingsError(
            "several_lists",
            f"'{dataset}' has no list 'data', but consists of {len(lists)} data sets with lists: {', '.join(lists)}. "
            "It is unknown which list a site's cases belong to: expected one list at 'train#dataset#data'.",
            id=dataset,
            lists=lists,
        )
