"""Check that each reference ``@id`` of a configuration has a target, and that required ids exist.

MONAI's own parser merges and searches the configurations. Nothing is instantiated or evaluated. An id is a key of a
configuration, such as ``train#dataset``. An overlay is a configuration that MONAI merges over others, such as
``evaluate.json`` over ``train.json``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfl.bundle.check.reading import id_of, macro_file, read_config, walk

if TYPE_CHECKING:
    from monai.bundle import ConfigParser

BASES = (("train",), ("inference",), ("train", "evaluate"), ("train", "federate"))
"""Combinations of configurations, by file name without suffix, over which an overlay may be merged, in the order of the
attempts."""

MAX_SIZE = 20_000
"""Largest total number of values that macros may copy. A macro, such as ``%train#dataset``, copies another value."""


def check_references(configs: Mapping[str, Any], metadata: Any, root: Path) -> tuple[list[str], list[str]]:
    """Check each configuration alone and, if it is an overlay, merged over the configurations to which it belongs.

    Args:
        configs: Maps file names to contents, without the metadata.
        metadata: Content of the metadata, to which references may point under ``_meta_``.
        root: Folder of the bundle, in which macros may read files.

    Returns:
        Errors, and a note about each combination in which all references have targets.
    """
    errors, notes = [], []
    for name in configs:
        ways = {" + ".join(files): [configs[file] for file in files] for files in _ways(name, configs)}
        tried = [(title, _missing(contents, metadata, root)) for title, contents in ways.items()]
        good = [title for title, missing in tried if not missing]
        if good:
            notes.append(f"{good[0]}: all references resolve")
        else:
            title, missing = min(tried, key=lambda pair: len(pair[1]))
            errors.append(f"{title}: {'; '.join(missing)}")
    return errors, notes


def missing_properties(kind: str, config: Mapping[str, Any], root: Path) -> list[str]:
    """Return the ids that MONAI requires for a workflow and that a configuration lacks.

    Args:
        kind: Kind of the workflow, ``train`` or ``inference``.
        config: Content of the configuration.
        root: Folder of the bundle.
    """
    try:
        parser = merged([config], {})
    except ValueError:  # check_references reports it
        return []
    fill_macros(parser, root, [])
    return [id_ for id_, _ in required_properties(kind) if id_ not in parser]


def required_properties(kind: str) -> list[tuple[str, str]]:
    """Return the ids that MONAI requires for a workflow, each with its description.

    Args:
        kind: Kind of the workflow, ``train`` or ``inference``.
    """
    from monai.bundle.properties import InferProperties, TrainProperties
    from monai.utils import BundleProperty, BundlePropertyConfig

    properties = {"train": TrainProperties, "inference": InferProperties}[kind]
    return [
        (str(entry[BundlePropertyConfig.ID]).replace("::", "#"), str(entry[BundleProperty.DESC]).strip(" ."))
        for entry in properties.values()
        if entry[BundleProperty.REQUIRED]
    ]


def _ways(name: str, configs: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the combinations of files to try: the file alone, then merged over others.

    The training and inference configurations are complete, so they are only tried alone.
    """
    yield [name]
    if Path(name).stem in ("train", "inference"):
        return
    by_stem = {Path(other).stem: other for other in configs}
    for base in BASES:
        if all(stem in by_stem for stem in base) and Path(name).stem not in base:
            yield [*(by_stem[stem] for stem in base), name]


def _missing(contents: Sequence[Mapping[str, Any]], metadata: Any, root: Path) -> list[str]:
    """Return a phrase about each reference or macro without a target."""
    problems: list[str] = []
    try:
        parser = merged(contents, metadata)
        fill_macros(parser, root, problems)
    except RecursionError:
        return ["its macros (%) are nested too deeply"]
    except ValueError as error:
        return [str(error)]
    return problems + _unresolved(parser)


def merged(contents: Sequence[Mapping[str, Any]], metadata: Any) -> ConfigParser:
    """Merge the contents of configurations, and return MONAI's parser with the result. It is not parsed yet.

    Args:
        contents: Contents of configurations; later ones overwrite earlier ones.
        metadata: Content of the metadata.

    Raises:
        ValueError: If the contents can't be merged.
    """
    from monai.bundle import ConfigParser
    from monai.bundle.utils import merge_kv

    parser = ConfigParser({ConfigParser.meta_key: metadata}, globals=False)
    for content in contents:
        for key, value in copy.deepcopy(dict(content)).items():
            try:
                with warnings.catch_warnings():  # an overlay is tried alone on purpose
                    warnings.simplefilter("ignore")
                    merge_kv(parser, str(key), value)
            except (KeyError, ValueError, IndexError) as error:
                raise ValueError(f"'{key}' can't be merged ({error})") from error
    return parser


def fill_macros(parser: ConfigParser, root: Path, problems: list[str]) -> None:
    """Replace each macro by the content that it refers to, in place.

    Args:
        parser: Parser with the merged configurations; it is changed.
        root: Folder of the bundle, in which macros may read files.
        problems: List to which phrases about problems are added.
    """
    size = 0
    for place, value in list(walk(parser.get())):
        if not isinstance(value, str) or not value.startswith("%"):
            continue
        text, problem = _macro_text(parser, id_of(place), value, root)
        if problem:
            problems.append(f"'{id_of(place)}' is '{value}', {problem}")
            continue
        size += sum(1 for _ in walk(text))
        if size > MAX_SIZE:
            problems.append(f"macros (%) copy more than {MAX_SIZE} values; no person can review that")
            return
        parser.set(text, "::".join(place))


def _macro_text(parser: ConfigParser, id_: str, value: str, root: Path) -> tuple[Any, str]:
    """Return the content that a macro refers to, and a phrase about the problem or "" if there is none."""
    from monai.bundle import ConfigParser

    try:
        file = macro_file(value, root)
        _, wanted = ConfigParser.split_path_id(ConfigParser.resolve_relative_ids(id_.replace("#", "::"), value)[1:])
    except ValueError as error:
        return None, str(error)
    source = parser
    if file is not None:
        content, wrong = read_config(file)
        if content is None:
            return None, f"and that file {wrong[0]}"
        source = ConfigParser(content, globals=False)
    if wanted not in source:
        return None, "which does not exist"
    return copy.deepcopy(source[wanted]), ""


def _unresolved(parser: ConfigParser) -> list[str]:
    """Return a phrase about each reference without a target."""
    from monai.bundle import ConfigParser, ReferenceResolver

    problems: dict[str, list[str]] = {}
    for place, value in walk(parser.get()):
        if not isinstance(value, str) or "@" not in value:
            continue
        try:
            absolute = ConfigParser.resolve_relative_ids("::".join(place), value)
        except ValueError:
            problems.setdefault(f"'{value}' points above the top", []).append(id_of(place))
            continue
        for wanted in ReferenceResolver.match_refs_pattern(absolute):
            if wanted not in parser:
                problems.setdefault(f"@{wanted.replace('::', '#')} is not defined", []).append(id_of(place))
    return [f"{problem} (in {', '.join(places)})" for problem, places in problems.items()]
