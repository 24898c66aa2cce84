"""What was read of a bundle, and the overlay that it becomes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medfl.bundle.adopt.cases import Cases
from medfl.bundle.adopt.ignored import Ignored
from medfl.bundle.adopt.objective import Recognition
from medfl.bundle.adopt.parts import Parts

OVERLAY, PAGE = "configs/federate.json", "docs/federate.md"
"""What is added to a bundle."""

TRAIN_LIST, VALIDATION_LIST = "adopted_train_list", "adopted_validation_list"
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
        own_seed: Whether the bundle has an id ``seed`` itself, which is the run's then, too.
        batch_size: The id of the training loader's batch size, or None.
    """

    root: Path
    files: dict[str, str]
    objective: Recognition
    parts: Parts
    cases: Cases
    amp: bool | None
    ignored: list[Ignored]
    own_seed: bool = False
    batch_size: str | None = None

    def overlay(self) -> dict[str, Any]:
        """The content of ``configs/federate.json``.

        ``adopted`` holds facts and ids as plain text, which nothing evaluates. Where the bundle cuts its lists, the
        expressions without cuts stand beside it under ids of their own.
        """
        lists = {TRAIN_LIST: self.cases.train_list, VALIDATION_LIST: self.cases.validation_list}
        cases = replace(
            self.cases,
            train_list=TRAIN_LIST if self.cases.train_list else self.cases.train,
            validation_list=None if self.cases.mode == "one_list" else self.cases.validation,
        )
        if self.cases.validation_list:
            cases = replace(cases, validation_list=VALIDATION_LIST)
        objective = self.objective
        adopted = {
            "files": {kind: f"configs/{name}" for kind, name in self.files.items()},
            "objective": {
                "name": objective.name,
                "overlapping": objective.overlapping,
                "outputs": objective.outputs,
                "chosen": objective.chosen,
                "signs": [sign.text for sign in objective.signs],
            },
            "parts": self.parts.ids(),
            "amp": self.amp,
            "cases": asdict(cases),
            "ignored": [entry.what for entry in self.ignored],
        }
        settings = {"rounds": "@rounds", "seed": "@seed"}
        settings |= {"batch_size": f"@{self.batch_size}"} if self.batch_size else {}
        content = {"adopted": adopted, "method": "fedavg", "method_args": {}, "rounds": ROUNDS, "settings": settings}
        content |= {} if self.own_seed else {"seed": 0}
        return content | {id_: text for id_, text in lists.items() if text}
