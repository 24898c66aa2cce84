"""Contents of the two messages that harmonise features between machines (setting ``harmonise_features``).

* ``feature_sums``: the site returns the sums over the features of its training images.
* ``feature_moments``: the moments of the features of all sites. The site computes its map from them.

Both receivers check everything before they compute with it. Features are float32, so no mean of them is larger than
`MAX_FEATURE`, and no variance larger than its square. Pooled sums of such values are finite.
"""

from __future__ import annotations

from dataclasses import fields

import torch

from medfl.data.harmonisation.combat import FeatureSums, PooledMoments
from medfl.engine.runs.features.feature_harmonisation import MIN_IMAGES
from medfl.errors import RefusedError
from medfl.types import Meta, Tensors
from medfl_flare.backend.messages import Message, check_tensors

SUMS, MOMENTS = "feature_sums", "feature_moments"
"""Kinds of the messages. The names of their tensors begin with the kind and a slash, as audit entries show them."""

MAX_FEATURE = torch.finfo(torch.float32).max
"""Largest absolute value of a feature."""

_ADVICE = "The sender is not honest, or its version of medfl differs."


def sums_to_reply(sums: FeatureSums) -> tuple[Tensors, Meta]:
    """Return the tensors and the metadata of a reply to ``feature_sums``."""
    return {f"{SUMS}/total": sums.total, f"{SUMS}/squares": sums.squares}, {"count": sums.count}


def read_sums(site: str, message: Message, features: int, images: object) -> FeatureSums:
    """Return the sums in a site's reply to ``feature_sums``, after a check.

    Args:
        site: Name of the site.
        message: Reply of the site.
        features: Number of features.
        images: Number of training images that the site disclosed when the run began.

    Raises:
        RefusedError: If the sums have another form, can't be sums of features, or are of another number of images.
    """
    who, count = f"site '{site}'", message.meta.get("count")
    _check_form(message.tensors, SUMS, {"total": torch.float64, "squares": torch.float64}, features, who)
    if type(count) is not int or count != images or count < MIN_IMAGES:
        raise RefusedError(
            "wrong_count",
            f"Expected sums over the training images of {who}, as many as it disclosed when the run began and at least "
            f"{MIN_IMAGES}; got another number. The site must disclose 'size'.",
            site=site,
            minimum=MIN_IMAGES,
        )
    sums = FeatureSums(count, message.tensors[f"{SUMS}/total"], message.tensors[f"{SUMS}/squares"])
    _check_range(sums.mean, sums.squares / count, who)
    return sums


def moments_to_tensors(pooled: PooledMoments) -> Tensors:
    """Return the tensors of a message ``feature_moments``, which are also the content of the server's file."""
    return {f"{MOMENTS}/{field.name}": getattr(pooled, field.name) for field in fields(PooledMoments)}


def read_moments(tensors: Tensors, features: int, who: str) -> PooledMoments:
    """Return the moments in a message ``feature_moments``, after a check.

    Args:
        tensors: Tensors of the message.
        features: Number of features.
        who: Sender for the error message.

    Raises:
        RefusedError: If the moments have another form, or can't be moments of features.
    """
    dtypes = {"mean": torch.float64, "variance": torch.float64, "varies": torch.bool}
    _check_form(tensors, MOMENTS, dtypes, features, who)
    pooled = PooledMoments(**{name: tensors[f"{MOMENTS}/{name}"] for name in dtypes})
    _check_range(pooled.mean, pooled.variance, who)
    if not bool((pooled.variance[pooled.varies] > 0).all()):
        raise RefusedError(
            "not_positive",
            f"A message from {who} was refused: expected a positive variance of each feature that varies at all sites, "
            f"got another one. {_ADVICE}",
            sender=who,
        )
    return pooled


def _check_form(tensors: Tensors, kind: str, dtypes: dict[str, torch.dtype], features: int, who: str) -> None:
    """Raise if the tensors of a message don't have the names, the shape (d,), the dtypes, or finite numbers."""
    forms = {f"{kind}/{name}": {((features,), dtype)} for name, dtype in dtypes.items()}
    if tensors.keys() != forms.keys():
        raise RefusedError(
            "unexpected_tensors",
            f"A message from {who} was refused: expected the tensors {sorted(forms)}, got {len(tensors)} with other "
            "names. Sender and receiver need the same version of medfl.",
            sender=who,
            expected=sorted(forms),
        )
    check_tensors(tensors, prefixes=None, shapes=forms, norm_bound=None, who=who)


def _check_range(mean: torch.Tensor, variance: torch.Tensor, who: str) -> None:
    """Raise if float32 features can't have these finite means and variances, each (d,)."""
    if bool((mean.abs() > MAX_FEATURE).any() or (variance < 0).any() or (variance > MAX_FEATURE**2).any()):
        raise RefusedError(
            "impossible_moments",
            f"A message from {who} was refused: expected means and variances of float32 features, got a negative "
            f"variance or too large numbers. {_ADVICE}",
            sender=who,
            maximum=MAX_FEATURE,
        )
