"""Expressions of a configuration as syntax trees: lists that are cut, and paths that are put together."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from medfl_adopt.config import Config, absolute, is_expression

PLACEHOLDER = re.compile(r"_reference_((?:[0-9a-f]{2})+)_")
"""A reference within a syntax tree: a name that holds its id in hexadecimal."""

SITE, BUNDLE = "\0site", "\0bundle"
"""What ``dataset_dir`` and ``bundle_root`` stand for in a path."""

LISTS = (".json", ".csv", ".tsv", ".txt")
"""Endings of files that list cases."""

WIDEST_PATH = 500
"""Letters of a path above which it is not put together."""


@dataclass
class Listing:
    """A list of cases, as a configuration writes it.

    Attributes:
        whole: The expression without its cuts, for a configuration; None where there is none, as for a list of files
            written out, or where it is no Python that can be read.
        expanded: The same with every expression it refers to written in its place, for comparing two lists.
        cuts: Id of each expression that cuts a list, and how, for example ``[:-9]``.
    """

    whole: str | None = None
    expanded: str = ""
    cuts: list[tuple[str, str]] = field(default_factory=list)


def read_listing(config: Config, id_: str) -> Listing:
    """Read the list of cases at an id, through its references.

    A cut is a slice of a list by position: ``@images[:-9]``, ``sorted(glob(...))[5:]``, also of what a reference names.
    A slice of what a loop goes over, such as the last letters of a file's name, is none.
    """
    id_ = config.follow(id_)
    value = config.get(id_)
    if not is_expression(value):
        return Listing(None, repr(value))
    short, long = Listing(), Listing()
    tree, expanded = _whole(config, id_, short, (), deep=False), _whole(config, id_, long, (), deep=True)
    if tree is None or expanded is None:
        return Listing(None, str(value))
    return Listing(_text(tree), _text(expanded), short.cuts)


def paths(config: Config, id_: str) -> list[str]:
    """Paths under ``dataset_dir`` that anything at an id, or what it refers to, reads.

    Returns:
        Patterns as of ``glob``, relative, each once, in their order. A part that only running tells is ``*``.
    """
    patterns = []
    for reference in [id_, *sorted(config.reach(id_) - {id_})]:
        for place, value in config.texts(reference):
            tree = _parse(config, place) if is_expression(value) else None
            patterns += [] if tree is None else _paths_of(config, tree)
    return list(dict.fromkeys(path for path in patterns if not path.startswith("..") and path.strip("*/.")))


def list_files(config: Config, id_: str) -> dict[str, str]:
    """Files of the bundle itself that list cases: id to path within the bundle, of what an id refers to."""
    files = {}
    for reference in sorted(config.reach(id_)):
        path = _fold_reference(config, reference, ())
        if path is not None and path.startswith(BUNDLE) and path.lower().endswith(LISTS):
            files[config.follow(reference)] = posixpath.normpath(path.removeprefix(BUNDLE).lstrip("/"))
    return files


def _parse(config: Config, id_: str) -> ast.expr | None:
    """The syntax tree of an expression, references as placeholders; None where it is no single expression."""
    from monai.bundle import ReferenceResolver

    def name(match: re.Match[str]) -> str:
        return f"_reference_{match.group()[1:].replace('::', '#').encode().hex()}_"

    text = absolute(id_, str(config.get(id_)))[1:]
    try:
        return ast.parse(ReferenceResolver.id_matcher.sub(name, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _reference(node: ast.AST) -> str | None:
    """The id that a node refers to."""
    match = PLACEHOLDER.fullmatch(node.id) if isinstance(node, ast.Name) else None
    return bytes.fromhex(match.group(1)).decode() if match else None


def _text(tree: ast.expr) -> str:
    """A syntax tree as an expression of a configuration."""
    text = ast.unparse(ast.fix_missing_locations(tree))
    return "$" + PLACEHOLDER.sub(lambda match: "@" + bytes.fromhex(match.group(1)).decode(), text)


def _whole(config: Config, id_: str, listing: Listing, above: tuple[str, ...], deep: bool) -> ast.expr | None:
    """The tree of an expression without cuts, which are noted; expressions that are cut stand in place of references.

    Args:
        config: Where references lead.
        id_: Of the expression.
        listing: Takes the cuts.
        above: Ids on the way here, so that no circle is followed.
        deep: Put in all expressions that are referred to, not only those with cuts.
    """
    tree = _parse(config, id_)
    return None if tree is None else _Uncut(config, id_, listing, (*above, id_), deep).visit(tree)


class _Uncut(ast.NodeTransformer):
    def __init__(self, config: Config, id_: str, listing: Listing, above: tuple[str, ...], deep: bool) -> None:
        self.config, self.id, self.listing, self.above, self.deep = config, id_, listing, above, deep
        self.bound: set[str] = set()

    def visit(self, node: ast.AST) -> Any:
        """Visit a node, knowing which names are loop variables there."""
        before = self.bound
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            targets = [generator.target for generator in node.generators]
            self.bound = before | {name for target in targets for name in _names(target)}
        elif isinstance(node, ast.Lambda):
            self.bound = before | {argument.arg for argument in node.args.args}
        try:
            return super().visit(node)
        finally:
            self.bound = before

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """A slice of a list gives way to the list."""
        if not isinstance(node.slice, ast.Slice) or _names(node.value) & self.bound or self._is_text(node.value):
            return self.generic_visit(node)
        if node.slice.lower is not None or node.slice.upper is not None:
            self.listing.cuts.append((self.id, f"[{_text(node.slice)[1:]}]"))
        return self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A reference to an expression that is cut gives way to the expression without its cut."""
        reference = _reference(node)
        if reference is None:
            return node
        id_ = self.config.follow(reference)
        if id_ in self.above or not is_expression(self.config.get(id_)):
            return node
        inner = Listing()
        tree = _whole(self.config, id_, inner, self.above, self.deep)
        if tree is None or not (inner.cuts or self.deep):
            return node
        self.listing.cuts += [cut for cut in inner.cuts if cut not in self.listing.cuts]
        return tree

    def _is_text(self, node: ast.AST) -> bool:
        reference = _reference(node)
        return reference is not None and isinstance(value := self.config.value(reference), str) and value[:1] != "$"


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _paths_of(config: Config, tree: ast.AST) -> list[str]:
    """The longest paths below ``dataset_dir`` in a tree, and those in parts of them that only running tells."""
    path = _fold(config, tree, ())
    if path is None or not path.startswith(SITE) or len(path) > WIDEST_PATH:
        return [path for child in ast.iter_child_nodes(tree) for path in _paths_of(config, child)]
    own = [posixpath.normpath(path.removeprefix(SITE).lstrip("/"))] if path.rstrip("/") != SITE else []
    return own + [path for part in _unfolded(config, tree) for path in _paths_of(config, part)]


