"""Where a site's own cases enter a configuration, and what a site's folder must hold for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from medfl.errors import DataError, SettingsError
from medfl_adopt.config import Config, base_name, is_expression
from medfl_adopt.expressions import Listing, list_files, paths, read_listing
from medfl_adopt.parts import Parts

Mode = Literal["one_list", "own_lists", "dataset_dir"]
"""``one_list``: training and validation come from one list, which the site's splits deal out. ``own_lists``: each has a
list of its own at the site. ``dataset_dir``: the data sets find their cases below ``dataset_dir`` themselves."""

DATASET_DIR = "dataset_dir"

PLAIN = ("Dataset", "CacheDataset", "PersistentDataset", "SmartCacheDataset", "LMDBDataset")
"""MONAI's data sets that apply transforms to each case of a list, and keep what comes out."""


@dataclass(frozen=True)
class Cases:
    """Where a site's cases enter.

    Attributes:
        mode: See `Mode`.
        train: Id that a site's training cases are laid over; None with the mode ``dataset_dir``.
        validation: Id that its validation cases are laid over; None where the bundle has no validation list.
        train_list: Where it is cut, the expression without cuts: of all cases (``one_list``) or of the training cases
            (``own_lists``). None where what stands at `train` is that list.
        validation_list: The same for the validation cases with ``own_lists``.
        test: Id of the list that the bundle's ``evaluate`` scores, where it is another one than validation's.
        test_list: The same for the test cases.
        cuts: Id of each expression that cuts a list by position, and how, for example ``[:-9]``.
        list_files: Files of the bundle that list cases: id of the path to the path within the bundle. A site has a file
            of the same name in its folder in their place.
        needs: What a site's folder must hold: patterns of paths in it.
        relative: Whether the lists come from `list_files` alone: paths in them begin at the site's folder.
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


def read_cases(config: Config, parts: Parts) -> Cases:
    """Find where a site's cases enter: ``train#dataset#data`` and ``validate#dataset#data``, or else ``dataset_dir``.

    Raises:
        SettingsError: If there are several lists that can't be told apart, or none that depends on ``dataset_dir`` or
            on a list file of the bundle, or a data set makes its cases in a way of its own.
    """
    train = _data_of(config, parts.train_dataset)
    validation = _data_of(config, parts.val_dataset) if parts.val_dataset else None
    used = [id_ for id_ in (train, validation) if id_] or [parts.train_dataset, *filter(None, [parts.val_dataset])]
    files = {key: path for id_ in used for key, path in list_files(config, id_).items()}
    for id_ in used:
        if not _is_of_site(config, id_):
            raise SettingsError(
                "site_independent_list",
                f"'{id_}' does not depend on '{DATASET_DIR}', so that every site would read the same cases: expected a "
                f"list of files below @{DATASET_DIR}, or one read from a file of the bundle (a site has one of its own "
                f"then). Write its paths so, for example as @{DATASET_DIR} + '/images'.",
                id=id_,
            )
    patterns = [path for id_ in used for path in paths(config, id_)]
    if train is None:
        _check_one_source(config, parts.train_dataset)
        patterns += [path for id_ in used for path in _decathlon_file(config, id_)]
    needs = tuple(dict.fromkeys([*patterns, *(Path(path).name for path in files.values())]))
    if train is None:
        return Cases("dataset_dir", list_files=files, needs=needs)
    _check_plain(config, [parts.train_dataset, *filter(None, [parts.val_dataset])])
    relative = not any(DATASET_DIR in config.reach(id_) for id_ in used)
    cases = Cases("own_lists", train, validation, list_files=files, needs=needs, relative=relative)
    first = _read(config, train)
    if validation is None:
        return replace(cases, mode="one_list", train_list=_uncut(first), cuts=tuple(dict.fromkeys(first.cuts)))
    second = _read(config, validation)
    cuts = tuple(dict.fromkeys(first.cuts + second.cuts))
    if first.expanded == second.expanded:
        return replace(cases, mode="one_list", train_list=_uncut(first), cuts=cuts)
    return replace(cases, train_list=_uncut(first), validation_list=_uncut(second), cuts=cuts)


def with_test(cases: Cases, config: Config, evaluate: Config, parts: Parts) -> Cases:
    """The same with the list that the bundle's ``evaluate`` scores, if that is another one than validation's.

    Args:
        cases: Of the training configuration.
        config: That.
        evaluate: The same with ``evaluate`` laid over it.
        parts: Of the training configuration.

    Raises:
        SettingsError: If the list can't be read.
    """
    id_ = _data_of(evaluate, parts.val_dataset) if parts.val_dataset else None
    if cases.validation is None or id_ is None or not _is_of_site(evaluate, id_):
        return cases
    test = _read(evaluate, id_)
    if test.expanded == _read(config, cases.validation).expanded:
        return cases
    return replace(cases, test=id_, test_list=_uncut(test), cuts=tuple(dict.fromkeys((*cases.cuts, *test.cuts))))


def check_folder(needs: Sequence[str], folder: Path, site: str) -> None:
    """Refuse a site's folder that lacks what the bundle reads.

    Args:
        needs: Patterns of paths in it, see `Cases.needs`.
        folder: The site's.
        site: Its name, for the message.

    Raises:
        DataError: Naming all that is missing at once.
    """
    if not folder.is_dir():
        raise DataError(
            "missing_folder",
            f"Site '{site}' has no folder: expected '{folder}', which the bundle gets as its dataset_dir.",
            site=site,
            path=folder,
        )
    missing = [pattern for pattern in needs if next(folder.glob(pattern), None) is None]
    if missing:
        raise DataError(
            "missing_file",
            f"The folder of site '{site}' lacks what the bundle reads: expected {', '.join(missing)} in '{folder}'. "
            "Lay the site's files there under these names, or links to them.",
            site=site,
            path=folder,
            expected=missing,
        )


def _is_of_site(config: Config, id_: str) -> bool:
    """Whether a list is another one at another site: of files in its folder, or of a list file in its folder."""
    return DATASET_DIR in config.reach(id_) or bool(list_files(config, id_))


def _check_plain(config: Config, datasets: Sequence[str]) -> None:
    """Refuse data sets that do more to a case of their list than to apply the transforms, which is all that medfl does.

    Raises:
        SettingsError: Naming the first.
    """
    for id_ in datasets:
        target = config.target(id_)
        if base_name(target) not in PLAIN or not (target in PLAIN or target.startswith("monai.data.")):
            raise SettingsError(
                "unsupported_dataset",
                f"'{config.follow(id_)}' is a '{target}', which makes cases of its list in a way of its own, as one "
                f"that cuts whole slides does: expected one of MONAI's that only apply transforms, {', '.join(PLAIN)}. "
                "Do in the transforms what it does.",
                id=config.follow(id_),
                found=target,
            )


def _read(config: Config, id_: str) -> Listing:
    """A list and its cuts.

    Raises:
        SettingsError: If parts of it are cut unlike, so that nobody can tell what belongs together.
    """
    listing = read_listing(config, id_)
    if listing.whole is None and is_expression(config.value(id_)):
        raise SettingsError(
            "invalid_expression",
            f"'{id_}' is no expression that can be read: expected Python as in '$[...]', got '{config.value(id_)}'.",
            id=id_,
        )
    kinds = sorted({cut for _, cut in listing.cuts})
    if len(kinds) > 1:
        raise SettingsError(
            "unlike_cuts",
            f"'{id_}' is put together from lists that are cut unlike: {', '.join(kinds)}. Nobody can tell which "
            "cases are for training and which for validation at another site. Write one list, cut in one place.",
            id=id_,
            cuts=kinds,
        )
    return listing


def _data_of(config: Config, dataset: str) -> str | None:
    """The id of a data set's list, where it has one."""
    return f"{dataset}#data" if config.child(dataset, "data") else None


def _decathlon_file(config: Config, dataset: str) -> list[str]:
    """What MONAI's ``DecathlonDataset`` reads below its root."""
    task = config.value(f"{dataset}#task")
    known = base_name(config.target(dataset)) == "DecathlonDataset" and isinstance(task, str) and task[:1] not in "$@"
    return [f"{task}/dataset.json"] if known else []


def _uncut(listing: Listing) -> str | None:
    return listing.whole if listing.cuts else None


def _check_one_source(config: Config, dataset: str) -> None:
    """Refuse a data set without a list of its own that is made of several that have one.

    Raises:
        SettingsError: If it is.
    """
    below = config.targets([dataset, *(config.reach(dataset) - {dataset})])
    lists = sorted(f"{id_}#data" for id_ in below if id_ != dataset and config.child(id_, "data"))
    if lists:
        raise SettingsError(
            "several_lists",
            f"'{dataset}' has no list 'data' of its own, but is made of {len(lists)} with one: {', '.join(lists)}. "
            "Nobody can tell which of them a site's cases belong to: expected one list at 'train#dataset#data'.",
            id=dataset,
            lists=lists,
        )
