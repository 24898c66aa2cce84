"""The shape of the house: few rooms, none too full, and imports that run one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"medfl": ROOT / "medfl"}
FOLDERS |= {path.name: path.resolve() for path in sorted((ROOT / "plugins").iterdir()) if path.is_dir()}
PACKAGES = tuple(FOLDERS)

LOOSE = 15
"""Modules at the top of `medfl`."""

FULL = 18
"""Modules in a folder, but where files are named by what users type."""

LONG = 500
"""Lines of a file; only the contract, which is read whole, has more."""

VAGUE = {"found", "asked", "told", "said", "given", "one"}
"""Names that say how a value was computed, not what it is."""

BOUND = re.compile(rf"\b({'|'.join(VAGUE)}) *(\S?=|:|,|\)|\]|\}}|;|in\b|if\b|$)", re.M)
"""Text that follows such a name at its binding; only files with a match are parsed."""


def modules() -> list[Path]:
    return [path for top in FOLDERS.values() for path in sorted(top.rglob("*.py")) if "bundles" not in path.parts]


@pytest.fixture(scope="module")
def imports() -> networkx.DiGraph:
    """Return the imports between modules, also within functions and for type checking."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=False)
    pairs = [(module, used) for module in graph.modules for used in graph.find_modules_directly_imported_by(module)]
    return networkx.DiGraph(pairs)


def test_few_modules_are_loose_and_no_folder_is_full():
    assert len(list((ROOT / "medfl").glob("*.py"))) <= LOOSE
    free = {ROOT / "medfl" / "cli", ROOT / "plugins" / "medfl_methods"}
    counts = {}
    for path in modules():
        if path.parent not in free and path.name != "__init__.py":
            counts[path.parent] = counts.get(path.parent, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > FULL} == {}


def test_no_file_is_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    free = {ROOT / "medfl" / "contract.py"}
    assert {path: length for path, length in lengths.items() if length > LONG and path not in free} == {}


def named(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return the names that a module binds, with lines: variables, arguments, attributes, loop and pattern targets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def test_variables_are_named_for_what_they_are():
    vague = []
    for folder in ("medfl", "plugins", "data_prep", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            code = path.read_text(encoding="utf-8")
            names = named(ast.parse(code)) if BOUND.search(code) else ()
            vague += [f"{path.relative_to(ROOT)}:{line}: {name}" for name, line in names if name in VAGUE]
    assert vague == []


def test_every_folder_says_what_belongs_there():
    folders = {path.parent for path in modules()}
    assert [folder for folder in folders if not (folder / "__init__.py").read_text().startswith('"""')] == []


def test_no_circle_of_files(imports: networkx.DiGraph):
    assert [sorted(circle) for circle in networkx.strongly_connected_components(imports) if len(circle) > 1] == []


def test_no_circle_of_packages(imports: networkx.DiGraph):
    packages = networkx.DiGraph()
    for module, used in imports.edges:
        pair = [".".join(name.split(".")[: 2 if name.startswith("medfl.") else 1]) for name in (module, used)]
        if pair[0] != pair[1]:
            packages.add_edge(*pair)
    assert [sorted(circle) for circle in networkx.strongly_connected_components(packages) if len(circle) > 1] == []
