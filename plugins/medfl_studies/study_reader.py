"""Read a study file at a scale and check it. Messages on unknown names suggest the nearest known name.

A scale is a named variant of a study in its file, for example with fewer rounds or smaller images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from medfl.errors import SettingsError, did_you_mean
from medfl.settings import read_settings
from medfl.utils.nested import iterate_strings
from medfl.utils.strict_yaml import read_yaml
from medfl_report.claims import CLAIMABLE
from medfl_studies.schema import FULL_SCALE, DataSet, RowChange, Study, StudyRow, StudyScale, slug

RESERVED_SETTINGS = ("bundle_root", "dataset_dir", "output_dir", "method", "method_args", "metrics", "seed")
"""Options of a run that the study sets itself, so that a study file must not set them."""


def read_study(
    path: Path, scale: str = FULL_SCALE, seeds: int | list[int] | None = None, data: Sequence[str] = ()
) -> Study:
    """Read a study file at a scale.

    Args:
        path: Study file.
        scale: Name of one of its scales; ``full`` leaves the file unchanged.
        seeds: Number of seeds that replaces the file's seeds, >= 1, or a list of seeds.
        data: Names of the data sets to use; empty means all.

    Raises:
        SettingsError: If the file or the scale is not valid; the message lists all problems of a kind at once.
    """
    study = read_settings(Study, read_yaml(path, "study file"), f"the study '{path}'")
    if FULL_SCALE in study.scales:
        raise SettingsError(
            "reserved_name",
            f"A scale of the study '{path}' is called '{FULL_SCALE}', which means the unchanged file. Rename it.",
            what="scale",
            name=FULL_SCALE,
            path=path,
        )
    if scale != FULL_SCALE and scale not in study.scales:
        raise SettingsError(
            "unknown_choice",
            f"The study '{path}' has no scale '{scale}'. {did_you_mean(scale, [FULL_SCALE, *study.scales])}",
            what="scale",
            choice=scale,
            path=path,
        )
    for name in data:
        if name not in study.data:
            raise SettingsError(
                "unknown_choice",
                f"The study '{path}' has no data set '{name}'. {did_you_mean(name, study.data)}",
                what="data set",
                choice=name,
                path=path,
            )
    _check_names(study)
    chosen = study.scales.get(scale, StudyScale())
    rows = _apply_scale(study.rows, chosen.methods)
    seed_choice = study.seeds if chosen.seeds is None else chosen.seeds
    study = study.model_copy(
        update={
            "settings": study.settings | chosen.settings,
            "seeds": seed_choice if seeds is None else seeds,
            "data": {
                name: _with_image_size(part, chosen.size)
                for name, part in study.data.items()
                if not data or name in data
            },
            "rows": rows,
            "scales": {},
        }
    )
    _check_seeds(study)
    _check_options(study)
    return study


def choose_seeds(number: int | None, seeds: Sequence[int] | None) -> int | list[int] | None:
    """Return the seeds that a user chose with the options ``--seeds`` and ``--seed``; None for the study's seeds.

    Args:
        number: Number of seeds, >= 1.
        seeds: Single seeds.

    Raises:
        SettingsError: If both are given.
    """
    if number is not None and seeds:
        raise SettingsError(
            "incompatible_settings",
            f"Expected either --seeds N, for the seeds 0 to N-1, or --seed for single seeds, got --seeds {number} and "
            f"{' '.join(f'--seed {seed}' for seed in seeds)}.",
            settings=["seeds", "seed"],
        )
    return list(seeds) if seeds else number


def _with_image_size(data: DataSet, size: int | None) -> DataSet:
    """Return the data set with the image size of a scale."""
    return data if size is None else data.model_copy(update={"size": size})


def _apply_scale(rows: dict[str, StudyRow], changes: dict[str, RowChange]) -> dict[str, StudyRow]:
    """Return the rows with a scale's changes for their methods."""
    known = {row.method for row in rows.values()}
    for method in changes:
        if method not in known:
            raise SettingsError(
                "unknown_choice",
                f"A scale changes the method '{method}', which no row uses. {did_you_mean(method, known)}",
                what="method",
                choice=method,
                place="scales",
            )
    return {name: row.changed(changes.get(row.method)) for name, row in rows.items()}


