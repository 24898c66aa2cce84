"""Base classes of methods in which sites share the body of their networks and keep their heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import nn

from medfl.contract import Capability, Model, PayloadKind, Reply, Request, Server, Site
from medfl.errors import SettingsError
from medfl.networks.parts import head_names, names_without_head
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import subtract
from medfl.toolkit.averaging import Averaging, refuse_noisy_statistics
from medfl.toolkit.participant_state import AUXILIARY_PREFIX
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.text import names_and_more
from medfl.utils.wire import prefixed, select

HEAD_PREFIX = "head/"
"""Prefix of the head's tensors in messages."""


class BodySharing(Averaging):
    """Base class of methods that average the bodies' updates as in FedAvg, while each site trains and keeps its head.

    The head is a network's attribute `head`. The body is the rest; its normalisation layers follow the run's
    `norm_sync`. Each site starts from the initial tensors of its network. Heads may differ between sites if the names
    and shapes of the bodies agree.
    """

    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DIFFERENT_HEADS})
    """Capabilities of the method: sites may have different heads."""

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange: the body's."""
        return names_without_head(model, super().shared_names(model, norm_sync))

    def setup(self, server: Server) -> None:
        """Store the initial body in the server's state.

        Raises:
            SettingsError: If a network has no head, or the bodies of the sites differ.
        """
        super().setup(server)
        for network in server.networks():
            self.check_body(server, network)

    def check_body(self, server: Server, network: str) -> None:
        """Raise if a network's body differs from the body of the default network, or if its head has no tensors."""
        model = server.task.build(network)
        if not head_names(model, network):
            raise SettingsError(
                "empty_head",
                f"Network '{network}' ({type(model).__name__}) has a `head` without tensors: expected some that a site "
                "can keep. Choose another network, or the method 'fedavg'.",
                network=network,
            )
        state, common = model.state_dict(), server.state.tensors
        names = set(self.shared_names(model, server.settings.norm_sync))
        unlike = {name for name in names & common.keys() if state[name].shape != common[name].shape}
        unlike |= names ^ common.keys()
        if unlike:
            raise SettingsError(
                "unlike_bodies",
                f"Network '{network}' has another body than '{server.task.network}': expected the same names and "
                f"shapes outside the head, got different ones in {names_and_more(sorted(unlike), 3)}. Give all "
                "sites the same body; heads may differ.",
                network=network,
                expected=server.task.network,
                tensors=unlike,
            )


class BodySharingWithMeanHead(BodySharing):
    """Sharing of the body, with an optional global head that is the mean of the sites' heads.

    Attributes:
        global_head: ``none`` keeps the heads at the sites, and there is no global model. With ``average`` the sites
            send their heads, too. The global model is the body with the mean of the participants' heads, weighted as
            their bodies. No site trains from the mean head.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", HEAD_PREFIX: "update"}
    """Mapping from each name prefix of sent tensors to the kind of these tensors."""

    global_head: Literal["none", "average"] = "none"

    @property
    def active_supports(self) -> frozenset[Capability]:
        """Capabilities with the current settings; robust rules are excluded if heads are averaged."""
        return super().active_supports - (set() if self.global_head == "none" else {Capability.ROBUST})

    def setup(self, server: Server) -> None:
        """Store the initial body and, if heads are averaged, the initial head in the server's state.

        Raises:
            SettingsError: If `BodySharing.setup` raises it, or if heads can't be averaged.
        """
        super().setup(server)
        if self.global_head == "none":
            return
        task, networks = server.task, server.networks()
        if networks != [task.network]:
            raise SettingsError(
                "unlike_heads",
                f"global_head 'average' needs the network '{task.network}' at all sites, got {networks}: heads of "
                "different shapes have no mean. Set global_head to 'none'.",
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
        server.state.tensors |= prefixed({name: tensors[name] for name in names}, AUXILIARY_PREFIX + HEAD_PREFIX)

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: the body and, if averaged, the mean head."""
        return super().publish(server) | prefixed(
            select(server.state.tensors, AUXILIARY_PREFIX + HEAD_PREFIX), HEAD_PREFIX
        )

    def train(self, site: Site, request: Request) -> Reply:
        """Train the received body with the site's own head, and reply with the body's update.

        If heads are averaged, the reply also has the site's head minus the mean head. The server adds the mean of the
        replies to its mean head, which gives the mean of the heads whichever sites take part. Clipping and noise act on
        a head's distance from the mean, not on its distance from its initial value.
        """
        reply = super().train(site, request)
        after = reply.trained["personal"].tensors
        lent = select(request.tensors, HEAD_PREFIX)
        reply.tensors |= prefixed({name: subtract(after[name], mean) for name, mean in lent.items()}, HEAD_PREFIX)
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: ``personal`` at a site; with averaged heads also ``global``."""
        models = super().models(participant)
        published = self.publish(participant) if isinstance(participant, Server) else participant.published
        if head := select(published, HEAD_PREFIX):
            models["global"] = Model(participant.task.network, select(published, MODEL_PREFIX) | head)
        return models
