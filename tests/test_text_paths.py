"""Functions whose paths may be text return the same for text as for a path."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zoo_shapes
from attack_runs import make_data, run_bundle

from medfl.bundle.check import check_bundle
from medfl.data.datalists import read_datalist
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_global, load_site, load_sites
from medfl.engine.runs.lifecycle import RunViewer
from medfl.engine.runs.records import PREDICTIONS, read_metrics, read_predictions, read_run
from medfl.engine.runs.run_files import read_run_files
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins

ROOT = Path(__file__).parents[1]
NORMAL = ((0.5,) * 3, (0.5,) * 3)
Convert = Callable[[Path], Any]


def cards(run: Path, as_: Convert) -> list[bytes]:
    pytest.importorskip("medfl_report")
    from medfl_report.cards.write import write_cards

    written = write_cards(as_(run), load_plugins(), as_(run.parent / "data"))
    return [path.read_bytes() for path in written]


def report(run: Path, as_: Convert) -> tuple[bytes, int]:
    pytest.importorskip("medfl_report")
    from medfl_report.page import write_report

    out, figures = run.parent / "out.html", run.parent / "figures"
    path = write_report([as_(run)], as_(out), figures=as_(figures))
    return path.read_bytes(), len(list(figures.iterdir()))


def adopted(run: Path, as_: Convert) -> Any:
    pytest.importorskip("medfl_adopt")
    from medfl_adopt.adopting import adopt

    if not (run.parent / "stock").exists():
        zoo_shapes.spleen(run.parent / "stock")
    return adopt(as_(run.parent / "stock"), as_(run.parent / f"adopted by {as_.__name__}"))


def opened(run: Path, as_: Convert) -> dict[str, Any]:
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.open_run import open_run

    return open_run(as_(run), data=as_(run.parent / "data")).settings


def divided(run: Path, as_: Convert) -> Any:
    plan = PartitionPlan("iid", 2)
    out = as_(run.parent / f"divided by {as_.__name__}")
    return partition(as_(run.parent / "data" / "site-01"), out, plan, load_plugins().partition(plan.scheme))


def shared_test(run: Path, as_: Convert) -> str:
    data = load_global(as_(run.parent / "data"), Multiclass(4), *NORMAL)
    assert data is not None
    return data.digest


PLUGINS = {
    "adopt": "medfl_adopt",
    "open_run": "medfl_attacks",
    "write_cards": "medfl_report",
    "write_report": "medfl_report",
}
"""Maps each function outside the core to its package."""

API = {"run", "load_run", "compare", "evaluate"}
"""Functions of the Python API, whose own tests give them text and paths."""

CALLS: dict[str, Callable[[Path, Convert], Any]] = {
    "adopt": adopted,
    "partition": divided,
    "open_run": opened,
    "check_bundle": lambda run, as_: check_bundle(as_(run / "global")),
    "write_cards": cards,
    "read_datalist": lambda run, as_: read_datalist(as_(run.parent / "data" / "site-01")),
    "load_sites": lambda run, as_: [*load_sites(as_(run.parent / "data"), Multiclass(4), *NORMAL)],
    "load_global": shared_test,
    "load_site": lambda run, as_: load_site(as_(run.parent / "data" / "site-01"), Multiclass(4), *NORMAL).digest,
    "write_report": report,
    "read_run_files": lambda run, as_: read_run_files(as_(run)),
    "RunViewer": lambda run, as_: RunViewer(as_(run)).has_state,
    "read_run": lambda run, as_: read_run(as_(run)).run,
    "read_predictions": lambda run, as_: read_predictions(as_(run / "sites" / "site-01" / PREDICTIONS)).to_csv(),
    "read_metrics": lambda run, as_: read_metrics(as_(run / "metrics.csv")).to_csv(),
}
"""Maps each function to a call on a run folder, whose data are beside it, with paths in one of two forms."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    return run_bundle(make_data(folder / "data"), folder / "run", rounds=1, steps=1)


@pytest.mark.parametrize("name", CALLS)
def test_text_is_as_good_as_a_path(name: str, run: Path) -> None:
    call = CALLS[name]
    assert call(run, str) == call(run, Path)


def test_every_function_that_takes_text_is_called_here() -> None:
    takers = set()
    for file in (*(ROOT / "medfl").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")):
        takers |= set(takers_of_text(ast.parse(file.read_text(encoding="utf-8"))))
    absent = {name for name, package in PLUGINS.items() if not (ROOT / "plugins" / package).exists()}
    assert takers - API == set(CALLS) - {"load_sites", "load_global"} - absent  # the types of the two are written out


def takers_of_text(module: ast.Module) -> list[str]:
    """Names of the public functions and classes with an argument of the type ``PathLike``."""
    names = []
    for node in module.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inner:
            if isinstance(function, ast.FunctionDef) and (function.name == "__init__" or function is node):
                types = [ast.unparse(each.annotation) for each in function.args.args if each.annotation]
                if any("PathLike" in each for each in types):
                    names.append(node.name)
    return names
