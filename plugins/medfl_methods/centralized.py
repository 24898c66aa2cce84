"""Centralized training, the reference that federated methods are measured against."""

from __future__ import annotations

from typing import ClassVar

from medfl_methods.fedavg import FedAvg


class Centralized(FedAvg):
    """One model on the pooled training data of all sites, for as many epochs as rounds times local epochs.

    It needs what hospitals can't do, pooling images, and runs in a simulation only. The optimiser starts anew each
    round, as at the sites; so with one site this is FedAvg, bit for bit. The pooled images are visited once an epoch,
    which matches the budget of full participation.

    When to use it: In a study, to see how much is lost because data stay apart. It is a yardstick, not a choice that
    hospitals have; on unlike sites a personal method can even beat it.
    """

    pools_data: ClassVar[bool] = True
