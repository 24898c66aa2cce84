"""FedDF."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from medfl.contract import Capability, Model, Need, Participant, ReducesTo, Replies, Request, Server, Site
from medfl.errors import SettingsError
from medfl.networks.norms import evaluating, freeze_norms
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import mean_update, normalised, sample
from medfl.toolkit.averaging import refuse_noisy_statistics
from medfl.toolkit.kept import wide
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.transfer import is_finite
from medfl.training.batches import load
from medfl.training.loop import autocast, row_batches
from medfl.training.predict import evaluation_batch, logits
from medfl.types import MODEL, SERVER, Meta, Tensors
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

logger = logging.getLogger(__name__)

GROUP = "group/"
"""What the names of a group's tensors begin with at the server; then the name of its network."""

CHECKED = 100
"""Steps between two looks at the public images that are held out."""


class FedDF(FedAvg):
    """FedAvg whose server trains the mean on public images, by what the sites' models together say of them.

    Sites train, and are averaged, as in FedAvg. Then the server asks the model of each reply about its public images,
    and trains the mean to say the same: it minimises KL(p || q), where q is what the mean says of an image and p what
    the sites' models say (`ensemble`), each counting alike. Labels of public images have no part in it. Steps are those
    of Adam, anew each round, with a learning rate that falls to 0 along a cosine. Batch norm is in evaluation mode
    (ours: in the released code its statistics become those of the public images).

    Sites with unlike networks form a group for each network. A group has a mean of its own, and the models of all
    replies teach each group's, also one that nobody replied from. The global model is that of the task's own network;
    where there are several, a site's personal model is its group's.

    With ``distil_steps = 0`` this is `fedavg`. With a single site the teacher says what the mean says, so that the
    model stays as it is but for rounding. Under a privacy setting the models of replies carry the sites' noise.

    When to use it: When the server has images of the same kind that nobody needs to label, and sites are so unlike, or
    so many networks are wanted, that a plain mean is poor. **Public images must be nobody's test images**; take those
    of another hospital. A round costs the server the steps, and one pass of each reply's model over all public images.

    Attributes:
        ensemble: What p is: ``avg_logits`` the softmax of the mean of the logits, as in the paper; ``avg_probs`` the
            mean of the probabilities. The released code's ``avg_losses``, the mean of KL(p_k || q) over the sites, is
            ``avg_probs`` up to a number, and has its gradient.
        distil_steps: Steps of the server in a round, >= 0.
        distil_lr: Their learning rate, > 0.
        distil_batch: Public images in a batch, >= 1.
        distil_clip: Largest L2 norm of a step's gradient, > 0; None clips nothing.
        patience: Stop after so many steps without a gain in accuracy on held-out public images, >= 1, looked at every
            100 steps; the best model is taken, which may be the mean. None takes all steps, and holds none out.
        held_out: Share of the public images that are held out, if any are, in (0, 1). They need labels.
        drop_worst: Whether a site's model that is right on held-out images less often than by chance teaches nobody.

    Source: Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3, and its released code.
    """

    name = "feddf"
    family = "averaging"
    paper = "Lin et al., NeurIPS 2020"
    summary = "FedAvg whose server trains the mean to say of public images what the sites' models together say"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.DP_SGD})

    needs: ClassVar[frozenset[Need]] = frozenset({"public_data", "soft_targets"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"distil_steps": 10_000, "patience": 1000}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"distil_steps": 0}),)

    ensemble: Literal["avg_logits", "avg_probs"] = "avg_logits"
    distil_steps: int = Field(500, ge=0)
    distil_lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    distil_batch: int = Field(128, ge=1)
    distil_clip: float | None = Field(5.0, gt=0, allow_inf_nan=False)
    patience: int | None = Field(None, ge=1)
    held_out: float = Field(0.1, gt=0, lt=1)
    drop_worst: bool = False

    @property
    def active_needs(self) -> frozenset[Need]:
        """Chance is known where cases are of classes."""
        return self.needs | {"class_labels"} if self.drop_worst else self.needs

    # ---- the server

    def setup(self, server: Server) -> None:
        """The initial model of each group.

        Raises:
            SettingsError: If a part of a network stays at the sites: the server could not ask its model.
        """
        self.begin_groups(server)

    def begin_groups(self, server: Server) -> None:
        """The groups that are not there yet: all at the start, and later that of a site which brings a network."""
        for network in networks(server):
            if model_of(server, network):
                continue
            tensors = server.task.initial(server.settings.seed, network)
            model = server.task.load(tensors, network)
            names = self.shared(model, server.settings.norm_sync)
            if policy_of(server.settings).is_private:
                refuse_noisy_statistics(model, names)
            if missing := sorted(tensors.keys() - set(names)):
                raise SettingsError(
                    "incomplete_model",
                    f"FedDF's server needs whole models, and norm_sync '{server.settings.norm_sync}' keeps parts of "
                    f"network '{network}' at the sites: {missing[:2]}. Set norm_sync to 'all', or use networks with "
                    "group norm or none.",
                    norm_sync=server.settings.norm_sync,
                    network=network,
                    missing=missing[:2],
                )
            server.state.tensors |= prefixed(tensors, f"{GROUP}{network}/")

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants, each with its group's model."""
        self.begin_groups(server)
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        lent = {network: prefixed(model_of(server, network), MODEL) for network in networks(server)}
        return [Request(name, "fit", lent[server.network_of(name)]) for name in chosen]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The mean of each group, trained by what the models of all replies say."""
        taught, groups = self.taught(server, replies) if self.distil_steps else None, Tensors()
        for network in networks(server):
            metas = {site: meta for site, meta in replies.meta.items() if server.network_of(site) == network}
            model = model_of(server, network)
            if metas:
                weights = normalised(self.weights_of(server, metas), metas)
                model = self.server_update(server, model, mean_update(replies, weights))
            if taught is not None:
                model = self.distil(server, network, model, taught)
            groups |= prefixed(model, f"{GROUP}{network}/")
        server.state.tensors |= groups

    def taught(self, server: Server, replies: Replies) -> torch.Tensor | None:
        """Logits of the alternatives whose softmax is p, for all public images, (n, K, ...); None without a teacher."""
        assert server.public is not None
        task, objective, held = server.task, server.task.objective, self.split_rows(server)[1]
        total, teachers = torch.zeros(()), 0
        for site, tensors in replies:
            network = server.network_of(site)
            update = {name: wide(tensor) for name, tensor in select(tensors, MODEL).items()}
            model = task.load(self.server_update(server, model_of(server, network), update), network)
            outputs = logits(model, server.public, server.settings, task.device, evaluation_batch(objective))
            if not bool(outputs.isfinite().all()):
                logger.warning("Round %d: the model of %s is not finite, and teaches nobody.", server.round, site)
                continue
            if self.drop_worst:
                right = float(objective.agreement(outputs[held], server.public.targets(held)).mean())
                if right < 1 / objective.classes:
                    continue
            answers = objective.alternatives(outputs)
            total = total + (answers if self.ensemble == "avg_logits" else answers.softmax(dim=1))
            teachers += 1
        mean = total / max(teachers, 1)
        if not teachers:
            return None
        return mean if self.ensemble == "avg_logits" else mean.clamp(min=torch.finfo(mean.dtype).tiny).log()

    def distil(self, server: Server, network: str, start: Tensors, taught: torch.Tensor) -> Tensors:
        """A group's model, trained to say of public images what it is taught."""
        assert server.public is not None
        task, settings, (rows, held) = server.task, server.settings, self.split_rows(server)
        model = task.load(start, network).train()
        freeze_norms(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.distil_lr)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.distil_steps)
        drawn = row_batches(len(rows), self.distil_batch, server.rng(f"distil/{network}"), 0, self.distil_steps)
        best, at, score = start, 0, self.right(server, model, held) if self.patience else 0.0
        for step, loaded in enumerate(load(server.public, (rows[places] for places in drawn)), start=1):
            with autocast(settings, task.device):
                answers = task.objective.alternatives(model(loaded.inputs.to(task.device)).float())
                loss = distillation(answers, taught[loaded.rows].to(task.device)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.distil_clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.distil_clip)
            optimizer.step()
            cosine.step()
            if self.patience and (step % CHECKED == 0 or step == self.distil_steps):
                if (now := self.right(server, model, held)) > score:
                    best, at, score = cpu_state(model), step, now
                elif step - at >= self.patience:
                    break
        trained = best if self.patience else cpu_state(model)
        if is_finite(trained):
            return trained
        logger.warning("Round %d: the distillation of '%s' diverged; its mean is taken.", server.round, network)
        return start

    def split_rows(self, server: Server) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the public images that are learned from, and of those that are held out, the same in every round."""
        assert server.public is not None
        n = len(server.public)
        drawn = torch.randperm(n, generator=make_generator(server.settings.seed, SERVER, "held out"))
        count = max(1, int(self.held_out * n)) if self.patience or self.drop_worst else 0
        return drawn[count:].sort().values, drawn[:count].sort().values

    def right(self, server: Server, model: nn.Module, rows: torch.Tensor) -> float:
        """How far a model is right on some public images, in [0, 1]."""
        assert server.public is not None
        task, total = server.task, 0.0
        with torch.no_grad(), evaluating(model):
            for loaded in load(server.public, rows.split(evaluation_batch(task.objective))):
                outputs = model(loaded.inputs.to(task.device)).float().cpu()
                total += float(task.objective.agreement(outputs, loaded.targets).sum())
        return total / len(rows)

    def publish(self, server: Server) -> Tensors:
        """The models of all groups."""
        return dict(server.state.tensors)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The model of the task's own network; where there are several, at each site that of its group."""
        models = {"global": Model(participant.task.network, model_of(participant, participant.task.network))}
        if isinstance(participant, Site) and len(networks(participant)) > 1:
            models["personal"] = Model(participant.network, model_of(participant, participant.network))
        return models


def networks(participant: Participant) -> list[str]:
    """The networks of the run, one for each group, sorted; among them the task's own."""
    return sorted({participant.task.network, *participant.settings.networks_by_site.values()})


def model_of(participant: Server | Site, network: str) -> Tensors:
    """A group's model, as the server has or has published it."""
    tensors = participant.state.tensors if isinstance(participant, Server) else participant.published
    return select(tensors, f"{GROUP}{network}/")
