"""A small study, and a replacement for its runs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run_records import metric_scores, run_file, summary_of, task_of

from medfl.cli.run import parse_overrides
from medfl.data.partition_file import drawn_fold
from medfl.records.run_file import DataOrigin, Provenance, RunFile
from medfl.records.summary import Summary

SMALL: dict[str, Any] = {
    "name": "small",
    "about": "Nothing but a test.",
    "bundle": "medmnist_classification",
    "data": {"demo": {"folder": "cohort"}},
    "seeds": 2,
    "metrics": ["accuracy"],
    "baseline": "alone",
    "settings": {"rounds": 4, "optimizer#lr": 0.125},
    "scales": {"cpu": {"settings": {"rounds": 1}, "seeds": 1}},
    "rows": {"alone": {"method": "local"}, "fedprox mu=0.1": {"method": "fedprox", "method_args": {"mu": 0.1}}},
}


PREPARED: dict[str, Any] = {
    "breast": {
        "prep": {"dataset": "medmnist", "flag": "breastmnist"},
        "partition": {"scheme": "dirichlet_class_balanced", "sites": 3, "alpha": 1.0, "min_size": 4},
    }
}


def changed(study: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a study's content with changes, by keys joined by two underscores; None removes."""
    content = copy.deepcopy(study)
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        place = content
        for key in path:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return content


class Runs:
    """Stands in for the processes: writes what a run of a given method writes."""

    def __init__(self, failing: str = "", status: str = "finished") -> None:
        self.failing, self.status = failing, status
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], log: Path) -> int:
        self.commands.append(command)
        assert command[:4] == [sys.executable, "-m", "medfl", "run"]
        options = parse_overrides(command[5:])
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("the last words")
        if options["method"] == self.failing:
            return 2
        write_run(Path(options["output_dir"]), options, self.status)
        return 0


def write_run(folder: Path, options: dict[str, Any], status: str) -> None:
    """A run folder whose score is a number of its seed and method: 0.5 alone, 0.625 otherwise, plus seed / 8."""
    score = (0.5 if options["method"] == "local" else 0.625) + options["seed"] / 8
    sites = {"site-01": score, "site-02": score}
    args = {name.partition("#")[2]: value for name, value in options.items() if name.startswith("method_args#")}
    data = DataOrigin(fold=drawn_fold(options["dataset_dir"]))
    run = run_file(
        options["method"],
        list(sites),
        {"seed": options["seed"], "rounds": options["rounds"]},
        args,
        task_of(options["metrics"], optimizer="SGD{}"),
        str(options["dataset_dir"]),
        Provenance(data=data),
    )
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder / RunFile.NAME)
    scores = {"personal": {"test": {"accuracy": metric_scores(sites)}}}
    summary_of(run, scores, status).write(folder / Summary.NAME)
    rows = [f"{options['rounds']},site-01,personal,test,aggregated,accuracy,{score}"]
    if "trained" in options.get("moments", ()):
        rows += [
            f"{number},site-01,personal,test,trained,accuracy,{score}" for number in range(1, options["rounds"] + 1)
        ]
    (folder / "metrics.csv").write_text("\n".join(["round,site,model,split,moment,metric,value", *rows]) + "\n")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
