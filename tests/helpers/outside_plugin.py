"""A plugin in one file outside medfl: a method with filters and a second training, and a data set.

Tests load it by its path, as ``--plugin`` does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pydantic import Field

from medfl.contract import Capability
from medfl.data.datalists import Datalist
from medfl.data.ingest.spec import ImageSpec, ReadPlan
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.plugins import DatasetRecord, MethodRecord, hookimpl
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.training_specs import Training, TrainingBudget

PLACES = "/places"


class Largest:
    """Return the largest entries of each tensor of an update by magnitude, and their positions."""

    kinds = ("update",)

    def __init__(self, share: float) -> None:
        self.share = share

    def encode(self, tensors, rng):
        sent, shapes = {}, {}
        for name, tensor in tensors.items():
            sent[name] = tensor
            if tensor.is_floating_point() and tensor.numel():
                flat, count = tensor.flatten(), max(1, round(self.share * tensor.numel()))
                places = flat.abs().topk(count).indices.sort().values
                sent |= {name: flat[places], name + PLACES: places}
                shapes[name] = list(tensor.shape)
        return sent, {"shapes": shapes}

    def decode(self, tensors, meta):
        whole = {name: tensor for name, tensor in tensors.items() if not name.endswith(PLACES)}
        for name, shape in meta["shapes"].items():
            count, places = int(np.prod(shape)), tensors[name + PLACES]
            if count * self.share > len(places) + 1:
                raise ValueError("a shape of more entries than were sent")
            whole[name] = torch.zeros(count, dtype=tensors[name].dtype)
            whole[name][places] = tensors[name]
            whole[name] = whole[name].reshape(shape)
        return whole


class Half:
    """Numbers of 32 bits as 16."""

    kinds = ("update",)

    def encode(self, tensors, rng):
        single = sorted(name for name, tensor in tensors.items() if tensor.dtype == torch.float32)
        return tensors | {name: tensors[name].half() for name in single}, {"single": single}

    def decode(self, tensors, meta):
        return tensors | {name: tensors[name].float() for name in meta["single"]}


class Outside(Averaging):
    """FedAvg that sends the largest changes in half precision; each site trains a model of its own beside it.

    Attributes:
        share: Of the entries of each tensor that are sent, in (0, 1]; 1 sends all, without their places.
        own_epochs: Epochs of the site's own model, which begins as the shared one did.
    """

    name = "outside"
    family = "averaging"
    paper = ""
    summary = "half of FedAvg, and a model of one's own"
    supports = frozenset({Capability.ROBUST})

    share: float = Field(0.5, gt=0, le=1)
    own_epochs: int = Field(1, ge=0)

    def filters(self):
        """The places of the largest entries, if not all are sent, and half precision."""
        return (Half(),) if self.share == 1 else (Largest(self.share), Half())

    def trainings(self, site):
        """The shared model's, then the site's own."""
        return Training(), Training("own", apart=True, budget=TrainingBudget(epochs=self.own_epochs))


@hookimpl
def medfl_methods():
    """The method."""
    return [MethodRecord.of(Outside)]


class Scans(ImageSpec):
    """Made-up scans in one folder."""

    dataset = "outside_scans"
    terms = "free for all"
    citation = "nobody"

    source: Path
    """The folder."""

    def find(self):
        """All images."""
        return sorted(self.source.glob("*.png"))

    def plan_reading(self, files, say):
        """All of them."""
        return ReadPlan(
            items=files,
            places=range(len(files)),
            files=lambda path: [path],
            load=partial(read_scan, size=(8, 8)),
            shape=(8, 8, 3),
            recipe={"data set": "outside_scans"},
            cells=lambda place: (place + 1,),
            columns=("number",),
        )

    def datalist(self, outcome, say):
        """Labels alternate."""
        records = [
            {"image": row, "label": place % 2, "subject_id": f"subject-{row}"} for row, place in enumerate(outcome.kept)
        ]
        return Datalist(
            name="outside_scans",
            image_array="images.npy",
            num_classes=2,
            labels={"0": "even", "1": "odd"},
            modality="noise",
            licence=self.terms,
            splits={"training": records, "validation": [], "test": []},
            extra={"citation": self.citation},
        )


def read_scan(path, size):
    """One image."""
    return LoadedItem(resize(read_rgb(path), size))


def write_release(folder, images=8, seed=0):
    """A made-up release."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(images):
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(folder / f"scan-{number:04d}.png")
    return folder


@hookimpl
def medfl_datasets():
    """The data set."""
    target, synthetic = f"{__name__}:Scans", f"{__name__}:write_release"
    return [DatasetRecord("outside_scans", target, "noise", Scans.terms, "Made-up scans.", synthetic)]
