"""Analyse expressions of a configuration as syntax trees: lists that are cut, and paths that are joined."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from medfl_adopt.config import BundleConfig, absolute, is_expression

PLACEHOLDER = re.compile(r"_reference_((?:[0-9a-f]{2})+)_")
"""Pattern of a reference within a syntax tree: a name that contains the id in hexadecimal."""

SITE_MARKER, BUNDLE_MARKER = "\0site", "\0bundle"
"""Markers at the start of a joined path.

* ``SITE_MARKER``: stands for ``dataset_dir``, the folder of a site's cases.
* ``BUNDLE_MARKER``: stands for ``bundle_root``, the folder of the bundle.
"""

LIST_SUFFIXES = (".json", ".csv", ".tsv", ".txt")
"""Suffixes of files that list cases."""

MAX_PATH_LENGTH = 500
"""Largest number of characters of a path; longer paths are not resolved further."""


@dataclass
class CaseListExpression:
    """A list of cases as a configuration writes it. A cut is a slice of the list by position, such as ``[:-9]``.

    Attributes:
        whole: The expression without its cuts. None if there is no expression, as for a list of files, or if it is not
            readable Python.
        expanded: The same expression with all referenced expressions inserted, for comparing two lists.
        cuts: Pairs of the id of an expression that cuts a list, and the cut, for example ``[:-9]``.
    """

    whole: str | None = None
    expanded: str = ""
    cuts: list[tuple[str, str]] = field(default_factory=list)


def read_listing(config: BundleConfig, id_: str) -> CaseListExpression:
    """Read the list of cases at an id, through its references.

    A cut is a slice of a list by position, such as ``@images[:-9]`` or ``sorted(glob(...))[5:]``, also in a referenced
    expression. A slice of a loop variable, such as the last characters of a file's name, is not a cut.
    """
    id_ = config.follow(id_)
    value = config.get(id_)
    if not is_expression(value):
        return CaseListExpression(None, repr(value))
    short, long = CaseListExpression(), CaseListExpression()
    tree, expanded = _remove_cuts(config, id_, short, (), deep=False), _remove_cuts(config, id_, long, (), deep=True)
    if tree is None or expanded is None:
        return CaseListExpression(None, str(value))
    return CaseListExpression(_unparse(tree), _unparse(expanded), short.cuts)


def find_site_paths(config: BundleConfig, id_: str) -> list[str]:
    """Return the paths below ``dataset_dir`` that appear in the expression at an id, or at any id that it refers to.

    Returns:
        Distinct relative patterns as for ``glob``, in their order. A part that only running the bundle can tell is
            ``*``.
    """
    patterns = []
    for reference in [id_, *sorted(config.reachable_ids(id_) - {id_})]:
        for place, value in config.iterate_texts(reference):
            tree = _parse(config, place) if is_expression(value) else None
            patterns += [] if tree is None else _find_paths(config, tree)
    return list(dict.fromkeys(path for path in patterns if not path.startswith("..") and path.strip("*/.")))


def list_files(config: BundleConfig, id_: str) -> dict[str, str]:
    """Return the files within a bundle from which a list of cases is read.

    Args:
        config: Configuration of the bundle.
        id_: Id of the list; this id and all ids to which it leads are searched.

    Returns:
        Maps the id under which the path of such a file is written to the path relative to the bundle.
    """
    files = {}
    for reference in sorted(config.reachable_ids(id_)):
        path = _evaluate_reference(config, reference, ())
        if path is not None and path.startswith(BUNDLE_MARKER) and path.lower().endswith(LIST_SUFFIXES):
            files[config.follow(reference)] = posixpath.normpath(path.removeprefix(BUNDLE_MARKER).lstrip("/"))
    return files


def _parse(config: BundleConfig, id_: str) -> ast.expr | None:
    """Return the syntax tree of an expression, with references as placeholders.

    Return None if the text is not a single expression.
    """
    from monai.bundle import ReferenceResolver

    def name(match: re.Match[str]) -> str:
        return f"_reference_{match.group()[1:].replace('::', '#').encode().hex()}_"

    text = absolute(id_, str(config.get(id_)))[1:]
    try:
        return ast.parse(ReferenceResolver.id_matcher.sub(name, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _referenced_id(node: ast.AST) -> str | None:
    """Return the id that a node refers to, or None."""
    match = PLACEHOLDER.fullmatch(node.id) if isinstance(node, ast.Name) else None
    return bytes.fromhex(match.group(1)).decode() if match else None


def _unparse(tree: ast.expr) -> str:
    """Convert a syntax tree to an expression of a configuration."""
    text = ast.unparse(ast.fix_missing_locations(tree))
    return "$" + PLACEHOLDER.sub(lambda match: "@" + bytes.fromhex(match.group(1)).decode(), text)


def _remove_cuts(
    config: BundleConfig, id_: str, listing: CaseListExpression, above: tuple[str, ...], deep: bool
) -> ast.expr | None:
    """Return the tree of an expression without cuts, and append the cuts to `listing`.

    Referenced expressions with cuts are inserted in place of the references.

    Args:
        config: Configuration in which references are resolved.
        id_: Id of the expression.
        listing: Record that receives the cuts.
        above: Ids on the way to this expression, so that circles are not followed.
        deep: Whether to insert all referenced expressions, not only those with cuts.
    """
    tree = _parse(config, id_)
    return None if tree is None else _CutRemover(config, id_, listing, (*above, id_), deep).visit(tree)


class _CutRemover(ast.NodeTransformer):
    """Transformer that removes slices of lists from a syntax tree and records them."""

    def __init__(
        self, config: BundleConfig, id_: str, listing: CaseListExpression, above: tuple[str, ...], deep: bool
    ) -> None:
        self.config, self.id, self.listing, self.above, self.deep = config, id_, listing, above, deep
        self.bound: set[str] = set()

    def visit(self, node: ast.AST) -> Any:
        """Visit a node with the loop variables that are defined there."""
        before = self.bound
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            targets = [generator.target for generator in node.generators]
            self.bound = before | {name for target in targets for name in _find_names(target)}
        elif isinstance(node, ast.Lambda):
            self.bound = before | {argument.arg for argument in node.args.args}
        try:
            return super().visit(node)
        finally:
            self.bound = before

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace a slice of a list by the list, and record the cut."""
        if not isinstance(node.slice, ast.Slice) or _find_names(node.value) & self.bound or self._is_text(node.value):
            return self.generic_visit(node)
        if node.slice.lower is not None or node.slice.upper is not None:
            self.listing.cuts.append((self.id, f"[{_unparse(node.slice)[1:]}]"))
        return self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Replace a reference to an expression with cuts by the expression without cuts."""
        reference = _referenced_id(node)
        if reference is None:
            return node
        id_ = self.config.follow(reference)
        if id_ in self.above or not is_expression(self.config.get(id_)):
            return node
        inner = CaseListExpression()
        tree = _remove_cuts(self.config, id_, inner, self.above, self.deep)
        if tree is None or not (inner.cuts or self.deep):
            return node
        self.listing.cuts += [cut for cut in inner.cuts if cut not in self.listing.cuts]
        return tree

    def _is_text(self, node: ast.AST) -> bool:
        """Return whether a node refers to plain text."""
        reference = _referenced_id(node)
        return reference is not None and isinstance(value := self.config.value(reference), str) and value[:1] != "$"


def _find_names(node: ast.AST) -> set[str]:
    """Return the names in a syntax tree."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _find_paths(config: BundleConfig, tree: ast.AST) -> list[str]:
    """Return the longest paths below ``dataset_dir`` in a tree, including paths within their unresolved parts."""
    path = _evaluate_text(config, tree, ())
    if path is None or not path.startswith(SITE_MARKER) or len(path) > MAX_PATH_LENGTH:
        return [path for child in ast.iter_child_nodes(tree) for path in _find_paths(config, child)]
    own = [posixpath.normpath(path.removeprefix(SITE_MARKER).lstrip("/"))] if path.rstrip("/") != SITE_MARKER else []
    return own + [path for part in _unresolved_parts(config, tree) for path in _find_paths(config, part)]


