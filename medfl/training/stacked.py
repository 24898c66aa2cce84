"""One step of several sites with one network: their models are stacked, and one pass gives all gradients.

Products and sums of a stack (`torch.func.vmap`) are those of its models, added up in another order: in exact numbers
nothing changes. Clipping, learning rates and what an optimiser remembers are each site's own.
"""

from __future__ import annotations

import copy
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from medfl.errors import ContractError, SettingsError
from medfl.training.loop import Batch, PlainSteps
from medfl.types import Tensors

CommonLoss = Callable[[Tensors, Batch], torch.Tensor]
"""The loss of (parameters when the training began, batch) at whatever site, with the model as it is at the moment."""

ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimisers whose step on a tensor hangs on that tensor alone, so that one call may step for several sites."""

CLOSE = 0.01
"""Largest difference between a site's gradients in a stack and alone, as a share of the largest one. Rounding is far
below; a loss or a network that mixes sites up is far above."""

ALONE = "Leave the setting 'together' at 1, which trains each site for itself."
"""What helps where sites can't be trained together."""


class Stack:
    """Takes steps of several sites at once.

    The first one is done for one of the sites alone as well: it shows which parameters the loss leaves out, as an
    optimiser does not touch these, and that the stack computes the same.
    """

    def __init__(self) -> None:
        self._unused: frozenset[str] | None = None

    def step(self, arrivals: Sequence[Arrival]) -> list[torch.Tensor]:
        """A step of sites whose arrivals are of one kind; the loss of each.

        Raises:
            SettingsError: If the loss or the network can't be computed for several sites at once.
            ContractError: If it is not the same as for a site alone.
        """
        alone = None if self._unused is not None else _alone(arrivals[-1])
        gradients, losses = _gradients(arrivals)
        if alone is not None:
            _check_same(alone, gradients)
            self._unused = frozenset(name for name, gradient in alone.items() if gradient is None)
        for name in self._unused or ():
            if gradients.pop(name).any():
                raise SettingsError(
                    "changing_loss",
                    f"The loss leaves '{name}' out in some steps and not in others. {ALONE}",
                    parameter=name,
                )
        for index, arrival in enumerate(arrivals):
            for name, gradient in gradients.items():
                arrival.steps.part.model.get_parameter(name).grad = gradient[index]
            arrival.steps.clip()
        _step([arrival.steps.optimizer for arrival in arrivals])
        return losses


class SharedSteps(PlainSteps):
    """The steps of one site among several.

    Args:
        wait: Waits for the step that an arrival asks for; its loss.
        loss: For the stack.
        criterion: The task's loss; what it weighs classes by may be the site's own.
        start: The parameters when the training began.
        *args: As for `PlainSteps`.
    """

    def __init__(
        self,
        wait: Callable[[Arrival], torch.Tensor],
        loss: CommonLoss,
        criterion: nn.Module,
        start: Tensors,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *args: Any,
    ) -> None:
        super().__init__(model, optimizer, *args)
        self._wait, self.optimizer = wait, optimizer
        self.part, self.start = _Part(model, criterion, loss), start

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Wait for the others; the loss of the batch, after the step."""
        assert batch is not None
        return self._wait(Arrival(self, batch, loss))

    def clip(self) -> None:
        """Clip the gradient as plain steps do."""
        if self._gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._gradient_clip)


class _Part(nn.Module):
    """All of a site's tensors that stand in a stack."""

    def __init__(self, model: nn.Module, criterion: nn.Module, loss: CommonLoss) -> None:
        super().__init__()
        self.model, self.criterion, self._loss = model, criterion, loss

    def forward(self, start: Tensors, batch: Batch) -> torch.Tensor:
        return self._loss(start, batch)


