"""Synthetic attack results, and files with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medfl_attacks.attack_files import (
    AttackedRun,
    Histogram,
    InversionFile,
    InversionResult,
    MembershipFile,
    MembershipResult,
    PoisoningFile,
    PoisoningResult,
    results_path,
)

MEMBERSHIP = MembershipResult(
    target="global",
    attack="shadow_topk",
    members=1200,
    non_members=300,
    accuracy_members=0.9,
    accuracy_non_members=0.8,
    auc=0.61,
    auc_interval=(0.58, 0.64),
    interval_over="images",
    tpr_at_1_fpr=0.025,
    recall=0.654,
    false_alarms=0.44,
    accuracy=0.607,
    recall_balanced=0.57,
    roc=((0.0, 0.0), (1.0, 1.0)),
    histogram=Histogram(edges=(0.0, 1.0), members=(1200,), non_members=(300,)),
)
INVERSION = InversionResult(
    target="shared",
    attack="fixed_point",
    item="x_p",
    images=16,
    mse=0.0314,
    psnr=15.03,
    ssim=0.25,
    best_mse=0.01,
    best_psnr=20.0,
    best_ssim=0.5,
)
POISON = PoisoningResult(
    target="global",
    attack="backdoor",
    attackers=1,
    sites=3,
    images=400,
    interval_over="images",
    accuracy=0.8,
    accuracy_interval=(0.75, 0.84),
)


def write(folder: Path, kind: str, options: dict[str, Any], results: Sequence[Any]) -> Path:
    """Write synthetic results of a kind into a run's folder, and return the file."""
    path = results_path(folder, kind)
    run = AttackedRun(method="fedavg", seed=0, rounds=1)
    if kind == "membership":
        MembershipFile(options=options, results=tuple(results), run=run, classes=2, shadow=()).write(path)
    elif kind == "inversion":
        InversionFile(options=options, results=tuple(results)).write(path)
    else:
        PoisoningFile(options=options, results=tuple(results)).write(path)
    return path
