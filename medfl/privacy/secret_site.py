"""A site of a run that hides single images: all its random numbers are secret, and it trains once in a step.

Dropout and random changes of images are handed out by the place of an image in its batch. Who knew them could tell
from the masks of the others whether an image stood before them, and no clipping would bound that. As they come from
the site's secret, no image's mask says anything about another one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

import torch

from medfl.contract import Site
from medfl.errors import ContractError
from medfl.task import Task


@dataclass
class SecretSite(Site):
    """A site whose `rng` is keyed by its secret, not by the run's seed, which the server knows.

    The same order gives the same numbers when it is carried out again.

    Attributes:
        order: A hash of the order that is carried out.
        trainings: How many private trainings began.
    """

    request: str = ""
    trainings: int = 0

    def rng(self, label: str) -> torch.Generator:
        """A generator that depends on (site secret; run id, round, label, order)."""
        return torch.Generator().manual_seed(self.secret_seed(label))

    def secret_seed(self, label: str) -> int:
        """A seed in [0, 2**63), keyed like `rng`."""
        return self.secret_rng(f"seed of {label}", self.request).seed()

    def count_training(self) -> None:
        """Called when a private training begins.

        Raises:
            ContractError: At the second one: the account reckons with one in a step.
        """
        self.trainings += 1
        if self.trainings > 1:
            raise ContractError(
                "several_trainings",
                f"Expected one training in a step of site '{self.name}', got a second one: with the privacy unit "
                "'sample' the account reckons with one, so the method may not support `Capability.DP_SGD`.",
                site=self.name,
            )


def secret_run_id(run_id: str, pixels: str, task: Task, network: str | None) -> str:
    """A run's name at one site: trainings of other pixels or another network share neither noise nor draws.

    Args:
        run_id: Names the run.
        pixels: A hash of the training images as the network sees them.
        task: Has the network.
        network: Name of the network that is trained; its layers count, not their numbers. None is the task's default.
    """
    with torch.random.fork_rng(devices=[]):  # a constructor draws numbers
        layers = re.sub(r"0x[0-9a-f]+", "", repr(task.build(network)))  # addresses differ from process to process
    return hashlib.sha256(json.dumps([run_id, pixels, layers]).encode()).hexdigest()
