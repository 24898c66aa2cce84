"""Preparation of a study's data set from its release, with paths relative to the source folder.

A release is the data set as its authors publish it. The source folder holds the user's downloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from medfl.data.ingest.spec import DatasetSpec, path_fields
from medfl.errors import DataError
from medfl.plugins import Registry
from medfl.settings import read_settings
from medfl_studies.records.study_files import PoolPreparation


class PreparationSpec(BaseModel):
    """The entry ``prep`` of a study file: name and options of a data set, ``{dataset: NAME, ...}``.

    Attributes:
        dataset: Name of the data set, one of ``medfl list datasets``.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    """Configuration of pydantic: the object is immutable, and extra fields are the data set's options."""

    dataset: str

    def options(self) -> dict[str, Any]:
        """Options of the data set as the study file gives them."""
        return dict(self.model_extra or {})


def with_image_size(prep: PreparationSpec, size: int | None, registry: Registry) -> PreparationSpec:
    """Return the preparation with a scale's image size, or unchanged if the data set has no size.

    Raises:
        PluginError: If the data set is unknown.
    """
    if size is None or "size" not in registry.dataset(prep.dataset).model_fields:
        return prep
    return PreparationSpec(**(prep.model_dump() | {"size": size}))


def locate_release(prep: PreparationSpec, source: Path, registry: Registry) -> DatasetSpec:
    """Return a data set with all its options and the location of its release in the source folder.

    Raises:
        DataError: If the release, or a file that an option names, does not exist.
        PluginError: If the data set is unknown.
        SettingsError: If an option is unknown or not valid.
    """
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    options = prep.options()
    named = {key: source / str(options[key]) for key in path_fields(kind) if options.get(key) is not None}
    spec = _validate_options(prep, registry, {**kind.locate(source, options), **named})
    for key, path in named.items():
        if not path.exists():
            what = key.replace("_", " ")
            article = "an" if what[0] in "aeiou" else "a"
            raise DataError(
                "missing_path",
                f"expected {article} {what} at '{path}', found none. Correct '{key}'.",
                path=path,
                setting=key,
            )
    return spec


def resolve_preparation(prep: PreparationSpec, registry: Registry) -> PoolPreparation:
    """Return the record of a preparation: all options of the data set, without paths that the study does not name.

    Raises:
        PluginError: If the data set is unknown.
        SettingsError: If an option is unknown or not valid.
    """
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    paths, options = path_fields(kind), prep.options()
    anywhere = {key: Path() for key in paths if kind.model_fields[key].is_required()}
    values = _validate_options(prep, registry, anywhere).model_dump(mode="json", exclude=set(paths))
    named = {key: str(options[key]) for key in paths if key in options}
    return PoolPreparation(dataset=prep.dataset, options=values | named)


def option_defaults(kind: type[DatasetSpec]) -> dict[str, Any]:
    """Return a mapping from each option that has a default value to this value in JSON types."""
    options = {key: option.get_default() for key, option in kind.model_fields.items() if not option.is_required()}
    values: dict[str, Any] = kind.model_construct(**options).model_dump(mode="json")
    return values


def _validate_options(prep: PreparationSpec, registry: Registry, paths: Mapping[str, Path]) -> DatasetSpec:
    """Validate the options of a preparation and return the data set."""
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    return read_settings(kind, {**prep.options(), **paths}, where=f"data set '{prep.dataset}' of the study")
