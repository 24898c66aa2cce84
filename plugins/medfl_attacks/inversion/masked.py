"""What a server sees of one site's update under secure aggregation."""

from __future__ import annotations

import numpy as np
import torch

from medfl.engine.secure.fixed_point import FixedPoint
from medfl.engine.secure.masks import add_mask
from medfl.privacy.gaussian import clip_by_norm
from medfl.settings import SecureAggregation
from medfl.types import Tensors
from medfl.utils.rng import SecretStream


def masked(update: Tensors, secure: SecureAggregation, clip: float, stream: SecretStream) -> Tensors:
    """An update under a mask that the attacker does not know, read as numbers as if there were none.

    Args:
        update: Any floating tensors.
        secure: The run's setting.
        clip: L2 bound of an update.
        stream: Gives the mask's key, of which the site's peers hold shares and the server none.

    Returns:
        Tensors of the same names and shapes, float32.
    """
    shapes = {name: tensor.shape for name, tensor in sorted(update.items())}
    flat = torch.cat([update[name].double().flatten() for name in shapes])
    point = FixedPoint(secure.bits, 2 * secure.resolved_threshold - 1, clip, len(flat))
    generator = torch.Generator().manual_seed(stream.seed())
    words = point.words(point.rounded(clip_by_norm({"update": flat}, clip)["update"], generator))
    add_mask(words, stream.take(32))
    numbers = point.values(np.asarray(words)).float().split([shape.numel() for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), numbers, strict=True)}
