"""Site in a run with the privacy unit ``sample``: all its random numbers are secret, and it trains once in a step.

Dropout masks and random augmentation are assigned by the position of an image in its batch. An attacker who knew them
could tell from the masks of other images whether a certain image was before them in the batch. Clipping does not bound
that leak. Because they come from the site's secret, the mask of an image reveals nothing about another image.
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
    """Site whose `rng` is keyed by its secret instead of the seed of the run, which the server knows.

    A repeated request gets the same random numbers.

    Attributes:
        request: Hash of the current request.
        trainings: Number of private trainings (by DP-SGD) that began in the current step.
    """

    request: str = ""
    trainings: int = 0

    def rng(self, label: str) -> torch.Generator:
        """Return a generator of secret random numbers for a purpose.

        Args:
            label: Name of the purpose. With the site's secret, the run id, the round and the hash of the request, it
                determines the numbers.
        """
        return torch.Generator().manual_seed(self.secret_seed(label))

    def secret_seed(self, label: str) -> int:
        """Return a secret seed in [0, 2**63) for a purpose, which depends on the same values as the numbers of `rng`.

        Args:
            label: Name of the purpose.
        """
        return self.secret_rng(f"seed of {label}", self.request).seed()

    def count_training(self) -> None:
        """Count a private training that begins.

        Raises:
            ContractError: If it is the second training in a step, because the account covers one training in a step.
        """
        self.trainings += 1
        if self.trainings > 1:
            raise ContractError(
                "several_trainings",
                f"Expected one training in a step of site '{self.name}', got a second one: with the privacy unit "
                "'sample' the account covers one, so the method must not support `Capability.DP_SGD`.",
                site=self.name,
            )


def derive_site_run_id(run_id: str, pixels: str, task: Task, network: str | None) -> str:
    """Return an identifier of a run at one site, from which the keys of the site's noise and subsampling are derived.

    Trainings on other images or with another network have other identifiers, so they never share noise.

    Args:
        run_id: Identifier of the run.
        pixels: Hash of the training images as the network receives them.
        task: The learning problem, which builds the network.
        network: Name of the network that is trained; None is the task's default. Its layers enter the identifier, not
            its parameters.
    """
    with torch.random.fork_rng(devices=[]):  # building a network draws random numbers
        layers = re.sub(r"0x[0-9a-f]+", "", repr(task.build(network)))  # memory addresses differ between processes
    return hashlib.sha256(json.dumps([run_id, pixels, layers]).encode()).hexdigest()
