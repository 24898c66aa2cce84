"""Centralized training, the reference that federated methods are measured against."""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, Need, Participant, Reply, Request, Server, Site
from medfl.toolkit.aggregation import subtract
from medfl.toolkit.fit import FitResult
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.transfer import as_host
from medfl.training.optimizer_state import PREFIX as OPTIMIZER
from medfl.types import MODEL
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg


class Centralized(FedAvg):
    """One model on the pooled training data of all sites, for as many epochs as rounds times local epochs.

    It needs what hospitals can't do, pooling images, and runs in a simulation only. By default the optimiser starts
    anew each round, as at the sites; so with one site this is FedAvg, bit for bit. The pooled images are visited once
    an epoch, which matches the budget of full participation.

    Where sites have unlike networks, each of these networks, and the task's own, is trained on all pooled data, with
    the same batches. A site takes home the one of its own architecture, as its ``personal`` model; there is no
    ``global`` one. All tensors are shared, whatever the policy for normalisation layers says.

    When to use it: In a study, to see how much is lost because data stay apart. It is a yardstick, not a choice that
    hospitals have; on unlike sites a personal method can even beat it.

    Attributes:
        weights: Of no effect: the pool is one site.
        optimizer_state: ``reset`` starts the optimiser anew each round; ``persistent`` goes on with the one of the
            round before. With rounds of a few batches a reset costs most of the momentum, so ``persistent`` is the
            fairer yardstick there.
    """

    name = "centralized"
    family = "reference"
    paper = ""
    summary = "one model on the raw data of all sites, pooled: an oracle, in a simulation only"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})
    needs: ClassVar[frozenset[Need]] = frozenset({"pooled_data"})

    optimizer_state: Literal["reset", "persistent"] = "reset"

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Everything: who pools all data keeps nothing for one site."""
        return list(model.state_dict())

    def networks(self, participant: Participant) -> list[str]:
        """The architectures of the run."""
        return sorted({participant.task.network, *participant.settings.networks_by_site.values()})

    def setup(self, server: Server) -> None:
        """The initial model, or one of each architecture."""
        super().setup(server)
        if len(names := self.networks(server)) > 1:
            initial = {name: server.task.initial(server.settings.seed, name) for name in names}
            server.state.tensors = {
                f"{name}/{key}": t for name, tensors in initial.items() for key, t in tensors.items()
            }
            server.state.meta["complete"] = False

    def train(self, site: Site, request: Request) -> Reply:
        """Train on the pooled data, one architecture after the other."""
        names, keeps = self.networks(site), self.optimizer_state == "persistent"
        if len(names) == 1 and not keeps:
            return super().train(site, request)
        trained, reply = dict[str, FitResult](), Reply(meta={"size": len(site.train)})
        for name in names:
            prefix, memory = f"{MODEL}{name}/" if len(names) > 1 else MODEL, f"{OPTIMIZER}{name}/"
            received = select(request.tensors, prefix)
            done = self.fit(as_host(site, name), received, kept(site, memory) if keeps else None)
            keep(site, memory, done.optimizer)
            update = {key: subtract(after, done.before[key]) for key, after in done.after.items()}
            reply.tensors |= prefixed(update, prefix)
            trained[name] = done
        if len(names) == 1:
            reply.trained = {"personal": Model(site.network, trained[names[0]].after)}
        reply.log["loss"] = fmean(done.log["loss"] for done in trained.values())
        reply.log["seconds"] = sum(done.log["seconds"] for done in trained.values())
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The server's model; with several architectures at each site the one of its own."""
        if len(self.networks(participant)) == 1:
            return super().models(participant)
        if isinstance(participant, Server):
            return {}
        return {"personal": Model(participant.network, select(participant.published, f"{MODEL}{participant.network}/"))}