def _unfolded(config: Config, tree: ast.AST) -> Iterator[ast.AST]:
    """The outermost parts of a path that `_fold` makes nothing of, such as what is read from a file."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr) and _fold(config, child, ()) is None:
            yield child
        else:
            yield from _unfolded(config, child)


def _fold(config: Config, node: ast.AST, above: tuple[str, ...]) -> str | None:
    """The text that a node makes, as far as it can be told without running it: paths and their parts."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str | int) else None
    if isinstance(node, ast.Name):
        return _fold_reference(config, _reference(node), above)
    if isinstance(node, ast.JoinedStr):
        return "".join(_fold(config, part, above) or "*" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _fold(config, node.value, above)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        left, right = _fold(config, node.left, above), _fold(config, node.right, above)
        if left is None or not left.startswith((SITE, BUNDLE)):
            return left + right if left is not None and right is not None else None
        return posixpath.join(left, right or "*") if isinstance(node.op, ast.Div) else left + (right or "*")
    if isinstance(node, ast.Call) and node.args:
        return _fold_call(config, node, above)
    return None


def _fold_call(config: Config, node: ast.Call, above: tuple[str, ...]) -> str | None:
    name = ast.unparse(node.func).rpartition(".")[2]
    parts = [_fold(config, argument, above) for argument in node.args]
    if name not in ("join", "joinpath", "Path", "str", "abspath", "expanduser") or parts[0] is None:
        return None
    return posixpath.join(parts[0], *(part or "*" for part in parts[1:]))


def _fold_reference(config: Config, reference: str | None, above: tuple[str, ...]) -> str | None:
    known: Mapping[str, str] = {"dataset_dir": SITE, "bundle_root": BUNDLE}
    if reference is None or reference in known or reference in above:
        return None if reference is None or reference in above else known[reference]
    id_ = config.follow(reference)
    if id_ in known:
        return known[id_]
    value = config.get(id_)
    if not is_expression(value):
        return str(value) if isinstance(value, str | int) else None
    tree = _parse(config, id_)
    return None if tree is None else _fold(config, tree, (*above, reference))
