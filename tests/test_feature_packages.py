"""Each feature package can be deleted with its tests folder and its lines in pyproject.toml: all other tests pass.

The slow part deletes each package from a copy of the tree. There it runs import-linter, collects all remaining tests,
and runs the tests that could notice: the tests of command line, Python API, bundles and engine, those at the top of
``tests``, and all other files that name the package. Running all remaining tests would take about an hour.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS, PLUGINS = ROOT / "tests", ROOT / "plugins"
PROJECT = ROOT / "pyproject.toml"
DEPENDENTS = {
    "medfl_report": ("medfl_studies", "medfl_attacks", "medfl_flare", "medfl_adopt"),
    **dict.fromkeys(
        (
            *("medfl_studies", "medfl_attacks", "medfl_flare", "medfl_adopt"),
            *("medfl_mlflow", "medfl_encoders", "medfl_pacs"),
        ),
        (),
    ),
}
"""Maps each feature package to the packages that import it and are deleted with it."""

FEATURES = tuple(name for name in DEPENDENTS if (PLUGINS / name).exists())
RUN = ("cli", "api", "bundle", "engine")
CACHES = {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache", ".import_linter_cache"}

# ---- the tests as they are


def imported(tree: ast.Module) -> Iterator[tuple[str, bool, set[str]]]:
    """Each import: the module, whether it is at module level, and the packages whose absence skips it."""

    def visit(node: ast.AST, guards: set[str], top: bool) -> Iterator[tuple[str, bool, set[str]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top, set(guards)) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield child.module or "", top, set(guards)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from visit(child, set(guards), False)
            elif isinstance(child, ast.Call) and ast.unparse(child.func) == "pytest.importorskip":
                guards.update(value.value for value in child.args if isinstance(value, ast.Constant))
            else:
                yield from visit(child, guards, top)

    return visit(tree, set(), True)


def module_name(path: Path) -> str:
    """The name by which tests import a helper or a module of a plugin."""
    if path.is_relative_to(TESTS):
        return path.stem
    return ".".join(path.relative_to(PLUGINS).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Maps each file of tests, and of plugins that are no feature, to its content."""
    others = [path for path in PLUGINS.iterdir() if path.is_dir() and path.name not in DEPENDENTS]
    files = [*TESTS.rglob("*.py"), *(file for folder in others for file in folder.rglob("*.py"))]
    return {file: file.read_text(encoding="utf-8") for file in files}


def importing(texts: dict[Path, str], names: set[str]) -> dict[Path, ast.Module]:
    """Return the syntax trees of the files that contain one of the names; to parse all files takes long."""
    wanted = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    return {path: ast.parse(text) for path, text in texts.items() if wanted.search(text)}


@pytest.fixture(scope="module")
def needs(texts: dict[Path, str]) -> dict[str, set[str]]:
    """Maps each helper and each module of other plugins that needs feature packages to the packages that it needs."""
    needed: dict[str, set[str]] = {}
    modules = {
        path: text for path, text in texts.items() if not path.is_relative_to(TESTS) or path.parent == TESTS / "helpers"
    }
    while True:
        before = sum(map(len, needed.values()))
        for path, tree in importing(modules, {*DEPENDENTS, *needed}).items():
            names = [name for name, top, guards in imported(tree) if top and not guards]
            if features := set().union(*(features_of(name, needed) for name in names)):
                needed[module_name(path)] = features
        if sum(map(len, needed.values())) == before:
            return needed


def features_of(module: str, needed: dict[str, set[str]]) -> set[str]:
    top = module.partition(".")[0]
    return {top} if top in DEPENDENTS else needed.get(module, set())


def test_no_other_test_imports_a_feature_package_unguarded(texts: dict[Path, str], needs: dict[str, set[str]]) -> None:
    wrong = []
    for path, tree in importing(texts, {*DEPENDENTS, *needs}).items():
        if not path.is_relative_to(TESTS) or path.parent == TESTS / "helpers":
            continue
        folder = path.relative_to(TESTS).parts[0]
        free = {folder} | {name for name, dependents in DEPENDENTS.items() if folder in dependents}
        for module, _, guards in imported(tree):
            wrong += [f"{path.relative_to(ROOT)}: {module}" for _ in features_of(module, needs) - free - guards]
    assert wrong == [], 'move these tests to the tests of the package, or begin with pytest.importorskip("package")'


def test_no_other_module_of_a_plugin_needs_a_feature_package_to_be_found(needs: dict[str, set[str]]) -> None:
    assert {module: needed for module, needed in needs.items() if needed and module in entry_points()} == {}


