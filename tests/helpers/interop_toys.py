"""A tiny bundle and three sites on disk, for tests of MONAI's client interface."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from monai.fl.utils.constants import ExtraItems
from monai.fl.utils.exchange_object import ExchangeObject

from medfl.bundle.client_algo import MedflAlgo
from medfl.bundle.opened_site import OpenedSite, open_site
from medfl.testing.synthetic import make_cohort
from medfl.types import Tensors

SOURCE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
SITES = ("site-01", "site-02", "site-03")
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "seed": 3,
    "optimizer#lr": 0.05,
    "device": "cpu",
    "metrics": ["accuracy", "auc"],
}


@dataclasses.dataclass(frozen=True)
class Files:
    """A bundle whose tiny network has batch norm and dropout, and three sites of unlike sizes."""

    bundle: Path
    cohort: Path

    def make(self, site: str = "site-01", send_weight_diff: bool = True, **changes: Any) -> MedflAlgo:
        """An initialised site."""
        algo = MedflAlgo(self.bundle, self.cohort, site, OPTIONS | changes, send_weight_diff)
        algo.initialize({ExtraItems.CLIENT_NAME: site})
        return algo


def write_files(folder: Path) -> Files:
    """Write both into a folder."""
    files = Files(folder / "tiny", folder / "sites")
    make_cohort(files.cohort, sites=3, images_per_site=24, classes=3, size=8, seed=1)
    (files.cohort / "partition.json").unlink()
    for keep, site in zip((16, 11, 7), SITES, strict=True):
        edit(files.cohort / site / "datalist.json", lambda lists, n=keep: {"training": lists["training"][:n]})
    shutil.copytree(SOURCE, files.bundle, ignore=shutil.ignore_patterns("models", "runs"))
    names = ("spatial_dims", "in_channels", "num_classes", "size")
    tiny = {"_target_": "medfl.networks.convnet.ConvNet", "_mode_": "callable"} | {name: f"@{name}" for name in names}
    tiny |= {"channels": [3, 4], "dense": 5, "norm": "batch", "padding": 1, "dropout": 0.5}
    edit(files.bundle / "configs" / "train.json", lambda _: {"networks": {"tiny": tiny}, "network_name": "tiny"})
    return files


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change some keys of a JSON file."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | change(content)))


@contextmanager
def opened_once() -> Iterator[None]:
    """A side is never changed, so that sites with the same options may have the same one; to read one takes longest."""
    sides: dict[str, OpenedSite] = {}

    def once(*options: Any) -> OpenedSite:
        if repr(options) not in sides:
            sides[repr(options)] = open_site(*options)
        return sides[repr(options)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("medfl.bundle.client_algo.open_site", once)
        yield


def global_weights(files: Files, **changes: Any) -> Tensors:
    """The common initial weights."""
    return files.make(send_weight_diff=False, **changes).get_weights().weights


def send(weights: Mapping[str, Any]) -> ExchangeObject:
    """Return weights in the form of a server's request."""
    return ExchangeObject(weights=dict(weights))


def trained(algo: MedflAlgo, weights: Mapping[str, Any], extra: dict[str, Any] | None = None) -> Tensors:
    """Train, and return the weights of the reply."""
    algo.train(send(weights), extra)
    return algo.get_weights().weights
