"""A bundle's configuration as text: files merged, macros filled in, references followed, nothing evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfl.bundle.check.reading import SUFFIXES, id_of, inside, read_config, walk
from medfl.bundle.check.references import fill_macros, merged
from medfl.errors import SettingsError

ROUNDS_OF_MACROS = 10
"""How deep a macro may pull in text that holds macros."""

PLAIN_REFERENCE = re.compile(r"\$?\s*@((?:\w|::)+)\s*")
"""A value that is another one and nothing else; both ``@loss`` and ``$@loss`` are."""

LOAD_IMAGE = ("LoadImaged", "LoadImageD", "LoadImageDict")
"""MONAI's names for the transform that reads files."""

COMMON_KEY = re.compile(r"\$\s*monai\.utils\.(?:enums\.)?CommonKeys\.(\w+)\s*")
"""MONAI's constants for keys of a case; each is its name in small letters, as ``image``."""


_NOTHING = object()


class Config:
    """The configuration that MONAI would make of some files, before it parses it.

    Ids are written with ``#``, as users write them.

    Args:
        contents: The files' contents, each laid over those before it.
        metadata: What references under ``_meta_`` name.
        root: The bundle, where macros may read files.

    Raises:
        SettingsError: If the contents can't be merged, or a macro can't be filled.
    """

    def __init__(self, contents: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], root: Path) -> None:
        problems: list[str] = []
        code = "invalid_macro"
        try:
            parser = merged(contents, metadata)
            for _ in range(ROUNDS_OF_MACROS):
                fill_macros(parser, root, problems)
                if problems or not any(_is_macro(value) for _, value in walk(parser.get())):
                    break
        except RecursionError:
            code = "nested_too_deep"
            problems.append("its macros (%) nest too deep")
        except ValueError as error:
            code = "conflicting_configs"
            problems.append(str(error))
        if problems:
            raise SettingsError(code, "; ".join(problems), path=root)
        self._content = parser.get()

    def __contains__(self, id_: str) -> bool:
        return self._at(id_) is not _NOTHING

    def get(self, id_: str) -> Any:
        """What stands at an id; None where nothing does."""
        value = self._at(id_)
        return None if value is _NOTHING else value

    def follow(self, id_: str) -> str:
        """The id at the end of plain references, for example ``loss`` for ``train#trainer#loss_function``.

        Parents that are references are followed, too, so that ``train#dataset#data`` may lead to ``train_data#data``.
        Where a reference leads nowhere or in a circle, the id before it.
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
            if target in seen or not self._leads_somewhere(target):
                return id_
            id_ = target

    def child(self, id_: str, name: str) -> str | None:
        """The id at the end of what a component has under a name, or None if it has nothing there, or null."""
        id_ = self.follow(f"{self.follow(id_)}#{name}")
        return id_ if self.get(id_) is not None else None

    def value(self, id_: str) -> Any:
        """What stands at the end of an id's references."""
        return self.get(self.follow(id_))

    def target(self, id_: str) -> str:
        """What a component calls, as it is written; empty for anything else."""
        value = self.value(id_)
        target = value.get("_target_") if isinstance(value, Mapping) else None
        return target if isinstance(target, str) else ""

    def references(self, id_: str) -> list[str]:
        """The ids that anything at or below an id refers to, each once, in their order."""
        return list(dict.fromkeys(ref for place, value in self.texts(id_) for ref in references_of(place, value)))

    def texts(self, id_: str) -> Iterator[tuple[str, str]]:
        """Id and text of all that is text at or below an id."""
        for place, value in walk(self.get(id_)):
            if isinstance(value, str):
                yield id_of((id_, *place)), value

    def reach(self, id_: str) -> set[str]:
        """All ids that an id refers to, directly or not, and itself."""
        reached: set[str] = set()
        waiting = [id_]
        while waiting:
            current = waiting.pop()
            if current not in reached:
                reached.add(current)
                waiting += self.references(current)
        return reached

    def targets(self, ids: Iterable[str]) -> dict[str, str]:
        """Id to target of each component that stands at or below some ids."""
        pairs = {}
        for id_ in ids:
            for place, value in walk(self.get(id_)):
                if isinstance(value, Mapping) and isinstance(value.get("_target_"), str):
                    pairs[id_of((id_, *place))] = value["_target_"]
        return pairs

    def components(self, id_: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The components of a list, a ``Compose``, an object of components, or an expression that joins such.

        Yields:
            The id and the content of each, in order; a component that can't be told without running is left out.
        """
        yield from self._components(self.follow(id_), set())

    def _components(self, id_: str, seen: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if id_ in seen:
            return
        seen.add(id_)
        value = self.get(id_)
        if isinstance(value, str):
            for reference in references_of(id_, value):
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
        """A value with the references in it followed; text that only running tells stays as it is written."""
        value = self.value(id_)
        if isinstance(value, list):
            return [self.literal(f"{self.follow(id_)}#{index}") for index in range(len(value))]
        key = COMMON_KEY.fullmatch(value) if isinstance(value, str) else None
        return key.group(1).lower() if key else value

    def keys(self, id_: str) -> list[str]:
        """The keys that a dictionary transform works on, as far as they are written."""
        keys = self.literal(f"{id_}#keys") if f"{id_}#keys" in self else []
        return [str(key) for key in (keys if isinstance(keys, list) else [keys])]

    def _at(self, id_: str) -> Any:
        """What stands at an id, or `_NOTHING`. MONAI's own search looks for the nearest name wherever there is none."""
        value = self._content
        for part in id_.split("#"):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return _NOTHING
        return value

    def _leads_somewhere(self, id_: str) -> bool:
        *parents, _ = id_.split("#")
        return id_ in self or bool(parents and self.follow("#".join(parents)) != "#".join(parents))


def absolute(id_: str, text: str) -> str:
    """A text with its relative references (``@##other``) written out, parts of ids parted by ``::``.

    Where one leads above the top, the text as it is.
    """
    from monai.bundle import ConfigParser

    try:
        return str(ConfigParser.resolve_relative_ids(id_.replace("#", "::"), text))
    except ValueError:
        return text


def references_of(id_: str, text: str) -> list[str]:
    """The ids that a text at an id refers to."""
    from monai.bundle import ReferenceResolver

    return [ref.replace("::", "#") for ref in ReferenceResolver.match_refs_pattern(absolute(id_, text))]


def base_name(target: str) -> str:
    """The class of a target, without its package."""
    return target.rpartition(".")[2]


def is_expression(value: object) -> bool:
    """Whether a value is text that MONAI would evaluate."""
    return isinstance(value, str) and value.startswith("$")


def read_files(root: Path) -> dict[str, str]:
    """The configurations of a bundle that tell a workflow: stem to file name, for example ``train`` to ``train.json``.

    Raises:
        SettingsError: If two files have one stem, so that nobody can tell which is meant.
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


def read_file(root: Path, name: str) -> Mapping[str, Any]:
    """The content of one configuration.

    Args:
        root: The bundle.
        name: Its name under ``configs``.

    Raises:
        SettingsError: If it can't be read, or is no object of ids.
    """
    path = root / "configs" / name
    content, problems = read_config(path)
    if problems:
        raise SettingsError("invalid_config", f"'{path}' {'; '.join(problems)}.", path=path, problems=problems)
    if not isinstance(content, dict):
        raise SettingsError(
            "wrong_type",
            f"'{path}': expected an object of ids, got a {type(content).__name__}.",
            path=path,
            found=type(content).__name__,
        )
    return content


def _is_macro(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("%")
