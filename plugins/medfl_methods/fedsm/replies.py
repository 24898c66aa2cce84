"""What the server makes of own models, and what it lets through of Adam's moments."""

from __future__ import annotations

import torch

from medfl.errors import RefusedError
from medfl.types import Tensors


def pulled(own: Tensors, total: Tensors, sites: int, lam: float) -> Tensors:
    """lam v_k + (1 - lam) / (n - 1) sum of the others' v_j; v_k itself of one site alone.

    Args:
        own: v_k, of which integer buffers stay.
        total: The sum of all v_j, float64.
        sites: n, how many are in it.
        lam: In [0, 1].
    """
    if sites < 2 or lam == 1:
        return own
    share = (1 - lam) / (sites - 1)
    return {
        name: (lam * tensor.double() + share * (total[name] - tensor.double())).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in own.items()
    }


def check_moments(moments: Tensors, selector: Tensors) -> None:
    """Refuse what Adam could not go on from: other names or shapes than the selector's, or values below 0.

    Raises:
        RefusedError: If the moments are so; none at all are let through.
    """
    known = {f"{name}/{key}": tensor.shape for name, tensor in selector.items() for key in ("exp_avg", "exp_avg_sq")}
    known |= {f"{name}/step": torch.Size() for name in selector}
    if moments and {name: tensor.shape for name, tensor in moments.items()} != known:
        raise RefusedError(
            "unexpected_tensors",
            f"Expected {len(known)} moments of the selector's parameters, got other names or shapes.",
            count=len(known),
        )
    for name, tensor in moments.items():
        if tensor.dtype is not torch.float32 or (not name.endswith("/exp_avg") and bool((tensor < 0).any())):
            raise RefusedError(
                "invalid_tensor_values",
                f"A moment {ascii(name)[:60]} was refused: expected float32 >= 0, got {tensor.dtype}.",
                tensor=ascii(name)[:60],
                minimum=0,
                dtype=str(tensor.dtype),
            )