def test_only_the_named_packages_import_a_feature_package() -> None:
    for package, dependents in DEPENDENTS.items():
        users = {
            folder.name
            for folder in PLUGINS.iterdir()
            if folder.name in DEPENDENTS and folder.name != package
            for file in folder.rglob("*.py")
            if re.search(rf"^\s*(from|import) {package}\b", file.read_text(encoding="utf-8"), re.MULTILINE)
        }
        assert users <= set(dependents)


def entry_points() -> dict[str, str]:
    points = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["medfl"]
    return {name: module for name, module in points.items() if not module.startswith("medfl.")}


def test_every_package_of_a_plugin_has_an_entry_point_and_a_tests_folder() -> None:
    packages = {path.name for path in PLUGINS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(entry_points().values())
    folders = {name: TESTS / {"medfl_datasets": "data_prep"}.get(name, name) for name in packages}
    assert [name for name, folder in folders.items() if not folder.is_dir()] == []


# ---- a copy without a package

SITECUSTOMIZE = """import sys
from pathlib import Path

sys.path[:] = [place for place in sys.path if not (Path(place) / "medfl" / "__init__.py").is_file()]
sys.path[:] = [place for place in sys.path if not (Path(place) / "medfl_methods").is_dir()]
sys.path[:0] = {places!r}
"""


def without(text: str, package: str) -> str:
    """The text of pyproject.toml without all that names a package: lines, items of lists, names in layers."""
    text = re.sub(rf"^{package} = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf" \| {package}\b|\b{package} \| ", "", text)
    item = rf'"[^",]*\b{package}\b[^",]*"'
    return re.sub(rf", {item}|{item}, ", "", text)


def test_all_that_names_a_package_is_deleted_from_the_project_file() -> None:
    for package in FEATURES:
        text = without(PROJECT.read_text(encoding="utf-8"), package)
        assert package not in text
        tomllib.loads(text)


def copy_tree(to: Path) -> None:
    """Copy the files that git tracks, or without git all but caches; links stay links."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
        files = [ROOT / name for name in filter(None, listed.split("\0"))]
    else:
        files = []
        for top, folders, names in os.walk(ROOT):
            links = [name for name in folders if (Path(top) / name).is_symlink()]
            folders[:] = [name for name in folders if name not in CACHES and name not in links]
            files += [Path(top) / name for name in (*names, *links)]
    for file in files:
        if file.exists():
            target = to / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
    for words in (["init", "-q"], ["add", "-A"]):  # tests list the files of the project
        subprocess.run(["git", *words], cwd=to, check=True)


def installed(copy: Path, place: Path) -> dict[str, str]:
    """Make a copy importable in place of the checkout, with entry points of its own; the environment for it."""
    project = tomllib.loads((copy / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
             for group, points in groups.items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(lines))
    places = [str(copy), str(copy / "plugins")]
    (place / "sitecustomize.py").write_text(SITECUSTOMIZE.format(places=places))
    return os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("package", FEATURES)
def test_a_package_can_be_deleted(package: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_tree(copy)
    text = (copy / "pyproject.toml").read_text(encoding="utf-8")
    deleted = [package, *DEPENDENTS[package]]
    for name in deleted:
        for folder in (copy / "plugins" / name, copy / "tests" / name):
            shutil.rmtree(folder, ignore_errors=True)
        text = without(text, name)
    (copy / "pyproject.toml").write_text(text, encoding="utf-8")
    environment = installed(copy, tmp_path / "installed")

    def check(*words: str) -> str:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        return done.stdout

    code = "import medfl, medfl.plugins; print(medfl.__file__, *medfl.plugins.load_plugins().plugins)"
    where, *plugins = check(sys.executable, "-c", code).split()
    assert Path(where).is_relative_to(copy)
    assert set(plugins) == {"medfl_builtin", *entry_points()} - set(deleted)
    check(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    pytest_words = (sys.executable, "-m", "pytest", "-m", "not slow")
    check(*pytest_words, "--collect-only")
    names = re.compile("|".join(rf"\b{name}\b" for name in deleted))
    files = [path.relative_to(copy) for path in (copy / "tests").rglob("test_*.py")]
    chosen = [path for path in files if path.parts[1] in RUN or len(path.parts) == 2]
    chosen += [path for path in files if path not in chosen and names.search((copy / path).read_text(encoding="utf-8"))]
    check(*pytest_words, "-n", "2", "--dist", "loadfile", *map(str, chosen))
