"""Centralised training on pooled data: the reference for measuring the cost of keeping data apart."""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, Need, Participant, Reply, Request, Server, Site
from medfl.toolkit.aggregation import subtract
from medfl.toolkit.fit import FitResult
from medfl.toolkit.model_transfer import with_host_settings
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.optimizer_state import OPTIMIZER_PREFIX
from medfl.types import MODEL_PREFIX
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg


class Centralized(FedAvg):
    """Train one model on the pooled training data of all sites, for rounds x local epochs.

    Hospitals cannot pool their images, so this method runs in a simulation only. The pooled images are visited once per
    epoch, which matches the training budget of a federated run with full participation. All tensors belong to the
    global model, even if `norm_sync` keeps normalisation layers at the sites.

    If sites use different networks, each of these networks and the task's own network is trained on all pooled data,
    with the same batches. A site then exports the model of its own network as its ``personal`` model, and there is no
    ``global`` model.

    When to use it: In a study, as a reference for the performance that is lost because the data stay apart. It is no
    option for hospitals. On heterogeneous sites, a personalised method can exceed it.

    Limit cases: With one site and ``optimizer_state = reset``, this method equals `fedavg` bit by bit.

    Attributes:
        weights: No effect, because the pool counts as one site.
        optimizer_state: ``reset`` starts a new optimiser in each round, as the federated methods do. ``persistent``
            continues with the optimiser state of the previous round. If a round has few batches, a reset loses most of
            the momentum, so ``persistent`` is the fairer reference.
    """

    name = "centralized"
    family = "reference"
    paper = ""
    summary = "centralised training on the pooled raw data of all sites, in simulations only"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})
    needs: ClassVar[frozenset[Need]] = frozenset({"pooled_data"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""

    optimizer_state: Literal["reset", "persistent"] = "reset"

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange: all of them."""
        return list(model.state_dict())

    def networks(self, participant: Participant) -> list[str]:
        """Return the sorted names of the run's networks: the task's own and those assigned to sites."""
        return sorted({participant.task.network, *participant.settings.networks_by_site.values()})

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model, or to one initial model per network."""
        super().setup(server)
        if len(names := self.networks(server)) > 1:
            initial = {name: server.task.initial(server.settings.seed, name) for name in names}
            server.state.tensors = {
                f"{name}/{key}": t for name, tensors in initial.items() for key, t in tensors.items()
            }
            server.state.meta["complete"] = False

    def train(self, site: Site, request: Request) -> Reply:
        """Train each network on the pooled data, one after the other, and reply with the updates."""
        names, is_persistent = self.networks(site), self.optimizer_state == "persistent"
        if len(names) == 1 and not is_persistent:
            return super().train(site, request)
        trained, reply = dict[str, FitResult](), Reply(meta={"size": len(site.train)})
        for name in names:
            prefix, memory = f"{MODEL_PREFIX}{name}/" if len(names) > 1 else MODEL_PREFIX, f"{OPTIMIZER_PREFIX}{name}/"
            received = select(request.tensors, prefix)
            done = self.fit(
                with_host_settings(site, name), received, auxiliary_state(site, memory) if is_persistent else None
            )
            set_auxiliary_state(site, memory, done.optimizer)
            update = {key: subtract(after, received[key]) for key, after in done.after.items()}
            reply.tensors |= prefixed(update, prefix)
            trained[name] = done
        if len(names) == 1:
            reply.trained = {"personal": Model(site.network, trained[names[0]].after)}
        reply.log["loss"] = fmean(done.log["loss"] for done in trained.values())
        reply.log["seconds"] = sum(done.log["seconds"] for done in trained.values())
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return a participant's models by kind: ``global``, or with several networks a site's ``personal``."""
        if len(self.networks(participant)) == 1:
            return super().models(participant)
        if isinstance(participant, Server):
            return {}
        return {
            "personal": Model(
                participant.network, select(participant.published, f"{MODEL_PREFIX}{participant.network}/")
            )
        }
