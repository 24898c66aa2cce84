"""How a study prepares a data set from its release: by the options of the data set, with paths below the source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfl.ingest.spec import DatasetSpec, path_fields
from pydantic import BaseModel, ConfigDict

from medfl.errors import DataError
from medfl.plugins import Registry
from medfl.settings import read_settings
from medfl_studies.records.study_files import PoolPreparation


class Prep(BaseModel):
    """What a study file says under ``prep``: the name of a data set and its options, ``{dataset: NAME, ...}``.

    Attributes:
        dataset: Its name, one of ``medfl list datasets``.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    dataset: str

    def options(self) -> dict[str, Any]:
        """The options of the data set, as the file has them."""
        return dict(self.model_extra or {})


def sized(prep: Prep, size: int | None, registry: Registry) -> Prep:
    """The same with images of a scale's size, if the data set has a size at all.

    Raises:
        PluginError: If there is no such data set.
    """
    if size is None or "size" not in registry.dataset(prep.dataset).model_fields:
        return prep
    return Prep(**(prep.model_dump() | {"size": size}))


def release_of(prep: Prep, source: Path, registry: Registry) -> DatasetSpec:
    """A data set with all its options, and its release in the source folder of the study.

    Raises:
        DataError: If the release, or a file that an option names, is not there.
        PluginError: If there is no such data set.
        SettingsError: If an option is unknown or impossible.
    """
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    options = prep.options()
    named = {key: source / str(options[key]) for key in path_fields(kind) if options.get(key) is not None}
    spec = _checked(prep, registry, {**kind.locate(source, options), **named})
    for key, path in named.items():
        if not path.exists():
            what = key.replace("_", " ")
            article = "an" if what[0] in "aeiou" else "a"
            raise DataError(
                "missing_path",
                f"expected {article} {what} at '{path}', there is none. Correct '{key}'.",
                path=path,
                setting=key,
            )
    return spec


def preparation_of(prep: Prep, registry: Registry) -> PoolPreparation:
    """Return the data set with all its options, without paths that the study does not name.

    Raises:
        PluginError: If there is no such data set.
        SettingsError: If an option is unknown or impossible.
    """
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    paths, options = path_fields(kind), prep.options()
    anywhere = {key: Path() for key in paths if kind.model_fields[key].is_required()}
    values = _checked(prep, registry, anywhere).model_dump(mode="json", exclude=set(paths))
    named = {key: str(options[key]) for key in paths if key in options}
    return PoolPreparation(dataset=prep.dataset, options=values | named)


def option_defaults(kind: type[DatasetSpec]) -> dict[str, Any]:
    """Return the optional options of a data set with their default values, as JSON."""
    options = {key: option.get_default() for key, option in kind.model_fields.items() if not option.is_required()}
    values: dict[str, Any] = kind.model_construct(**options).model_dump(mode="json")
    return values


def _checked(prep: Prep, registry: Registry, paths: Mapping[str, Path]) -> DatasetSpec:
    kind: type[DatasetSpec] = registry.dataset(prep.dataset)
    return read_settings(kind, {**prep.options(), **paths}, where=f"data set '{prep.dataset}' of the study")
