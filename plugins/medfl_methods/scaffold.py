"""SCAFFOLD: stochastic controlled averaging, which corrects client drift by control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Need, PayloadKind, Replies, Server
from medfl.errors import SettingsError
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.participant_state import add_to_auxiliary_state, auxiliary_state, set_auxiliary_state
from medfl.toolkit.server_optimizer import scale_parameter_updates
from medfl.training.loop import Batch
from medfl.training.sgd import check_sgd, distance_in_learning_rates
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select

CONTROL_PREFIX = "control/"
"""Prefix of the control variates in messages and in the state."""


class Scaffold(Averaging):
    """Stochastic controlled averaging (SCAFFOLD): control variates correct the drift of local training.

    The server has a control variate c, an estimate of the mean gradient of all sites, and each site k has its own c_k.
    Both are 0 at first and cover the shared parameters. Sites correct each local step by the difference c - c_k. All
    participants have equal weight, as in the paper; weights by size would need the sizes of unavailable sites.

    Update rule:
        With x the received model, y the local model after K steps of learning rate lr, and g the gradient of a batch:

            each local step:  direction -(g - c_k + c)
            c_k <- c_k + d_k,  d_k = (x - y) / (K lr) - c               (option II)
            x <- x + server_lr mean over participants of (y - x)
            c <- c + (participants / all sites) mean over participants of d_k

        The correction is implemented as the loss term ``<y, c - c_k>``, which the logged loss contains. K lr is the sum
        of the step lengths. With momentum, it is the distance that SGD covers along a constant gradient of 1 (an
        addition of medfl). A site that takes no step keeps its c_k.

    When to use it: When `fedavg` needs many local steps per round, heterogeneous sites pull its global model apart, and
    most sites take part in most rounds.

    Limits:
        The c_k of a site that rarely takes part is outdated. The traffic is twice as large as with `fedavg`. The method
        needs SGD, with or without momentum, but without Nesterov momentum or dampening: no gradient can be derived from
        the steps of Adam.

        Under site-level differential privacy, the change d_k is clipped and noised together with the update, as one
        release (one noised value that leaves the site). d_k is longer than the update by a factor of 1 / (K lr), so it
        takes most of the clipping bound. Record-level privacy is refused.

        Under a robust aggregation rule (an addition of medfl), the server ignores the sites' d_k. It computes the
        change of c from the rule's value v of the updates, as -v / (K lr) - c. All sites then need the same K lr, so
        the run needs the setting `steps`.

    Limit cases: In the first round, and in all rounds of a run with one site, this method is `fedavg` with ``weights =
    uniform``, if `server_lr` is 1.

    Attributes:
        server_lr: Step length of the server, > 0; 1 is plain averaging.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1, option II.
    """

    name = "scaffold"
    family = "averaging"
    paper = "Karimireddy et al., ICML 2020"
    summary = "FedAvg with control variates that correct the drift of local training"
    supports = frozenset({Capability.ROBUST})
    needs: ClassVar[frozenset[Need]] = frozenset({"one_learning_rate"})

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", CONTROL_PREFIX: "update"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""

    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model, with a control variate of 0.

        Raises:
            SettingsError: If the task's optimiser is not SGD, or has Nesterov momentum or dampening; or if a robust
                rule is set and the steps may differ between sites in number or length.
        """
        super().setup(server)
        restarts = server.task.schedule is not None and server.task.schedule.restarts
        if server.settings.robust is not None and (server.settings.steps is None or restarts):
            raise SettingsError(
                "incompatible_settings",
                "Under a robust rule SCAFFOLD needs the same steps at all sites: set 'steps', and use a "
                "learning rate that does not restart in each round.",
                settings=("robust", "steps"),
                method="scaffold",
            )
        optimizer = server.task.optimizer([torch.nn.Parameter(torch.zeros(1))])
        check_sgd(optimizer, "SCAFFOLD computes a site's mean gradient from the distance that SGD covered")
        tensors = server.state.tensors
        set_auxiliary_state(
            server, CONTROL_PREFIX, {name: torch.zeros_like(tensors[name]) for name in server.state.meta["parameters"]}
        )

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: 1, so that all participants have equal weight."""
        return 1.0

    def extra_request_tensors(self, server: Server) -> Tensors:
        """Return the tensors of each request besides the model: the server's control variate c."""
        return prefixed(auxiliary_state(server, CONTROL_PREFIX), CONTROL_PREFIX)

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average updates and changes of control variates; under a robust rule, aggregate the updates by the rule."""
        if server.settings.robust is not None:
            server.state.meta["replied"] = len(replies)
        super().aggregate_updates(server, replies)

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new global tensors after a step of length `server_lr`; buffers take the mean.

        Under a robust rule, also update c in the server's state.
        """
        if server.settings.robust is not None and server.settings.steps is not None:
            weight = torch.nn.Parameter(torch.zeros(1))
            optimizer = server.task.in_round(server.round, server.settings).optimizer([weight])
            length, common = (
                distance_covered(optimizer, server.settings.steps)[weight],
                auxiliary_state(server, CONTROL_PREFIX),
            )
            change = {name: -mean[name] / length - tensor.double() for name, tensor in common.items()}
            self.aggregate_extra(server, CONTROL_PREFIX, change, server.state.meta["replied"])
        return super().server_update(server, old, scale_parameter_updates(server, mean, self.server_lr))

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """Aggregate the changes of the control variates: add S / N times their mean to c, if S of N sites replied."""
        share = replied / len(server.trainable())
        super().aggregate_extra(server, prefix, {name: tensor * share for name, tensor in mean.items()}, replied)

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: compute c - c_k, unless it is 0 everywhere (adding 0 could change the last bits)."""
        common, device = select(fit.received, CONTROL_PREFIX), fit.site.task.device
        own = {name: tensor.to(device) for name, tensor in auxiliary_state(fit.site, CONTROL_PREFIX).items()}
        gaps = {name: tensor - own[name] if name in own else tensor for name, tensor in common.items()}
        if any(bool(gap.any()) for gap in gaps.values()):
            fit.extra["correction"] = gaps

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus <y, c - c_k>, whose gradient is the correction."""
        loss, gaps = fit.task_loss(batch), fit.extra.get("correction", {})
        terms = [(parameter * gaps[name]).sum() for name, parameter in fit.parameters() if name in gaps]
        return loss + torch.stack(terms).sum() if terms else loss

    def extra_reply_tensors(self, fit: Fit) -> Tensors:
        """Return the tensors for the server besides the update: the change d_k, which is also added to c_k."""
        lengths, common, changes = (
            distance_covered(fit.optimizer, fit.steps),
            select(fit.received, CONTROL_PREFIX),
            Tensors(),
        )
        for name, parameter in fit.parameters():
            if name in common:
                changes[name] = (fit.start[name] - parameter.detach()) / lengths[parameter] - common[name]
        add_to_auxiliary_state(fit.site, CONTROL_PREFIX, {name: change.cpu() for name, change in changes.items()})
        return prefixed(changes, CONTROL_PREFIX)


def distance_covered(optimizer: torch.optim.Optimizer, steps: int) -> dict[torch.Tensor, float]:
    """Compute the distance (the sum of step lengths) that SGD covers along a constant gradient of 1, per parameter.

    Args:
        optimizer: SGD optimiser, with or without momentum.
        steps: Number of steps, >= 0.

    Returns:
        Mapping from each parameter to its distance.
    """
    lengths: dict[torch.Tensor, float] = {}
    for group in optimizer.param_groups:
        lengths |= dict.fromkeys(group["params"], group["lr"] * distance_in_learning_rates(group, steps))
    return lengths
