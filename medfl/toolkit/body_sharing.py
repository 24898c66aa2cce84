"""The base of methods in which sites share the body of their networks and keep their heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, PayloadKind, Reply, Request, Server, Site
from medfl.errors import SettingsError
from medfl.networks.parts import head_names, without_head
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import subtract
from medfl.toolkit.averaging import Averaging, refuse_noisy_statistics
from medfl.toolkit.kept import KEPT
from medfl.types import MODEL, Tensors
from medfl.utils.text import names_and_more
from medfl.utils.wire import prefixed, select

HEAD = "head/"
"""What the names of a head's tensors begin with in messages."""


class BodySharing(Averaging):
    """The body's updates are averaged as in FedAvg; a site's head never changes but by its own training.

    The head is a network's attribute `head`; the body is all the rest, and its normalisation layers follow the run's
    `norm_sync`. All sites begin with the initial tensors of their network. Networks may have unlike heads if the names
    and shapes of their bodies agree.
    """

    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DIFFERENT_HEADS})

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """The body's tensors."""
        return without_head(model, super().shared(model, norm_sync))

    def setup(self, server: Server) -> None:
        """The common initial body.

        Raises:
            SettingsError: If a network has no head, or sites' bodies are unlike.
        """
        super().setup(server)
        for network in server.networks():
            self.check_body(server, network)

    def check_body(self, server: Server, network: str) -> None:
        """Refuse a network whose body is not that of the task's own network, or whose head has no tensors."""
        model = server.task.build(network)
        if not head_names(model, network):
            raise SettingsError(
                "empty_head",
                f"Network '{network}' ({type(model).__name__}) has a `head` without tensors: expected some that a site "
                "can keep. Choose another network, or the method 'fedavg'.",
                network=network,
            )
        state, common = model.state_dict(), server.state.tensors
        names = set(self.shared(model, server.settings.norm_sync))
        unlike = {name for name in names & common.keys() if state[name].shape != common[name].shape}
        unlike |= names ^ common.keys()
        if unlike:
            raise SettingsError(
                "unlike_bodies",
                f"Network '{network}' has another body than '{server.task.network}': expected the same names and "
                f"shapes in all but the head, got unlike ones in {names_and_more(sorted(unlike), 3)}. Give all "
                "sites one body; heads may differ.",
                network=network,
                expected=server.task.network,
                tensors=unlike,
            )


class MeanHead(BodySharing):
    """Sharing of the body, with the mean of the heads for whoever has none.

    Attributes:
        global_head: ``none`` keeps heads at home, and there is no global model. With ``average`` the heads leave the
            sites, too: the mean of those of the round's participants, weighted as their bodies, and the body are the
            run's global model. No site trains from that head.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", HEAD: "update"}

    global_head: Literal["none", "average"] = "none"

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities of the class; no robust rules if heads are averaged beside the bodies."""
        return super().active_supports - (set() if self.global_head == "none" else {Capability.ROBUST})

    def setup(self, server: Server) -> None:
        """The common initial body and, if heads are averaged, the common initial head.

        Raises:
            SettingsError: Also if heads can't be averaged.
        """
        super().setup(server)
        if self.global_head == "none":
            return
        task, networks = server.task, server.networks()
        if networks != [task.network]:
            raise SettingsError(
                "unlike_heads",
                f"global_head 'average' needs the network '{task.network}' at all sites, got {networks}: unlike heads "
                "have no mean. Set global_head to 'none'.",
                network=task.network,
                networks=networks,
            )
        tensors = task.initial(server.settings.seed)
        model = task.load(tensors)
        names = head_names(model, task.network)
        if kept := sorted(tensors.keys() - set(names) - server.state.tensors.keys()):
            raise SettingsError(
                "incompatible_settings",
                f"global_head 'average' joins a head to the common body, and norm_sync '{server.settings.norm_sync}' "
                f"keeps parts of the body at the sites: {names_and_more(kept, 3)}. Set norm_sync to 'all', or "
                "global_head to 'none'.",
                settings=["global_head", "norm_sync"],
                norm_sync=server.settings.norm_sync,
                tensors=kept,
            )
        if policy_of(server.settings).is_private:
            refuse_noisy_statistics(model, names)
        server.state.tensors |= prefixed({name: tensors[name] for name in names}, KEPT + HEAD)

    def publish(self, server: Server) -> Tensors:
        """The body, and the mean head if there is one."""
        return super().publish(server) | prefixed(select(server.state.tensors, KEPT + HEAD), HEAD)

    def train(self, site: Site, request: Request) -> Reply:
        """Train the received body with the own head; if heads are averaged, reply with the own head less the mean one.

        So the server's mean head plus the mean of the replies is the mean of the heads, whoever takes part, and what
        clipping and noise act on is a head's distance from the mean, not from where it began.
        """
        reply = super().train(site, request)
        after = reply.trained["personal"].tensors
        lent = select(request.tensors, HEAD)
        reply.tensors |= prefixed({name: subtract(after[name], mean) for name, mean in lent.items()}, HEAD)
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """A personal model at each site; if heads are averaged, a global one."""
        models = super().models(participant)
        published = self.publish(participant) if isinstance(participant, Server) else participant.published
        if head := select(published, HEAD):
            models["global"] = Model(participant.task.network, select(published, MODEL) | head)
        return models