def _check_names(study: Study) -> None:
    """Raise SettingsError if a name in the study refers to no row, data set or measure."""
    _check_slugs("rows", study.rows)
    _check_slugs("data", study.data)
    if study.baseline is not None and study.baseline not in study.rows:
        raise SettingsError(
            "unknown_choice",
            f"The baseline '{study.baseline}' is not a row of the study. {did_you_mean(study.baseline, study.rows)}",
            what="baseline",
            choice=study.baseline,
        )
    for name, row in study.rows.items():
        _check_known(f"rows.{name}.baseline", [row.baseline] if row.baseline else [], study.rows, "row")
    for claim in study.claims:
        _check_known("claims", (claim.better, claim.than), study.rows, "row")
        if claim.measure not in CLAIMABLE:
            hint = did_you_mean(claim.measure, CLAIMABLE)
            raise SettingsError(
                "unknown_choice",
                f"'claims' names the measure '{claim.measure}', which can't be used in a claim. {hint}",
                what="measure",
                choice=claim.measure,
                place="claims",
            )
    for kind, attack in study.attacks.items():
        _check_known(f"attacks.{kind}", attack.rows, study.rows, "row")
        _check_known(f"attacks.{kind}", attack.data, study.data, "data set")
    for name, data in study.data.items():
        _check_known(f"data.{name}", data.rows, study.rows, "row")
    _check_known("tune.rows", study.tune.rows if study.tune else (), study.rows, "row")


def _check_seeds(study: Study) -> None:
    """Raise SettingsError unless the study has at least one seed and all seeds are distinct and >= 0."""
    seeds = study.seed_list()
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise SettingsError(
            "invalid_seeds",
            f"expected at least one seed, all distinct and >= 0, got {study.seeds!r}.",
            seeds=study.seeds,
        )


def _check_known(place: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise SettingsError if a name is not one of the known names."""
    for name in names:
        if name not in known:
            raise SettingsError(
                "unknown_choice",
                f"'{place}' names '{name}', which is not a {what} of the study. {did_you_mean(name, known)}",
                what=what,
                choice=name,
                place=place,
            )


def _check_slugs(part: str, names: Iterable[str]) -> None:
    """Raise SettingsError if a name can't be a folder name, or two names would share a folder."""
    names_by_slug: dict[str, str] = {}
    for name in names:
        short = slug(name)
        if not short:
            raise SettingsError(
                "invalid_name",
                f"'{part}': expected a name with a letter or digit, got '{name}'. Rename it.",
                name=name,
                place=part,
            )
        if short in names_by_slug:
            raise SettingsError(
                "folder_name_conflict",
                f"'{part}': '{names_by_slug[short]}' and '{name}' would share the folder '{short}'. "
                "Rename one of them.",
                names=[names_by_slug[short], name],
                folder=short,
                place=part,
            )
        names_by_slug[short] = name


def _check_options(study: Study) -> None:
    """Raise SettingsError for options that the study sets itself, and for values that MONAI would evaluate."""
    places = {"settings": study.settings, "without_weights": study.without_weights or {}}
    parts = ("settings", "method_args")
    places |= {f"rows.{name}.{part}": getattr(row, part) for name, row in study.rows.items() for part in parts}
    places |= {
        f"rows.{name}.splits.{split}.{part}": getattr(change, part)
        for name, row in study.rows.items()
        for split, change in row.splits.items()
        for part in parts
    }
    places |= {f"data.{name}.options": data.options for name, data in study.data.items()}
    for place, options in places.items():
        for key, value in options.items():
            if not place.endswith("method_args") and key in RESERVED_SETTINGS:
                raise SettingsError(
                    "reserved_setting",
                    f"'{place}.{key}': the study sets '{key}' for each run itself. Remove it.",
                    setting=key,
                    place=place,
                )
            if any(text.startswith(("$", "@", "%")) for text in iterate_strings(value)):
                raise SettingsError(
                    "expression_not_supported",
                    f"'{place}.{key}': expected a plain value, got an expression: {value!r}.",
                    setting=key,
                    place=place,
                )