def _unresolved_parts(config: BundleConfig, tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the outermost parts of a path that `_evaluate_text` can't resolve, such as values read from a file."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr) and _evaluate_text(config, child, ()) is None:
            yield child
        else:
            yield from _unresolved_parts(config, child)


def _evaluate_text(config: BundleConfig, node: ast.AST, above: tuple[str, ...]) -> str | None:
    """Return the text that a node evaluates to, or None if only running it can tell.

    The text is a path or a part of a path; its unknown parts are ``*``.
    """
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str | int) else None
    if isinstance(node, ast.Name):
        return _evaluate_reference(config, _referenced_id(node), above)
    if isinstance(node, ast.JoinedStr):
        return "".join(_evaluate_text(config, part, above) or "*" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _evaluate_text(config, node.value, above)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        left, right = _evaluate_text(config, node.left, above), _evaluate_text(config, node.right, above)
        if left is None or not left.startswith((SITE_MARKER, BUNDLE_MARKER)):
            return left + right if left is not None and right is not None else None
        return posixpath.join(left, right or "*") if isinstance(node.op, ast.Div) else left + (right or "*")
    if isinstance(node, ast.Call) and node.args:
        return _evaluate_call(config, node, above)
    return None


def _evaluate_call(config: BundleConfig, node: ast.Call, above: tuple[str, ...]) -> str | None:
    """Return the path that a call such as ``os.path.join`` evaluates to, or None."""
    name = ast.unparse(node.func).rpartition(".")[2]
    parts = [_evaluate_text(config, argument, above) for argument in node.args]
    if name not in ("join", "joinpath", "Path", "str", "abspath", "expanduser") or parts[0] is None:
        return None
    return posixpath.join(parts[0], *(part or "*" for part in parts[1:]))


def _evaluate_reference(config: BundleConfig, reference: str | None, above: tuple[str, ...]) -> str | None:
    """Return the text that a reference evaluates to, or None."""
    known: Mapping[str, str] = {"dataset_dir": SITE_MARKER, "bundle_root": BUNDLE_MARKER}
    if reference is None or reference in known or reference in above:
        return None if reference is None or reference in above else known[reference]
    id_ = config.follow(reference)
    if id_ in known:
        return known[id_]
    value = config.get(id_)
    if not is_expression(value):
        return str(value) if isinstance(value, str | int) else None
    tree = _parse(config, id_)
    return None if tree is None else _evaluate_text(config, tree, (*above, reference))
