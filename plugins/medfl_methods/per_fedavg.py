"""Per-FedAvg: model-agnostic meta-learning with federated averaging."""

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
from medfl.toolkit.personal import FinalAdaptation
from medfl.toolkit.training_specs import Training
from medfl.training.batches import load_batches, on_device
from medfl.training.loop import Batch, autocast
from medfl.types import Meta, Targets, Tensors


class PerFedAvg(FinalAdaptation):
    """Per-FedAvg: meta-learning of a global model that performs well after one gradient step at a site.

    Local training optimises the loss after one gradient step of length alpha (MAML). In the last round, each site with
    training images takes this step on all of them; the result is its personal model. Before that, the personal model is
    the global model.

    Update rule:
        Each local step takes two batches; the variant ``order = hf`` takes three, with H the Hessian on the third
        batch:

            w' = w - alpha grad F(w; batch 1)
            g = grad F(w'; batch 2)
            direction of fo: -g
            direction of hf: -(g - alpha H g)

        The product H g is exact, not a finite difference. The run's optimiser takes the step by default, with its
        learning rate and momentum. With `beta`, plain SGD takes it.

    When to use it: When new sites should get a good personal model from few images and little computation.

    Limits: Each batch has the run's `batch_size`, so an epoch has a half (``fo``) or a third (``hf``) of the usual
    steps. A run with the setting `steps` uses two or three times as many images. A last group of batches with fewer
    than two images per batch uses all of its images for each of them. Only the passes on second batches change running
    statistics. The paper's plain SGD with learning rate 0.001 (preset ``paper``) hardly changes a model within the few
    steps of most runs.

    Limit cases: With ``alpha = 0``, sites train as in `fedavg`, on the second batches.

    Attributes:
        alpha: Length of the step that a site takes in the last round, >= 0.
        beta: Learning rate of plain SGD in local training, > 0; None uses the run's optimiser.
        order: ``fo`` (first order) omits second derivatives; ``hf`` (Hessian-free) includes them, at more than 1.5
            times the computation.
        weights: Aggregation weights: ``uniform`` is equal, as in the paper; ``size`` is proportional to the numbers of
            images.

    Source: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1 and section 4.
    """

    name = "per_fedavg"
    family = "personal"
    paper = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"
    summary = "meta-learning of a global model that performs well after one gradient step at a site"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"alpha": 0.01, "beta": 0.001}, "medfl": {}}

    alpha: float = Field(0.01, ge=0, allow_inf_nan=False)
    beta: float | None = Field(None, gt=0, allow_inf_nan=False)
    order: Literal["fo", "hf"] = "fo"
    weights: Literal["size", "uniform"] = "uniform"

    @property
    def batches_per_step(self) -> int:
        """Number of batches that a local step uses: 2 for ``fo``, 3 for ``hf``."""
        return 2 if self.order == "fo" else 3

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: the site's number of training images, or 1 if uniform."""
        return super().weight(meta) if self.weights == "size" else 1.0

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the trainings of a round: a single one, whose batches are groups of `batches_per_step` batches."""
        return (Training(batch_size=self.batches_per_step * site.settings.batch_size),)

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Create the optimiser of a training: the task's optimiser, or plain SGD with learning rate `beta`."""
        if self.beta is None:
            return super().make_optimizer(fit)
        return torch.optim.SGD([parameter for _, parameter in fit.parameters()], lr=self.beta)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return a loss whose gradient is the negative direction of the local step."""
        count = self.batches_per_step if len(batch.rows) >= 2 * self.batches_per_step else 1
        places = torch.arange(len(batch.rows), device=batch.images.device).tensor_split(count)
        first, second, third = (places[number % count] for number in range(3))
        parameters = dict(fit.parameters())

        def loss_on(part: torch.Tensor, tensors: Tensors) -> torch.Tensor:
            outputs = functional_call(fit.model, tensors, (batch.images[part],))
            value: torch.Tensor = fit.site.task.loss(outputs, select_targets(batch.targets, part))
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
        """Adapt the common model by a gradient step of length alpha on all training images, and return the result."""
        task, settings, smallest = site.task, site.settings, site.task.objective.smallest_batch
        model = task.load(start, site.network).eval()
        batches = [r for r in torch.arange(len(site.train)).split(settings.batch_size) if len(r) >= smallest]
        total = sum(len(rows) for rows in batches)
        for loaded in load_batches(site.train, batches):
            with autocast(settings, task.device):
                loss = task.loss(model(loaded.inputs.to(task.device)), on_device(loaded.targets, task.device))
            (loss * (len(loaded.rows) / total)).backward()
        if batches:
            torch.optim.SGD(model.parameters(), lr=self.alpha).step()
        return FitResult(cpu_state(model), {}, {})


def select_targets(targets: Targets, rows: torch.Tensor) -> Targets:
    """Return the targets of some rows of a batch.

    Args:
        targets: Targets of the batch, or a mapping of names to targets.
        rows: Indices of the rows.
    """
    if isinstance(targets, dict):
        return {name: target[rows] for name, target in targets.items()}
    return targets[rows]
