"""Per-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch.func import functional_call

from medfl.contract import Capability, Site
from medfl.networks.norms import evaluating
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.personal import LastStep
from medfl.toolkit.trainings import Training
from medfl.training.batches import load, on_device
from medfl.training.loop import Batch, autocast
from medfl.types import Meta, Targets, Tensors


class PerFedAvg(LastStep):
    """Personalised FedAvg by meta-learning: a common model that is good after one step at a site, not before.

    Each step of a site takes two batches, or with ``order = hf`` three, each of the run's `batch_size`, so that an
    epoch has half or a third of the steps, and a run with the setting `steps` sees two or three times the images. It
    looks where the model would be after a step of length alpha along the gradient on the first batch, and takes there
    the gradient g on the second. The direction of ``fo`` is -g; that of ``hf`` is -(g - alpha H g), with the Hessian H
    on the third batch, by an exact product and not by a difference. A last
    group with fewer than two images for each batch is all of them at once. Only the passes on second batches move
    running statistics; in all others norms are in evaluation mode.

    By default the run's optimiser takes the step, with its learning rate and momentum, as in all other methods. The
    paper's plain SGD of rate 0.001 hardly moves a model in the few steps of most runs; the preset ``paper`` has it, and
    any `beta` is the rate of plain SGD. In the last round each site with training images takes a step of length alpha
    along the gradient on all of them, and that is its personal model; before, the common one stands in. With ``alpha =
    0`` sites train as in `fedavg`, on the second batches.

    When to use it: When new sites shall get a good model of their own from few images and little computing.

    Attributes:
        alpha: Length of the step that a site will take, >= 0.
        beta: Learning rate of training by plain SGD, > 0; None takes the run's optimiser.
        order: ``fo`` leaves out second derivatives; ``hf`` has them, at more than half again the computing.
        weights: ``uniform`` weighs the participants alike, as in the paper; ``size`` by their numbers of images.

    Source: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1 and section 4.
    """

    name = "per_fedavg"
    family = "personal"
    paper = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"
    summary = "a common model that is good after one step at a site; each site takes it in the end"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"alpha": 0.01, "beta": 0.001}, "medfl": {}}

    alpha: float = Field(0.01, ge=0, allow_inf_nan=False)
    beta: float | None = Field(None, gt=0, allow_inf_nan=False)
    order: Literal["fo", "hf"] = "fo"
    weights: Literal["size", "uniform"] = "uniform"

    @property
    def parts(self) -> int:
        """Batches of a step."""
        return 2 if self.order == "fo" else 3

    def weight(self, meta: Meta) -> float:
        """The site's size, or 1."""
        return super().weight(meta) if self.weights == "size" else 1.0

    def trainings(self, site: Site) -> Sequence[Training]:
        """One, whose batches are groups."""
        return (Training(batch_size=self.parts * site.settings.batch_size),)

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Return the run's optimiser, or plain SGD of rate `beta`."""
        if self.beta is None:
            return super().make_optimizer(fit)
        return torch.optim.SGD([parameter for _, parameter in fit.parameters()], lr=self.beta)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The loss after a step, whose gradient is what the site steps along."""
        count = self.parts if len(batch.rows) >= 2 * self.parts else 1
        places = torch.arange(len(batch.rows), device=batch.images.device).tensor_split(count)
        first, second, third = (places[number % count] for number in range(3))
        parameters = dict(fit.parameters())

        def loss_on(part: torch.Tensor, tensors: Tensors) -> torch.Tensor:
            outputs = functional_call(fit.model, tensors, (batch.images[part],))
            value: torch.Tensor = fit.site.task.loss(outputs, taken(batch.targets, part))
            return value

        with evaluating(fit.model):
            inner = torch.autograd.grad(loss_on(first, {}), list(parameters.values()))
        ahead = {name: p - self.alpha * step for (name, p), step in zip(parameters.items(), inner, strict=True)}
        loss = loss_on(second, ahead)
        if self.order == "fo":
            return loss
        outer = torch.autograd.grad(loss, list(ahead.values()), retain_graph=True)
        with evaluating(fit.model):
            slopes = torch.autograd.grad(loss_on(third, {}), list(parameters.values()), create_graph=True)
        bend = torch.stack([(slope * g).sum() for slope, g in zip(slopes, outer, strict=True)]).sum()
        return loss - self.alpha * (bend - bend.detach())

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """One step on all training images."""
        task, settings, smallest = site.task, site.settings, site.task.objective.smallest_batch
        model = task.load(start, site.network).eval()
        batches = [r for r in torch.arange(len(site.train)).split(settings.batch_size) if len(r) >= smallest]
        total = sum(len(rows) for rows in batches)
        for loaded in load(site.train, batches):
            with autocast(settings, task.device):
                loss = task.loss(model(loaded.inputs.to(task.device)), on_device(loaded.targets, task.device))
            (loss * (len(loaded.rows) / total)).backward()
        if batches:
            torch.optim.SGD(model.parameters(), lr=self.alpha).step()
        return FitResult(start, cpu_state(model), {}, {})


def taken(targets: Targets, rows: torch.Tensor) -> Targets:
    """The targets of some rows of a batch."""
    if isinstance(targets, dict):
        return {name: target[rows] for name, target in targets.items()}
    return targets[rows]
