"""FedDF: ensemble distillation on the server with public images."""

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
from medfl.toolkit.aggregation import mean_update, normalised_weights, sample_sites
from medfl.toolkit.averaging import refuse_noisy_statistics
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.model_transfer import is_finite
from medfl.toolkit.participant_state import as_float64
from medfl.training.batches import load_batches
from medfl.training.loop import autocast, row_batches
from medfl.training.predict import evaluation_batch, logits
from medfl.types import MODEL_PREFIX, SERVER, Meta, Tensors
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select
from medfl_methods.fedavg import FedAvg

logger = logging.getLogger(__name__)
"""Logger of this module."""

GROUP_PREFIX = "group/"
"""Prefix of the groups' models in the server's state; the name of the network follows. A group is the sites with the
same network."""

EVALUATION_INTERVAL = 100
"""Number of distillation steps between two evaluations on the held-out public images."""


class FedDF(FedAvg):
    """FedAvg plus ensemble distillation (FedDF): the server fine-tunes the mean model on unlabelled public images.

    Sites train and are averaged as in `fedavg`. Then the server uses the ensemble of the participants' models as the
    teacher of the averaged model. Labels of the public images are not used for the distillation.

    If sites use different networks, the sites with one network form a group with a mean model of its own. The models of
    all replies teach every group's model, including a group from which no site replied. The global model has the task's
    own network. With several groups, a site's personal model is its group's model.

    Update rule:
        With p the prediction of the ensemble for a public image (`ensemble`) and q the prediction of the averaged
        model, the server minimises

            KL(p || q)

        by `distil_steps` steps of a new Adam in each round, with a learning rate that falls to 0 along a cosine.
        Batch-norm layers are in evaluation mode, which is a choice of medfl: in the released code, they adopt the
        statistics of the public images.

    When to use it: When the server has unlabelled images of the same kind, and the sites are so heterogeneous, or need
    so many different networks, that a plain mean performs badly. Under a privacy setting, the teachers carry the sites'
    noise.

    Limits: **Public images must not be test images of any site**; take images of another hospital. In each round, the
    server evaluates the model of every reply on all public images and runs the distillation steps.

    Limit cases: With a single site, teacher and student are equal, so the distillation changes the model by rounding
    only.

    Attributes:
        ensemble: Prediction p of the ensemble: ``avg_logits`` is the softmax of the mean logits, as in the paper;
            ``avg_probs`` is the mean of the probabilities. The released code's ``avg_losses``, the mean of KL(p_k || q)
            over the sites, equals ``avg_probs`` up to a constant and has the same gradient.
        distil_steps: Distillation steps in a round, >= 0.
        distil_lr: Learning rate of the distillation, > 0.
        distil_batch: Public images in a batch, >= 1.
        distil_clip: Largest L2 norm of a step's gradient, > 0; None does not clip.
        patience: Early stopping: number of steps without a gain in accuracy on held-out public images, >= 1, checked
            every 100 steps. The best model is kept, which may be the averaged one. None runs all steps and holds out no
            images.
        held_out: Share of the public images that is held out for `patience` or `drop_worst`, in (0, 1). The held-out
            images need labels.
        drop_worst: Whether a site's model is excluded from the ensemble if its accuracy on held-out images is below
            chance.

    Source: Lin, Kong, Stich, Jaggi, NeurIPS 2020, Algorithms 1 and 3, and its released code.
    """

    name = "feddf"
    family = "averaging"
    paper = "Lin et al., NeurIPS 2020"
    summary = "FedAvg plus ensemble distillation of the sites' models on the server's public images"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.DP_SGD})

    needs: ClassVar[frozenset[Need]] = frozenset({"public_data", "soft_targets"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""
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
        """Requirements with the current settings; `drop_worst` adds class labels, to know the chance level."""
        return self.needs | {"class_labels"} if self.drop_worst else self.needs

    # ---- the server

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model of each group.

        Raises:
            SettingsError: If `norm_sync` keeps a part of a network at the sites, because the server evaluates whole
                models.
        """
        self.add_missing_groups(server)

    def add_missing_groups(self, server: Server) -> None:
        """Add the initial model of each network without a group: all at the start, later for sites that join."""
        for network in networks(server):
            if model_of(server, network):
                continue
            tensors = server.task.initial(server.settings.seed, network)
            model = server.task.load(tensors, network)
            names = self.shared_names(model, server.settings.norm_sync)
            if policy_of(server.settings).is_private:
                refuse_noisy_statistics(model, names)
            if missing := sorted(tensors.keys() - set(names)):
                raise SettingsError(
                    "incomplete_model",
                    f"FedDF's server evaluates whole models, and norm_sync '{server.settings.norm_sync}' keeps parts "
                    f"of network '{network}' at the sites: {missing[:2]}. Set norm_sync to 'all', or use networks with "
                    "group norm or none.",
                    norm_sync=server.settings.norm_sync,
                    network=network,
                    missing=missing[:2],
                )
            server.state.tensors |= prefixed(tensors, f"{GROUP_PREFIX}{network}/")

    def requests(self, server: Server) -> list[Request]:
        """Return a request for each participant with the model of its group; add missing groups first."""
        self.add_missing_groups(server)
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        lent = {network: prefixed(model_of(server, network), MODEL_PREFIX) for network in networks(server)}
        return [Request(name, "fit", lent[server.network_of(name)]) for name in chosen]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Average each group's updates, then distil the ensemble of all replies into each group's model."""
        taught, groups = self.ensemble_logits(server, replies) if self.distil_steps else None, Tensors()
        for network in networks(server):
            metas = {site: meta for site, meta in replies.meta.items() if server.network_of(site) == network}
            model = model_of(server, network)
            if metas:
                weights = normalised_weights(self.weights_of(server, metas), metas)
                model = self.server_update(server, model, mean_update(replies, weights))
            if taught is not None:
                model = self.distil(server, network, model, taught)
            groups |= prefixed(model, f"{GROUP_PREFIX}{network}/")
        server.state.tensors |= groups

    def ensemble_logits(self, server: Server, replies: Replies) -> torch.Tensor | None:
        """Return the ensemble's logits for all public images.

        Returns:
            Logits, whose softmax is p, of the K alternatives (such as classes) of n images, (n, K, ...); None if no
            model can teach.
        """
        assert server.public is not None
        task, objective, held = server.task, server.task.objective, self.split_rows(server)[1]
        total, teachers = torch.zeros(()), 0
        for site, tensors in replies:
            network = server.network_of(site)
            update = {name: as_float64(tensor) for name, tensor in select(tensors, MODEL_PREFIX).items()}
            model = task.load(self.server_update(server, model_of(server, network), update), network)
            outputs = logits(model, server.public, server.settings, task.device, evaluation_batch(objective))
            if not bool(outputs.isfinite().all()):
                logger.warning(
                    "Round %d: the model of %s is not finite and is excluded from the ensemble.", server.round, site
                )
                continue
            if self.drop_worst:
                accuracy = float(objective.case_accuracy(outputs[held], server.public.targets(held)).mean())
                if accuracy < 1 / objective.classes:
                    continue
            answers = objective.alternatives(outputs)
            total = total + (answers if self.ensemble == "avg_logits" else answers.softmax(dim=1))
            teachers += 1
        mean = total / max(teachers, 1)
        if not teachers:
            return None
        return mean if self.ensemble == "avg_logits" else mean.clamp(min=torch.finfo(mean.dtype).tiny).log()

    def distil(self, server: Server, network: str, start: Tensors, taught: torch.Tensor) -> Tensors:
        """Train a group's model towards the ensemble and return its tensors.

        Args:
            server: Server with public images, task and settings.
            network: Name of the group's network.
            start: The group's averaged model.
            taught: The ensemble's logits, as `ensemble_logits` returns them.

        Returns:
            Tensors of the trained model; `start` if the training diverged.
        """
        assert server.public is not None
        task, settings, (rows, held) = server.task, server.settings, self.split_rows(server)
        model = task.load(start, network).train()
        freeze_norms(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.distil_lr)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.distil_steps)
        drawn = row_batches(len(rows), self.distil_batch, server.rng(f"distil/{network}"), 0, self.distil_steps)
        best, at, score = start, 0, self.public_accuracy(server, model, held) if self.patience else 0.0
        for step, loaded in enumerate(load_batches(server.public, (rows[places] for places in drawn)), start=1):
            with autocast(settings, task.device):
                answers = task.objective.alternatives(model(loaded.inputs.to(task.device)).float())
                loss = distillation(answers, taught[loaded.rows].to(task.device)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.distil_clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.distil_clip)
            optimizer.step()
            cosine.step()
            if self.patience and (step % EVALUATION_INTERVAL == 0 or step == self.distil_steps):
                if (now := self.public_accuracy(server, model, held)) > score:
                    best, at, score = cpu_state(model), step, now
                elif step - at >= self.patience:
                    break
        trained = best if self.patience else cpu_state(model)
        if is_finite(trained):
            return trained
        logger.warning(
            "Round %d: the distillation of '%s' diverged; the averaged model is kept.", server.round, network
        )
        return start

    def split_rows(self, server: Server) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the public images for training and those held out, equal in every round."""
        assert server.public is not None
        n = len(server.public)
        drawn = torch.randperm(n, generator=make_generator(server.settings.seed, SERVER, "held out"))
        count = max(1, int(self.held_out * n)) if self.patience or self.drop_worst else 0
        return drawn[count:].sort().values, drawn[:count].sort().values

    def public_accuracy(self, server: Server, model: nn.Module, rows: torch.Tensor) -> float:
        """Return the accuracy of a model on some public images, in [0, 1].

        Args:
            server: Server with the public images.
            model: Model to evaluate.
            rows: Row indices of the images.
        """
        assert server.public is not None
        task, total = server.task, 0.0
        with torch.no_grad(), evaluating(model):
            for loaded in load_batches(server.public, rows.split(evaluation_batch(task.objective))):
                outputs = model(loaded.inputs.to(task.device)).float().cpu()
                total += float(task.objective.case_accuracy(outputs, loaded.targets).sum())
        return total / len(rows)

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: the models of all groups."""
        return dict(server.state.tensors)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return a participant's models by kind: ``global``; with several groups also a site's ``personal``."""
        models = {"global": Model(participant.task.network, model_of(participant, participant.task.network))}
        if isinstance(participant, Site) and len(networks(participant)) > 1:
            models["personal"] = Model(participant.network, model_of(participant, participant.network))
        return models


def networks(participant: Participant) -> list[str]:
    """Return the sorted names of the run's networks: the task's own and those assigned to sites."""
    return sorted({participant.task.network, *participant.settings.networks_by_site.values()})


def model_of(participant: Server | Site, network: str) -> Tensors:
    """Return a group's model from the server's state, or from the published tensors at a site."""
    tensors = participant.state.tensors if isinstance(participant, Server) else participant.published
    return select(tensors, f"{GROUP_PREFIX}{network}/")
