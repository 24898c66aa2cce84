"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, PayloadKind, Replies, Server
from medfl.errors import SettingsError
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import add_to_kept, keep, kept
from medfl.toolkit.server_optimizer import lengthened
from medfl.training.loop import Batch
from medfl.training.sgd import check_sgd, way
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select

CONTROL = "control/"
"""What the names of control variates begin with in messages, and where they are kept."""


class Scaffold(Averaging):
    """FedAvg whose sites correct each step for how their own gradient differs from that of all sites.

    The server has a control variate c, a mean gradient, and each site its own c_i; all are zero at first, and cover the
    parameters that are shared. A site steps along g - c_i + c, by the term <y, c - c_i> in its loss, which the logged
    loss holds, too. Then it replies with its update and with c_i+ - c_i = (x - y) / (K lr) - c (option II), where K lr
    is the sum of the steps' lengths; with momentum, how far a constant gradient of 1 would go, which is ours. The
    server's c moves by the mean of these changes times the share of all sites that replied. All sites weigh alike, as
    in the paper: weights by size would need the sizes of absent sites. A site that takes no step keeps its c_i.

    With one round, and with one site however many rounds, this is `fedavg` with ``weights = uniform``, as long as
    `server_lr` is 1.

    It needs plain SGD, with or without momentum: from what Adam does no gradient can be read. Under a privacy setting
    for whole sites the change of c_i is clipped and noised together with the update, as one release. It is longer than
    the update, by 1 / (K lr), so most of the clip is spent on it. Where single images are hidden the method is refused.

    Under a robust rule (ours) the server reads the change of c from the rule's value v of the updates, -v / (K lr) - c,
    and passes over the changes that sites send. So all need the same K lr, which the setting `steps` sees to.

    When to use it: When FedAvg needs many local steps between rounds and unlike sites pull its model apart, and most
    sites take part in most rounds: what an absent site keeps of its c_i grows old. It sends twice as much.

    Attributes:
        server_lr: Length of the server's step, > 0; 1 is plain averaging.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1, option II.
    """

    name = "scaffold"
    family = "averaging"
    paper = "Karimireddy et al., ICML 2020"
    summary = "FedAvg whose sites correct each step for how unlike their gradients are to those of all"
    supports = frozenset({Capability.ROBUST})

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", CONTROL: "update"}

    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)

    # ---- the server

    def setup(self, server: Server) -> None:
        """The common initial model, and a control variate of zeros.

        Raises:
            SettingsError: If the task's optimiser is not SGD, or one with Nesterov's momentum or dampening; or if steps
                may be of unlike number or length under a robust rule.
        """
        super().setup(server)
        restarts = server.task.schedule is not None and server.task.schedule.restarts
        if server.settings.robust is not None and (server.settings.steps is None or restarts):
            raise SettingsError(
                "incompatible_settings",
                "Under a robust rule SCAFFOLD needs steps that are alike at all sites: set 'steps', and take a "
                "learning rate that does not restart in each round.",
                settings=("robust", "steps"),
                method="scaffold",
            )
        optimizer = server.task.optimizer([torch.nn.Parameter(torch.zeros(1))])
        check_sgd(optimizer, "SCAFFOLD reads a site's mean gradient from how far SGD went")
        tensors = server.state.tensors
        keep(server, CONTROL, {name: torch.zeros_like(tensors[name]) for name in server.state.meta["parameters"]})

    def weight(self, meta: Meta) -> float:
        """All sites weigh alike."""
        return 1.0

    def extra_down(self, server: Server) -> Tensors:
        """The server's control variate."""
        return prefixed(kept(server, CONTROL), CONTROL)

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The means, or under a robust rule one value."""
        if server.settings.robust is not None:
            server.state.meta["replied"] = len(replies)
        super().aggregate_updates(server, replies)

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """A step of length `server_lr`; buffers take the whole one. Under a robust rule c follows here."""
        if server.settings.robust is not None and server.settings.steps is not None:
            weight = torch.nn.Parameter(torch.zeros(1))
            optimizer = server.task.in_round(server.round, server.settings.lr_decay).optimizer([weight])
            length, common = moved_by(optimizer, server.settings.steps)[weight], kept(server, CONTROL)
            change = {name: -mean[name] / length - tensor.double() for name, tensor in common.items()}
            self.aggregate_extra(server, CONTROL, change, server.state.meta["replied"])
        return super().server_update(server, old, lengthened(server, mean, self.server_lr))

    def aggregate_extra(self, server: Server, prefix: str, mean: Tensors, replied: int) -> None:
        """c <- c + |S| / N times the mean change."""
        share = replied / len(server.trainable())
        super().aggregate_extra(server, prefix, {name: tensor * share for name, tensor in mean.items()}, replied)

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """c - c_i, where it is not zero everywhere: adding zero is not always adding nothing."""
        common, device = select(fit.received, CONTROL), fit.site.task.device
        own = {name: tensor.to(device) for name, tensor in kept(fit.site, CONTROL).items()}
        gaps = {name: tensor - own[name] if name in own else tensor for name, tensor in common.items()}
        if any(bool(gap.any()) for gap in gaps.values()):
            fit.extra["correction"] = gaps

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus <y, c - c_i>, whose gradient is the correction."""
        loss, gaps = super().loss(fit, batch), fit.extra.get("correction", {})
        terms = [(parameter * gaps[name]).sum() for name, parameter in fit.parameters() if name in gaps]
        return loss + torch.stack(terms).sum() if terms else loss

    def extra_up(self, fit: Fit) -> Tensors:
        """c_i+ - c_i, which the site adds to its own."""
        lengths, common, changes = moved_by(fit.optimizer, fit.steps), select(fit.received, CONTROL), Tensors()
        for name, parameter in fit.parameters():
            if name in common:
                changes[name] = (fit.start[name] - parameter.detach()) / lengths[parameter] - common[name]
        add_to_kept(fit.site, CONTROL, {name: change.cpu() for name, change in changes.items()})
        return prefixed(changes, CONTROL)


def moved_by(optimizer: torch.optim.Optimizer, steps: int) -> dict[torch.Tensor, float]:
    """How far each parameter goes in so many steps of SGD along a constant gradient of 1."""
    lengths: dict[torch.Tensor, float] = {}
    for group in optimizer.param_groups:
        lengths |= dict.fromkeys(group["params"], group["lr"] * way(group, steps))
    return lengths
