"""What was read of a bundle, and the overlay that it becomes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medfl.bundle.adopted import Used
from medfl.objectives import objective_class
from medfl.objectives.segmentation import OF_CASES
from medfl_adopt.cases import Cases
from medfl_adopt.ignored import Ignored
from medfl_adopt.objective import Recognition
from medfl_adopt.parts import Parts

OVERLAY, PAGE = "configs/federate.json", "docs/federate.md"
"""What is added to a bundle."""

TRAIN_LIST, VALIDATION_LIST, TEST_LIST = "adopted_train_list", "adopted_validation_list", "adopted_test_list"
"""Ids of the overlay for lists without the bundle's cuts."""

ROUNDS = 20
"""Of a run that names no other number."""


@dataclass(frozen=True)
class Adoption:
    """All that was read of a bundle.

    Attributes:
        root: The bundle.
        files: Kind of workflow (``train``, ``evaluate``, ``inference``) to its file under ``configs``.
        objective: What it learns.
        parts: Where the parts of a site's training stand.
        cases: Where a site's cases enter.
        amp: Whether it trains in mixed precision; None where only running tells.
        ignored: What a federation leaves out.
        used: The ids that a run builds; no other one has an effect.
        spacing: Whether its images say how large a voxel is, so that distances between masks are in millimetres.
        own_seed: Whether the bundle has an id ``seed`` itself, which is the run's then, too.
        batch_size: The id of the training loader's batch size, or None.
        weights: Files that its evaluation and inference read weights from.
        head: The module that is the network's head, by name; None where that is known of MONAI's network.
        stages: Those that are its stages; none where they are known.
    """

    root: Path
    files: dict[str, str]
    objective: Recognition
    parts: Parts
    cases: Cases
    amp: bool | None
    ignored: list[Ignored]
    used: Used
    spacing: bool = False
    own_seed: bool = False
    batch_size: str | None = None
    weights: tuple[str, ...] = ("models/model.pt",)
    head: str | None = None
    stages: tuple[str, ...] = ()

    def overlay(self) -> dict[str, Any]:
        """The content of ``configs/federate.json``.

        ``adopted`` holds facts and ids as plain text, which nothing evaluates. Where the bundle cuts its lists, the
        expressions without cuts stand beside it under ids of their own.
        """
        read = self.cases
        lists = {TRAIN_LIST: read.train_list, VALIDATION_LIST: read.validation_list, TEST_LIST: read.test_list}
        validation = None if read.mode == "one_list" else read.validation
        cases = replace(
            read,
            train_list=TRAIN_LIST if read.train_list else read.train,
            validation_list=VALIDATION_LIST if read.validation_list else validation,
            test_list=TEST_LIST if read.test_list else read.test,
        )
        objective = self.objective
        adopted = {
            "files": {kind: f"configs/{name}" for kind, name in self.files.items()},
            "objective": {
                "name": objective.name,
                "overlapping": objective.overlapping,
                "outputs": objective.outputs,
                "spacing": OF_CASES if self.spacing else None,
                "chosen": objective.chosen,
                "signs": [sign.text for sign in objective.signs],
            },
            "parts": self.parts.ids(),
            "modules": {"head": self.head, "stages": list(self.stages)},
            "amp": self.amp,
            "cases": asdict(cases),
            "weights": list(self.weights),
            "used": sorted(self.used.ids),
            "replaced": sorted(self.used.replaced),
            "ignored": [entry.facts() for entry in self.ignored],
        }
        settings = {"rounds": "@rounds", "seed": "@seed", "device": "@device"}
        settings |= {"batch_size": f"@{self.batch_size}"} if self.batch_size else {}
        settings |= {"precision": "amp"} if self.amp else {}
        metrics = list(objective_class(objective.name).metrics)
        content = {"adopted": adopted, **_RUN, "metrics": metrics, "settings": settings, **_FEDERATION}
        content |= {} if self.own_seed else {"seed": 0}
        names = (("loss", self.parts.loss), ("optimizer", self.parts.optimizer))
        content |= {name: f"@{id_}" for name, id_ in names if id_ != name}
        return content | {id_: text for id_, text in lists.items() if text}


_RUN: dict[str, Any] = {
    "imports": [],
    "method": "fedavg",
    "method_args": {},
    "rounds": ROUNDS,
    "schedule": "per_round",
    "val_fraction": 0.2,
    "test_fraction": 0.2,
    "sites": None,
    "output_dir": "$@bundle_root + '/runs/' + @method + '-' + str(@seed)",
    "device": "auto",
    "backend": "local",
    "allow_leaks": [],
    "plugins": [],
    "disabled_plugins": [],
    "given_by": "command line or a further file",
    "save_execute_config": True,
    "overrides": {},
}
"""What a user may say of a run, by ids of their own, and the defaults."""

_FEDERATION: dict[str, Any] = {
    "bundle": {
        "_target_": "medfl_adopt.bundle.AdoptedBundle",
        "root": "@bundle_root",
        "overrides": "@overrides",
    },
    "objective": {"_target_": "medfl_adopt.task.adopted_objective", "bundle": "@bundle"},
    "task": {
        "_target_": "medfl_adopt.task.adopted_task",
        "bundle": "@bundle",
        "objective": "@objective",
        "metrics": "@metrics",
        "schedule": "@schedule",
    },
    "source": {
        "_target_": "medfl_adopt.source.AdoptedSource",
        "bundle": "@bundle",
        "objective": "@objective",
        "val_fraction": "@val_fraction",
        "test_fraction": "@test_fraction",
    },
    "federation": {
        "_target_": "medfl.bundle.federated_run.FederatedRun",
        "task": "@task",
        "source": "@source",
        "bundle_root": "@bundle_root",
        "dataset_dir": "@dataset_dir",
        "output_dir": "@output_dir",
        "method": "@method",
        "method_args": "@method_args",
        "sites": "@sites",
        "allow_leaks": "@allow_leaks",
        "plugins": "@plugins",
        "disabled_plugins": "@disabled_plugins",
        "backend": "@backend",
        "given_by": "@given_by",
        "tracked_config": "@save_execute_config",
        "settings": "@settings",
    },
    "initialize": [],
    "run": ["$@federation.run()"],
    "finalize": [],
}
"""What is built of them when the run begins."""
