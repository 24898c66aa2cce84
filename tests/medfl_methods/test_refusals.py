"""Tests of settings, networks and data that methods refuse before a site trains, by error code and fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from toys import Headed

from medfl.data.pooled import EmptyDataset, TensorData
from medfl.errors import DataError, MedflError, SettingsError
from medfl.networks.parts import mlp
from medfl.plugins import load_plugins
from medfl.task import ImageScale
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_data, make_sites, make_task
from medfl.testing.tasks import OTHER_OBJECTIVES, make_sites_of, make_task_of

REGISTRY = load_plugins()

# ---- networks and data that some methods refuse


class RenamedPartNet(SmallNet):
    """Tiny network with its body or its head under another attribute name."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = getattr(self, part)
        self.replaced = part
        delattr(self, part)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(images)) if self.replaced == "body" else self.part(self.body(images))


class FlatNet(nn.Module):
    """Network with a linear layer as body, without stages, and a linear head; fewer features than classes."""

    def __init__(self, features: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, features))
        self.head = nn.Linear(features, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


class ThreeStages(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.feature_layers = [self.body[0], *self.feature_layers]


ODD_TASK = dataclasses.replace(
    make_task(),
    networks=make_task().networks
    | {
        "headless": lambda: RenamedPartNet("head"),
        "bodyless": lambda: RenamedPartNet("body"),
        "flat": FlatNet,
        "three stages": ThreeStages,
        "no head": lambda: Headed(nn.Identity()),
        "curved head": lambda: Headed(nn.Sequential(nn.Unflatten(1, (24, 1)), nn.Conv1d(24, 3, 1), nn.Flatten())),
        "odd head": lambda: Headed(nn.Sequential(nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, CLASSES))),
        "deep head": lambda: Headed(mlp(24, (5,), CLASSES)),
    },
)
PLAIN = make_task("plain")


def on(network: str, **changes: Any) -> dict[str, Any]:
    """Return options of a run in which every site trains the given network, on a task with the given changes."""
    return {"task": dataclasses.replace(ODD_TASK, network=network, **changes)}


def beside(network: str) -> dict[str, Any]:
    """Return options of a run in which site-2 trains the given network and the others the tiny one."""
    return {"task": ODD_TASK, "networks_by_site": {"site-2": network}}


def optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    """Return options of a run whose sites train with the given optimiser."""
    return on("norm", optimizer=lambda parameters: kind(parameters, lr=0.1, **options))


def without_validation(*names: str) -> dict[str, Any]:
    """Return options of a run in which the given sites have no validation images."""
    sites = make_sites()
    return {"sites": sites | {name: dataclasses.replace(sites[name], val=EmptyDataset()) for name in names}}


def regions(labels: torch.Tensor, network: str = "norm") -> dict[str, Any]:
    """Return options of a run with an atlas."""
    return on(network, regions=labels)


def public(labels: list[int]) -> dict[str, Any]:
    """Return options of a run with public images of the given classes."""
    images = make_data(len(labels), "public", torch.zeros(len(labels), dtype=torch.int64)).images
    return {"public": TensorData(images, torch.tensor(labels, dtype=torch.int64))}


class ChangingImages(TensorData):
    """Images that change at each access."""

    def visits(self, batches: Any, stream: Any) -> Any:
        raise AssertionError


PRIVATE = {"task": PLAIN, "privacy": {"unit": "site", "epsilon": 5.0, "clip": 1.0, "delta": 0.01}}
PRIVATE_SAMPLES = {"task": PLAIN, "privacy": PRIVATE["privacy"] | {"unit": "sample"}}
TWO_CLASSES = {"task": make_task_of(OTHER_OBJECTIVES[0]), "sites": make_sites_of(OTHER_OBJECTIVES[0], {"a": 8, "b": 6})}


class RefusedRun:
    """Run that ends with an error before a site trains.

    Args:
        code: Code of the error.
        args: Settings of the method.
        run: Options of the run.
        error: Class of the error.
        **fields: Fields of the error, with their values.
    """

    def __init__(
        self,
        code: str,
        args: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        error: type[MedflError] = SettingsError,
        **fields: Any,
    ) -> None:
        self.code, self.args, self.run, self.error, self.fields = code, dict(args or {}), run or {}, error, fields


def out_of_range(*options: tuple[str, Any]) -> tuple[RefusedRun, ...]:
    """Return the refusals of numbers outside their settings' range."""
    return tuple(RefusedRun(OUT, {name: value}, settings=[name]) for name, value in options)


def invalid(*options: tuple[str, Any]) -> tuple[RefusedRun, ...]:
    """Return the refusals of values by a setting's own validator."""
    return tuple(RefusedRun("invalid_setting", {name: value}, settings=[name]) for name, value in options)


def unknown(*names: str) -> tuple[RefusedRun, ...]:
    """Return the refusals of unknown choices."""
    return tuple(RefusedRun("unknown_choice", {name: "no such"}, settings=[name]) for name in names)


def private(*sends: str, run: Mapping[str, Any] = PRIVATE) -> RefusedRun:
    """Return the refusal of a privacy setting, because of the payloads of the method."""
    fields = {"sends": [*sends]} if sends else {}
    return RefusedRun("method_not_supported", run=run, feature="privacy", **fields)


OUT = "setting_out_of_range"
NO_DP_SGD = RefusedRun("method_not_supported", run=PRIVATE_SAMPLES, feature="dp_sgd")
NO_ADAM = RefusedRun("unsupported_optimizer", run=optimizer(torch.optim.Adam), optimizer="Adam", options=[])
NESTEROV = optimizer(torch.optim.SGD, nesterov=True, momentum=0.9)
NO_NESTEROV = RefusedRun("unsupported_optimizer", run=NESTEROV, optimizer="SGD", options=["nesterov"])
NO_VALIDATION = RefusedRun("no_images", run=without_validation("site-2"), split="val", sites=["site-2"])
TINY_IMAGES = RefusedRun("image_too_small", run=on("plain", scale=ImageScale((1, 3, 3))), minimum=4, found=[3, 3])
NO_SCALE = RefusedRun("missing_scale", run=on("plain", scale=None))
SDC_PRIVATE = ["gamma", "ensemble", "privacy"]
SDC_RANGES = ([0.9, 0.4], [0.0, 1.0], [0.4, 1.1], [0.4, math.nan])
LIKE_HEADS = {"beta": 0.0, "diversity": False}
AVERAGE = {"global_head": "average"}
KPER_NUMBERS = ("lambda_cap", "tau", "gradient_clip", "score_eps")
SMOOTH = on("norm", loss=nn.CrossEntropyLoss(label_smoothing=0.1))
REGIONS = {"skd": ["region"]}

REFUSED = {
    "dbe": (private("'mean/' (statistic)"),),
    "fedamp": (RefusedRun(OUT, {"alpha_k": 2.0, "sigma": 3.0}, setting="alpha_k", sites=2, maximum=1.5, found=2),),
    "fedce": (NO_VALIDATION,),
    "fedcross": (private(),),
    "fedcross_star": (
        private(),
        *invalid(("p2p_scale", 0), ("p2p_scale", -1)),
        *(RefusedRun("invalid_settings", {"p2p_scale": scale}) for scale in ("M", 1.5)),
    ),
    "feddf": (RefusedRun("incomplete_model", run={"norm_sync": "params"}, norm_sync="params", network="norm"),),
    "feddg_ga": (NO_VALIDATION,),
    "fedadagrad": (*unknown("v0"), RefusedRun("unknown_setting", {"beta2": 0.9}, settings=["beta2"])),
    "fedadam": out_of_range(("tau", 0.0), ("beta2", 1.0)),
    "fedavgm": out_of_range(("beta", 1.0), ("beta", -0.1), ("server_lr", 0.0)),
    "fedyogi": out_of_range(("eta", math.inf)),
    "feddisco": (
        private("'label_counts' (metadata that it requires)"),
        private("'label_counts' (metadata that it requires)", run=PRIVATE_SAMPLES),
        *out_of_range(("a", -0.1), ("b", math.nan)),
        *unknown("metric", "target"),
    ),
    "feddr_plus": (RefusedRun("incompatible_settings", run={"balance": "loss"}, settings=["ce_mode", "balance"]),),
    "feddyn": (RefusedRun("missing_site_sizes", {"by_size": True}, {"disclose": ()}, setting="by_size"),),
    "fedfa": (RefusedRun("too_few_features", run=on("flat"), minimum=3, found=2),),
    "fedfed": (
        private("'shared/' (samples)"),
        private("'shared/' (samples)", run=PRIVATE_SAMPLES),
        TINY_IMAGES,
        NO_SCALE,
        *out_of_range(("clip", -1.0)),
        *invalid(("noise_std", (0.1, 0.0)), ("noise_std", ())),
    ),
    "fedkd": (RefusedRun("invalid_setting", {"energy_start": 1.0, "energy_end": 1.0, "max_rank": 3}),),
    "fedkper": (
        *out_of_range(
            *((name, bad) for name in ("lambda_cap", "tau", "gradient_clip", "score_eps") for bad in (-1.0, math.nan))
        ),
        RefusedRun("wrong_setting_type", {"tau": "much"}, settings=["tau"]),
        *unknown("lambda_scope", "lambda_mode", "aggregation", "score"),
    ),
    "fedmd": (
        private("'scores/' (statistic)"),
        RefusedRun(
            "data_not_supported", run={"public": ChangingImages(*make_data(12, "public").batch(torch.arange(12)))}
        ),
    ),
    "fednova": (
        NO_ADAM,
        RefusedRun(
            "unsupported_optimizer",
            run=optimizer(torch.optim.SGD, nesterov=True, momentum=0.9),
            options=["nesterov"],
        ),
        private(),
    ),
    "fedper": (
        RefusedRun("unlike_bodies", run=beside("wide"), network="wide", expected="norm"),
        RefusedRun("unlike_bodies", run=beside("plain"), network="plain", expected="norm"),
        RefusedRun("empty_head", run=beside("no head"), network="no head"),
        RefusedRun("unlike_heads", AVERAGE, beside("deep head"), networks=["deep head", "norm"]),
        RefusedRun(
            "incompatible_settings",
            AVERAGE,
            {"norm_sync": "none"},
            settings=["global_head", "norm_sync"],
        ),
    ),
    "fedproto": (
        RefusedRun("unlike_feature_counts", run=beside("wide"), counts={"norm": 24, "wide": 36}),
        RefusedRun("unmet_need", {"inference": "prototype"}, TWO_CLASSES, method="fedproto", need="class_logits"),
    ),
    "fedrod": (RefusedRun("loss_not_supported", run=SMOOTH, setting="gamma"),),
    "fedsdc": (
        RefusedRun(OUT, {"heads": 2}, setting="heads", expected=3, found=2),
        RefusedRun(OUT, {"heads": 3}, {"fraction": 0.67}, setting="heads", expected=2, found=3),
        RefusedRun(OUT, {"heads": 2, "shuffle": False}, {"fraction": 0.67}, setting="heads", expected=3, found=2),
        *out_of_range(("heads", 0), ("gamma", 0), ("gamma", 1.5), ("dropout", 1.0), ("beta", 1.0)),
        *unknown("ensemble"),
        *(
            refusal
            for args in ({"gamma": 0.3}, {"ensemble": "single_best"})
            for refusal in (
                RefusedRun("no_images", args, without_validation(*make_sites()), split="val"),
                RefusedRun("incompatible_settings", args, PRIVATE, settings=SDC_PRIVATE),
            )
        ),
        *(RefusedRun("invalid_setting", {"rho": rho}, where="method 'fedsdc'", settings=[""]) for rho in SDC_RANGES),
        RefusedRun("missing_setting", {"rho": [0.4]}, settings=["rho.1"]),
        RefusedRun("unmet_need", run=on("headless"), method="fedsdc", need="linear_head"),
        RefusedRun("unmet_need", LIKE_HEADS, on("headless"), need="linear_head"),
        RefusedRun("unsupported_head", LIKE_HEADS, on("odd head"), found="Sequential"),
    ),
    "fedskd": (
        RefusedRun("empty_atlas", REGIONS, regions(torch.zeros(6, 6).long()), DataError),
        RefusedRun("unlike_stage_counts", run=beside("three stages"), counts={"three stages": 3, "norm": 2}),
        RefusedRun("unmet_need", {"freeze_ktm_header": False}, beside("flat"), method="fedskd", need="features"),
        RefusedRun("unmet_need", run=beside("headless"), method="fedskd", need="head"),
        RefusedRun(OUT, {"layers": [1, 3]}, setting="layers", maximum=2, found=[3]),
        RefusedRun(OUT, {"layers": [0]}, setting="layers", minimum=1, found=[0]),
        RefusedRun("missing_regions", {"skd": ["batch", "region"]}, setting="skd"),
        *(
            RefusedRun("invalid_setting", {name: value}, settings=[name])
            for name, value in (
                ("skd", []),
                ("skd", ["batch"] * 2),
                ("layers", []),
                ("layers", [1, 1]),
                ("p2p_scale", 0),
            )
        ),
        RefusedRun("unknown_choice", {"skd": ["voxel"]}, settings=["skd.0"]),
        *out_of_range(("gamma", -1), ("gamma", math.inf), ("start_fraction", 1.5)),
        *unknown("skd_detach"),
    ),
    "fedsm": (RefusedRun("incomplete_model", run={"norm_sync": "params"}, norm_sync="params"),),
    "fedtpf": (
        private("'shared/' (samples)"),
        private("'shared/' (samples)", run=PRIVATE_SAMPLES),
        RefusedRun("incompatible_settings", run={"balance": "loss"}, settings=["method", "balance"]),
        TINY_IMAGES,
        NO_SCALE,
        *(RefusedRun(OUT, {"latent": latent}, setting="latent", expected=24, found=latent) for latent in (4, 1)),
        *out_of_range(
            ("variance", 0.0), ("variance", math.inf), ("clip", 0.0), ("share_fraction", 1.5), ("distil_rounds", 0)
        ),
        *unknown("decay", "share"),
    ),
    "isfl": (
        RefusedRun("incompatible_settings", run={"balance": "sampling"}, settings=["method", "balance"]),
        RefusedRun("incompatible_settings", {"target": "counts"}, PRIVATE, settings=["target", "privacy"]),
        NO_DP_SGD,
    ),
    "pfedcdp": (
        *(
            RefusedRun("invalid_setting", {"server_classifier": "none"} | args, settings=[""])
            for args in ({}, {"lam": 0.0}, {"refine": None})
        ),
        *(
            RefusedRun("invalid_setting", {"refine": {"probe_epochs": 0} | refine}, settings=["refine"])
            for refine in ({"losses": "scl"}, {"alpha": 0.0})
        ),
        RefusedRun("unknown_setting", {"refine": {"epoch": 3}}, settings=["refine.epoch"]),
        RefusedRun("wrong_setting_type", {"refine": "kd"}, settings=["refine"]),
        *out_of_range(
            ("lam", 1.1),
            ("lam", -0.1),
            ("tau", 0.0),
            ("personal_share", 1.5),
            ("fisher_samples", 0),
            ("head_share", -1),
        ),
        *unknown("estimator", "server_classifier"),
        *(
            RefusedRun("unmet_need", {"refine": None}, beside(network), need="linear_head")
            for network in ("headless", "curved head", "bodyless")
        ),
        *(
            RefusedRun(code, {"refine": {"student": network}}, on("norm"), **fields)
            for network, code, fields in (
                ("headless", "missing_head", {"network": "headless"}),
                ("curved head", "missing_feature_layer", {"network": "curved head", "found": "Sequential"}),
                ("bodyless", "missing_feature_layer", {"network": "bodyless"}),
                ("plane", "unknown_choice", {"what": "network", "choice": "plane"}),
            )
        ),
        RefusedRun("noisy_statistics", run={"privacy": {"epsilon": 5.0, "clip": 1.0}}, setting="norm_sync"),
        RefusedRun("incomplete_model", run={"norm_sync": "params"}, network="norm"),
        RefusedRun("too_few_images", run=public([0, 1, 2]), setting="refine.teachers", minimum=2),
        RefusedRun("missing_public_data", run=public([]), error=MedflError, method="pfedcdp"),
        RefusedRun("wrong_label", run=public([0, 7]), error=MedflError, where="Public data", row=1, found=7),
        NO_DP_SGD,
    ),
    "scaffold": (
        NO_ADAM,
        RefusedRun(
            "unsupported_optimizer",
            run=optimizer(torch.optim.SGD, nesterov=True, momentum=0.9),
            options=["nesterov"],
        ),
        NO_DP_SGD,
    ),
}


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        pytest.param(name, refusal, id=f"{name}-{number}-{refusal.code}")
        for name, refusals in REFUSED.items()
        for number, refusal in enumerate(refusals)
    ],
)
def test_method_refuses_the_run_before_training(tmp_path: Path, name: str, refusal: RefusedRun) -> None:
    with refused(refusal.error, refusal.code, **refusal.fields):
        Case(REGISTRY, name, refusal.args).run(tmp_path, **{"rounds": 2, **refusal.run})
    assert not (tmp_path / "state" / "site-1").exists(), "a site has trained before the refusal"
