"""Plugin file with three attacks that can't be executed, and results of them; studies load it by its path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import JsonValue

from medfl.errors import SettingsError
from medfl.hooks import ATTACKS_FOLDER, AttackRecord, hookimpl
from medfl.records.record import FileRecord, Record


@dataclass(frozen=True)
class GuessOptions:
    """Options of the attack ``guess``."""

    images: int | None = None
    round: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 2:
            text = f"expected images >= 2, got {self.images}."
            raise SettingsError("setting_out_of_range", text, setting="images", minimum=2, found=self.images)


@dataclass(frozen=True)
class RebuildOptions:
    """Options of the attack ``rebuild``."""

    target: str = "all"
    smoothness: float = 0.1
    steps: int = 9


@dataclass(frozen=True)
class HarmOptions:
    """Options of the attack ``harm``."""

    wanted: str = ""


class Guess(Record):
    """A result of the attack ``guess``."""

    target: str = "global"
    attack: str = "loss"
    round: int | None = None
    auc: float
    tpr: float = float("nan")
    recall: float = 0.654


class Rebuilt(Record):
    """A result of the attack ``rebuild``."""

    target: str = "shared"
    attack: str = "decoder"
    item: str = "x_p"
    mse: float
    psnr: float = float("inf")
    ssim: float = 0.25


class Harm(Record):
    """A result of the attack ``harm``."""

    target: str = "global"
    attack: str = "backdoor"
    accuracy: float
    worst: float | None = None
    success: float = 0.5


class GuessFile(FileRecord):
    """Results of the attack ``guess``."""

    NAME: ClassVar[str] = "guess.json"
    options: dict[str, JsonValue]
    results: tuple[Guess, ...]


class RebuildFile(FileRecord):
    """Results of the attack ``rebuild``."""

    NAME: ClassVar[str] = "rebuild.json"
    options: dict[str, JsonValue]
    results: tuple[Rebuilt, ...]


class HarmFile(FileRecord):
    """Results of the attack ``harm``."""

    NAME: ClassVar[str] = "harm.json"
    options: dict[str, JsonValue]
    results: tuple[Harm, ...]


@hookimpl
def medfl_attacks() -> list[AttackRecord]:
    """Return the attacks."""
    return [
        AttackRecord(
            "guess",
            f"{__name__}:GuessOptions",
            f"{__name__}:GuessFile",
            measures={"auc": "AUC", "tpr": "TPR", "recall": "recall"},
            note="Chance is 0.5.",
        ),
        AttackRecord(
            "rebuild",
            f"{__name__}:RebuildOptions",
            f"{__name__}:RebuildFile",
            measures={"mse": "MSE", "psnr": "PSNR", "ssim": "SSIM"},
            digits={"mse": 4, "psnr": 1},
        ),
        AttackRecord(
            "harm",
            f"{__name__}:HarmOptions",
            f"{__name__}:HarmFile",
            measures={"accuracy": "accuracy", "worst": "worst site", "success": "success"},
            note="In brackets: 95 % interval over the seeds.",
            has_intervals=True,
        ),
    ]


FILES: dict[str, type[GuessFile] | type[RebuildFile] | type[HarmFile]] = {
    "guess": GuessFile,
    "rebuild": RebuildFile,
    "harm": HarmFile,
}


def write(folder: Path, name: str, options: dict[str, Any], *results: Record) -> None:
    """Write results of an attack into a run folder."""
    kind = FILES[name]
    kind.model_validate({"options": options, "results": results}).write(folder / ATTACKS_FOLDER / kind.NAME)