class Arrival:
    """A site that waits for its step.

    Args:
        steps: The site's.
        batch: Of the step.
        loss: Of the site alone.
    """

    def __init__(self, steps: SharedSteps, batch: Batch, loss: Callable[[Batch], torch.Tensor]) -> None:
        self.steps, self.batch, self.loss = steps, batch, loss
        self.tensors = {name: value for name, value in vars(batch).items() if value is not None}
        options = [{**group, "params": len(group["params"])} for group in steps.optimizer.param_groups]
        self.kind = repr((_shapes(self.tensors), type(steps.optimizer), options))


def _gradients(arrivals: Sequence[Arrival]) -> tuple[Tensors, list[torch.Tensor]]:
    """Gradients of the parameters of the sites' models by name, (K, ...), and the K losses. Buffers move on."""
    parts = [arrival.steps.part for arrival in arrivals]
    first = parts[0]
    parameters, buffers = stack_module_state(parts)
    trained = {name: p for name, p in parameters.items() if name.startswith("model.") and p.requires_grad}
    fixed = {name: p for name, p in parameters.items() if name not in trained}

    def loss(trained: Tensors, fixed: Tensors, start: Tensors, tensors: dict[str, Any]) -> torch.Tensor:
        value: torch.Tensor = functional_call(first, (trained, fixed), (start, Batch(**tensors)))
        return value

    start = _stacked([arrival.steps.start for arrival in arrivals])
    tensors = _stacked([arrival.tensors for arrival in arrivals])
    try:
        with torch.no_grad():
            gradients, losses = vmap(grad_and_value(loss))(trained, fixed | buffers, start, tensors)
            for name, _ in first.model.named_buffers():
                for part, moved in zip(parts, buffers[f"model.{name}"], strict=True):
                    part.model.get_buffer(name).copy_(moved)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        why = textwrap.shorten(str(error), 240)
        raise SettingsError(
            "unstackable_loss",
            f"This loss or network can't be computed for several sites at once, says torch: {why} {ALONE}",
            cause=why,
        ) from error
    return {name.removeprefix("model."): gradient for name, gradient in gradients.items()}, list(losses.unbind())


def _alone(arrival: Arrival) -> dict[str, torch.Tensor | None]:
    """Gradients of a site's model as it has them alone, None for parameters that its loss leaves out."""
    model = arrival.steps.part.model
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(arrival.loss(arrival.batch), list(trained.values()), allow_unused=True)
    for name, buffer in buffers.items():
        model.get_buffer(name).copy_(buffer)
    return dict(zip(trained, gradients, strict=True))


def _check_same(alone: dict[str, torch.Tensor | None], stacked: Tensors) -> None:
    """That the last gradients of a stack are those of that site alone; those of a site that diverges are no numbers."""
    known = {name: gradient for name, gradient in alone.items() if gradient is not None}
    largest = max((float(gradient.abs().max()) for gradient in known.values()), default=0.0)
    for name, gradient in known.items():
        if float((gradient - stacked[name][-1]).abs().max()) > CLOSE * largest:
            raise ContractError(
                "unlike_gradients",
                f"Expected the gradient of '{name}' in a stack of sites as a site has it alone, got another one: the "
                f"loss or the network has something of a site's own that can't be seen in its tensors. {ALONE}",
                parameter=name,
            )


def _step(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """A step of several optimisers with the same options, in one call."""
    merged = copy.copy(optimizers[0])
    merged.state = defaultdict(dict)
    for optimizer in optimizers:
        merged.state.update(optimizer.state)
    merged.param_groups = [
        {**groups[0], "params": [parameter for group in groups for parameter in group["params"]]}
        for groups in zip(*(optimizer.param_groups for optimizer in optimizers), strict=True)
    ]
    merged.step()
    for optimizer in optimizers:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        optimizer.state.update({p: merged.state[p] for p in parameters if p in merged.state})
    merged.zero_grad(set_to_none=True)


def _stacked(values: Sequence[Any]) -> Any:
    """Tensors, or dictionaries of them, stacked."""
    if isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return torch.stack(list(values))


def _shapes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shapes(part) for name, part in value.items()}
    return value.dtype, tuple(value.shape)
