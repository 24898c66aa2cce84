"""Configuration of a bundle as text: files merged, macros expanded, references followed, nothing evaluated.

An id is the path of an entry, such as ``train#trainer``. A reference (``@id``) stands for the entry at another id. A
macro (``%file::id``) stands for a copy of an entry, possibly of another file. A component is an entry with a
``_target_``, the class or function that builds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfl.bundle.check.reading import SUFFIXES, id_of, inside, read_config, walk
from medfl.bundle.check.references import fill_macros, merged
from medfl.errors import SettingsError

MAX_MACRO_DEPTH = 10
"""Largest nesting depth of macros."""

PLAIN_REFERENCE = re.compile(r"\$?\s*@((?:\w|::)+)\s*")
"""Pattern of a value that is a single reference: ``@loss`` or ``$@loss``."""

LOAD_IMAGE = ("LoadImaged", "LoadImageD", "LoadImageDict")
"""MONAI's names of the transform that reads image files."""

COMMON_KEY = re.compile(r"\$\s*monai\.utils\.(?:enums\.)?CommonKeys\.(\w+)\s*")
"""Pattern of MONAI's constants for keys of a case; the key is the constant's name in lower case, such as ``image``."""


_MISSING = object()


class BundleConfig:
    """The configuration that MONAI would build from some files, before it is parsed.

    Ids are written with ``#``, as users write them.

    Args:
        contents: Contents of the files; each file overrides the files before it.
        metadata: Values that references below ``_meta_`` name.
        root: Folder of the bundle, in which macros may read files.

    Raises:
        SettingsError: If the contents can't be merged, or a macro can't be expanded.
    """

    def __init__(self, contents: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], root: Path) -> None:
        problems: list[str] = []
        code = "invalid_macro"
        try:
            parser = merged(contents, metadata)
            for _ in range(MAX_MACRO_DEPTH):
                fill_macros(parser, root, problems)
                if problems or not any(_is_macro(value) for _, value in walk(parser.get())):
                    break
        except RecursionError:
            code = "nested_too_deep"
            problems.append("its macros (%) exceed the maximum nesting depth")
        except ValueError as error:
            code = "conflicting_configs"
            problems.append(str(error))
        if problems:
            raise SettingsError(code, "; ".join(problems), path=root)
        self._content = parser.get()

    def __contains__(self, id_: str) -> bool:
        return self._lookup(id_) is not _MISSING

    def get(self, id_: str) -> Any:
        """Return the value at exactly this id, without following references; None if there is no value."""
        value = self._lookup(id_)
        return None if value is _MISSING else value

    def follow(self, id_: str) -> str:
        """Follow plain references from an id, and return the id at which a value is written.

        For example, ``train#trainer#loss_function`` leads to ``loss``. References among the parents are followed too,
        so ``train#dataset#data`` may lead to ``train_data#data``. If a reference leads nowhere or in a circle, the id
        before it is returned.
        """
        seen: set[str] = set()
        while True:
            *parents, last = id_.split("#")
            if parents:
                id_ = f"{self.follow('#'.join(parents))}#{last}" if id_ not in self else id_
            seen.add(id_)
            value = self.get(id_)
            match = PLAIN_REFERENCE.fullmatch(absolute(id_, value)) if isinstance(value, str) else None
            target = match.group(1).replace("::", "#") if match else id_
            if target in seen or not self._is_resolvable(target):
                return id_
            id_ = target

    def child(self, id_: str, name: str) -> str | None:
        """Return the id of a component's argument, or None if the argument is absent or null.

        References are followed.
        """
        id_ = self.follow(f"{self.follow(id_)}#{name}")
        return id_ if self.get(id_) is not None else None

    def value(self, id_: str) -> Any:
        """Return the value at an id, after following references (`follow`); None if there is no value."""
        return self.get(self.follow(id_))

    def target(self, id_: str) -> str:
        """Return the target (``_target_``) of a component as it is written; empty for other values."""
        value = self.value(id_)
        target = value.get("_target_") if isinstance(value, Mapping) else None
        return target if isinstance(target, str) else ""

    def references(self, id_: str) -> list[str]:
        """Return the distinct ids that an id, or anything below it, refers to, in their order."""
        return list(
            dict.fromkeys(ref for place, value in self.iterate_texts(id_) for ref in find_references(place, value))
        )

    def iterate_texts(self, id_: str) -> Iterator[tuple[str, str]]:
        """Yield each string at or below an id, as a pair of the string's id and its text."""
        for place, value in walk(self.get(id_)):
            if isinstance(value, str):
                yield id_of((id_, *place)), value

    def reachable_ids(self, id_: str) -> set[str]:
        """Return all ids that can be reached from an id through references, including the id."""
        reached: set[str] = set()
        waiting = [id_]
        while waiting:
            current = waiting.pop()
            if current not in reached:
                reached.add(current)
                waiting += self.references(current)
        return reached

    def targets(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the components at or below some ids, as a mapping from a component's id to its target."""
        pairs = {}
        for id_ in ids:
            for place, value in walk(self.get(id_)):
                if isinstance(value, Mapping) and isinstance(value.get("_target_"), str):
                    pairs[id_of((id_, *place))] = value["_target_"]
        return pairs

    def components(self, id_: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the components of a list, a ``Compose``, a mapping of components, or an expression that joins them.

        Yields:
            Id and content of each component, in order; components that only running the bundle can tell are left out.
        """
        yield from self._components(self.follow(id_), set())

    def _components(self, id_: str, seen: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the components at an id that was not seen before."""
        if id_ in seen:
            return
        seen.add(id_)
        value = self.get(id_)
        if isinstance(value, str):
            for reference in find_references(id_, value):
                yield from self._components(self.follow(reference), seen)
        elif isinstance(value, list):
            for index in range(len(value)):
                yield from self._components(self.follow(f"{id_}#{index}"), seen)
        elif isinstance(value, Mapping) and base_name(str(value.get("_target_", ""))) == "Compose":
            yield from self._components(self.follow(f"{id_}#transforms"), seen)
        elif isinstance(value, Mapping) and "_target_" in value:
            yield id_, value
        elif isinstance(value, Mapping):
            for name in value:
                yield from self._components(self.follow(f"{id_}#{name}"), seen)

    def literal(self, id_: str) -> Any:
        """Return the value at an id with all references in it replaced by values; expressions stay text.

        MONAI's constants for keys of a case (`COMMON_KEY`) are replaced by the keys.
        """
        value = self.value(id_)
        if isinstance(value, list):
            return [self.literal(f"{self.follow(id_)}#{index}") for index in range(len(value))]
        key = COMMON_KEY.fullmatch(value) if isinstance(value, str) else None
        return key.group(1).lower() if key else value

    def keys(self, id_: str) -> list[str]:
        """Return the plain-text keys of a case that the dictionary transform at an id uses."""
        keys = self.literal(f"{id_}#keys") if f"{id_}#keys" in self else []
        return [str(key) for key in (keys if isinstance(keys, list) else [keys])]

    def _lookup(self, id_: str) -> Any:
        """Return the value at an id, or `_MISSING`.

        MONAI's own lookup is not used, because it falls back to the nearest name.
        """
        value = self._content
        for part in id_.split("#"):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return _MISSING
        return value

    def _is_resolvable(self, id_: str) -> bool:
        """Return whether an id has a value, or its parents have references."""
        *parents, _ = id_.split("#")
        return id_ in self or bool(parents and self.follow("#".join(parents)) != "#".join(parents))


def absolute(id_: str, text: str) -> str:
    """Replace relative references (``@##other``) in a text by absolute references.

    The parts of an id are separated by ``::``. The text is returned unchanged if a reference leads above the top level.
    """
    from monai.bundle import ConfigParser

    try:
        return str(ConfigParser.resolve_relative_ids(id_.replace("#", "::"), text))
    except ValueError:
        return text


def find_references(id_: str, text: str) -> list[str]:
    """Return the ids that a text at an id refers to."""
    from monai.bundle import ReferenceResolver

    return [ref.replace("::", "#") for ref in ReferenceResolver.match_refs_pattern(absolute(id_, text))]


def base_name(target: str) -> str:
    """Return the class name of a target, without its package."""
    return target.rpartition(".")[2]


def is_expression(value: object) -> bool:
    """Return whether a value is text that MONAI would evaluate."""
    return isinstance(value, str) and value.startswith("$")


def list_config_files(root: Path) -> dict[str, str]:
    """Return a bundle's configuration files as a mapping from stem to name, for example ``train`` to ``train.json``.

    Raises:
        SettingsError: If two files have the same stem.
    """
    names = sorted(
        path.name
        for path in (root / "configs").iterdir()
        if path.suffix.lower() in SUFFIXES and path.is_file() and inside(path, root)
    )
    stems: dict[str, str] = {}
    for name in names:
        stem = Path(name).stem
        if stem in stems:
            raise SettingsError(
                "ambiguous_config",
                f"'{root / 'configs'}' has both '{stems[stem]}' and '{name}': expected one of them.",
                path=root / "configs",
                files=[stems[stem], name],
            )
        stems[stem] = name
    return stems


def read_config_file(root: Path, name: str) -> Mapping[str, Any]:
    """Return the content of a configuration file.

    Args:
        root: Folder of the bundle.
        name: Name of the file under ``configs``.

    Raises:
        SettingsError: If the file can't be read, or does not contain a mapping.
    """
    path = root / "configs" / name
    content, problems = read_config(path)
    if problems:
        raise SettingsError("invalid_config", f"'{path}' {'; '.join(problems)}.", path=path, problems=problems)
    if not isinstance(content, dict):
        raise SettingsError(
            "wrong_type",
            f"'{path}': expected a mapping of ids, got a {type(content).__name__}.",
            path=path,
            found=type(content).__name__,
        )
    return content


def _is_macro(value: Any) -> bool:
    """Return whether a value is a macro."""
    return isinstance(value, str) and value.startswith("%")
