"""Record of an adopted bundle, and the overlay that is made from the record.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added an overlay, the configuration
``configs/federate.json`` of the federation. A cut is a slice of a list of cases by position, such as ``[:-9]``. A run
ignores the cuts, as each site has other cases. An id is the path of an entry in a bundle's configuration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medfl.bundle.adopted import UsedIds
from medfl.objectives import objective_class
from medfl.objectives.segmentation import SPACING_OF_EACH_CASE
from medfl.settings import BUNDLE_START
from medfl_adopt.cases import CaseLayout
from medfl_adopt.ignored_entries import IgnoredEntry
from medfl_adopt.objective import RecognizedObjective
from medfl_adopt.parts import PartIds

OVERLAY_FILE, PAGE_FILE = "configs/federate.json", "docs/federate.md"
"""Files that ``medfl adopt`` adds to a bundle: the overlay, and a page for the people who review the bundle."""

TRAIN_LIST, VALIDATION_LIST, TEST_LIST = "adopted_train_list", "adopted_validation_list", "adopted_test_list"
"""Ids in the overlay for the lists of training, validation and test cases without the bundle's cuts."""

MODEL_NAME = "model.pt"
"""Name of the file of a bundle's weights by MONAI's convention."""

DEFAULT_ROUNDS = 20
"""Default number of rounds of a run, written to the overlay."""


@dataclass(frozen=True)
class Adoption:
    """Everything that ``medfl adopt`` read and recognized of a stock bundle.

    Attributes:
        root: Folder of the bundle.
        files: Maps the kind of workflow (``train``, ``evaluate``, ``inference``) to its file under ``configs``.
        objective: Learning objective of the bundle.
        parts: Ids of the parts of a site's training, such as network, loss and data sets.
        cases: Ids and files that define the cases of a site.
        amp: Whether the bundle trains in mixed precision; None if only running it can tell.
        ignored: Entries of the bundle that a federation ignores, with reasons.
        used: Ids of components that a run builds; other ids have no effect.
        spacing: Whether the images have a voxel spacing, so that distances between masks are in millimetres.
        own_seed: Whether the bundle itself defines an id ``seed``; a run then uses that value as its seed.
        batch_size: Id of the training loader's batch size, or None.
        weights: Files from which the bundle's evaluation and inference read weights.
        head: Module name of the network's head (last layer), as the user gave it; None if medfl knows it.
        stages: Module names of the network's stages, as the user gave them, in order; empty if medfl knows them.
        start: File of weights from which a run starts, relative to the bundle; None if the bundle has none.
    """

    root: Path
    files: dict[str, str]
    objective: RecognizedObjective
    parts: PartIds
    cases: CaseLayout
    amp: bool | None
    ignored: list[IgnoredEntry]
    used: UsedIds
    spacing: bool = False
    own_seed: bool = False
    batch_size: str | None = None
    weights: tuple[str, ...] = ("models/model.pt",)
    head: str | None = None
    stages: tuple[str, ...] = ()
    start: str | None = None

    @property
    def start_sentence(self) -> str:
        """Sentence for users: from which weights a run starts, and how to change that."""
        if self.start is None:
            return (
                "A run starts from random weights, because the bundle has none of its files of weights. "
                "`--start FILE` names others."
            )
        return (
            f"A run starts from the bundle's weights, {self.start}. `--start none` starts from random weights, and "
            "`--start FILE` from other ones."
        )

    def overlay(self) -> dict[str, Any]:
        """Return the content of the overlay ``configs/federate.json``.

        The entry ``adopted`` contains everything that was recognized, as plain text that MONAI never evaluates. The
        other entries are options of a run and components of the federation. If the bundle cuts its case lists, the
        expressions without cuts have ids of their own.
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
                "spacing": SPACING_OF_EACH_CASE if self.spacing else None,
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
            "ignored": [entry.to_json() for entry in self.ignored],
        }
        settings = {"rounds": "@rounds", "seed": "@seed", "device": "@device"}
        settings |= {"batch_size": f"@{self.batch_size}"} if self.batch_size else {}
        settings |= {"precision": "amp"} if self.amp else {}
        settings |= {} if self.start is None else {"start": _start_setting(self.start)}
        metrics = list(objective_class(objective.name).metrics)
        content = {
            "adopted": adopted,
            **_RUN_OPTIONS,
            "metrics": metrics,
            "settings": settings,
            **_FEDERATION_COMPONENTS,
        }
        content |= {} if self.own_seed else {"seed": 0}
        names = (("loss", self.parts.loss), ("optimizer", self.parts.optimizer))
        content |= {name: f"@{id_}" for name, id_ in names if id_ != name}
        return content | {id_: text for id_, text in lists.items() if text}


def _start_setting(path: str) -> str:
    """Return the value of the setting ``start`` for a file in the folder ``models`` of a bundle."""
    name = Path(path).name
    return BUNDLE_START if name == MODEL_NAME else f"{BUNDLE_START}:{name}"


_RUN_OPTIONS: dict[str, Any] = {
    "imports": [],
    "method": "fedavg",
    "method_args": {},
    "rounds": DEFAULT_ROUNDS,
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
"""Options of a run with their defaults."""

_FEDERATION_COMPONENTS: dict[str, Any] = {
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
"""Components that are built when a run starts."""
