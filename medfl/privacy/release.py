"""Clip and noise a part of each image before a site releases it, and compute the guarantee of that release.

Release: one noised value that leaves the site. Here it is a part of an image, such as the residual x_s = x - q(x) of a
generator q. For images in [0, 1], the only known bound of its norm is the root of the number of pixels. A guarantee
covers the worst case, so the norm must be bounded by clipping, even if the part is usually small. Without a clip there
is no differential privacy, and the statement says so.

Adjacency: under ``add_remove``, the part of one image is present or empty (sensitivity: the clip). Under ``replace``,
it is replaced by any other (sensitivity: twice the clip). Gaussian noise needs a bound of the L2 norm; the analytic
Gaussian mechanism gives its epsilon. Laplace noise of scale b needs a bound of the L1 norm; its epsilon is
sensitivity / b, with delta 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from medfl.errors import ContractError, RefusedError, SettingsError, check_choice
from medfl.privacy import composition
from medfl.privacy.gaussian import SENSITIVITY
from medfl.privacy.statements import ADJACENCY_WORDS
from medfl.utils.rng import SecretStream

Noise = Literal["gaussian", "laplace", "none"]
"""Kind of noise that is added to a part of an image; ``none`` adds no noise."""

IMAGE_PARTS = {
    "x_s": "the generalisable part of the image (the image less its reconstruction)",
    "raw": "the whole image",
}
"""Maps each part of an image that can be released to its description."""

CHUNK_NUMBERS = 1 << 22
"""Number of elements that are clipped and noised at once, to bound the memory. Another number gives other noise."""


@dataclass(frozen=True)
class ImageRelease:
    """Clipping and noise of a part of each image before it leaves a site.

    Attributes:
        noise: Kind of noise: ``gaussian``, ``laplace`` or ``none``.
        variance: Variance of the noise of each element, > 0, in squared units of images in [0, 1]. It has no effect
            with the noise ``none``. The published code of the method FedFed uses these values as standard deviations,
            or as scales of Laplace noise.
        clip: Largest norm of the part of one image, > 0: L1 norm for Laplace noise, otherwise L2 norm. None clips
            nothing. Without noise, a clip guarantees nothing.
        delta: Delta of Gaussian noise, in (0, 1).
        of: Part that is released, a key of `IMAGE_PARTS`.

    Raises:
        SettingsError: If a value is out of range.

    Example:
        >>> round(ImageRelease("gaussian", 0.15, clip=1.0).epsilon("add_remove"), 2)
        13.76
    """

    noise: Noise
    variance: float
    clip: float | None
    delta: float = 1e-5
    of: str = "x_s"

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, get_args(Noise))
        check_choice("part to release", self.of, IMAGE_PARTS)
        if self.noise != "none" and not 0 < self.variance < math.inf:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a finite variance > 0 of {self.noise} noise, got {self.variance}. For no noise choose the "
                "noise 'none'.",
                setting="variance",
                found=self.variance,
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a finite clip > 0, got {self.clip}. For no clipping, leave it out (none).",
                setting="clip",
                found=self.clip,
            )
        if not 0 < self.delta < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a delta in (0, 1), got {self.delta}.",
                setting="delta",
                found=self.delta,
            )

    @property
    def scale(self) -> float:
        """Standard deviation of Gaussian noise, or scale b of Laplace noise (variance 2 b^2); 0 without noise."""
        if self.noise == "none":
            return 0.0
        return math.sqrt(self.variance / 2 if self.noise == "laplace" else self.variance)

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """Name of the norm that `clip` bounds: ``l1`` for Laplace noise, otherwise ``l2``."""
        return "l1" if self.noise == "laplace" else "l2"

    @property
    def private(self) -> bool:
        """True if the release is differentially private: it has a clip and noise."""
        return self.clip is not None and self.noise != "none"

    def clipped(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of the images, each scaled by min(1, clip / norm), without noise.

        Args:
            part: Parts of N images with C channels, shape (N, C, *spatial), any floating dtype.

        Returns:
            Clipped parts, float64, of the same shape. In a shorter dtype, rounding could lift a norm above the bound. A
            part within the bound keeps its values exactly.

        Raises:
            RefusedError: If a value is not finite.
            ContractError: If the values are integers, as rounding would remove the noise.
        """
        if not part.is_floating_point():
            raise ContractError(
                "wrong_dtype",
                f"expected parts of images of a floating type to release, got {part.dtype}",
                expected="floating",
                found=str(part.dtype),
            )
        whole = part.detach().double()
        norms = torch.linalg.vector_norm(whole.flatten(1), ord=1 if self.norm == "l1" else 2, dim=1)
        bad = int((~norms.isfinite()).sum())
        if bad:
            raise RefusedError(
                "not_finite",
                f"expected finite parts of images to release, but {bad} of {len(whole)} are not finite. The training "
                "of the generator diverged; a smaller learning rate may help.",
                count=bad,
                total=len(whole),
            )
        if self.clip is None:
            return whole
        factors = torch.where(norms > self.clip, self.clip / norms, 1.0)
        return whole * factors.view(-1, *[1] * (whole.dim() - 1))

    def apply(self, part: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        """Clip the part of each image, then add noise. The input stays unchanged.

        Args:
            part: Parts of N images with C channels, shape (N, C, *spatial), any floating dtype.
            stream: Secret stream of the site. Its key must contain a hash of the parts, because the difference of two
                sets with equal noise would reveal both. For the same reason, several copies of the same parts must be
                drawn from one stream, one after the other.

        Returns:
            New tensor of the same shape, dtype and device.

        Raises:
            RefusedError: If a value is not finite.
        """
        rows = max(1, CHUNK_NUMBERS // max(1, part[:1].numel()))
        return torch.cat([self._apply_to_chunk(block, stream) for block in part.split(rows)])

    def _apply_to_chunk(self, part: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        clipped = self.clipped(part)
        if self.noise != "none":
            draw = stream.laplace if self.noise == "laplace" else stream.normal
            clipped = clipped + self.scale * draw(tuple(part.shape)).to(part.device)
        return clipped.to(part.dtype)

    def epsilon(self, adjacency: str) -> float | None:
        """Return the smallest epsilon of one release of one image's part, for a fixed generator.

        Args:
            adjacency: ``add_remove`` or ``replace``.

        Returns:
            Epsilon with delta `delta` for Gaussian noise, and with delta 0 for Laplace noise. None without a clip or
            without noise, which is not differentially private.
        """
        return epsilon_together([self], adjacency)

    def statement(self) -> str:
        """Return sentences about the guarantee and its limits, for the report and the log."""
        return " ".join(guarantee_sentences([self]))

    def meta(self) -> dict[str, Any]:
        """Return the fields by name, as JSON values for a message's metadata, which `from_meta` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> ImageRelease:
        """Build an object from the fields that `meta` returned.

        Raises:
            SettingsError: If a field is unknown or missing, or a value is out of range.
        """
        try:
            return cls(**meta)
        except TypeError as error:
            fields = ", ".join(field.name for field in dataclasses.fields(cls))
            raise SettingsError(
                "wrong_fields",
                f"expected a release with the fields {fields}, got {sorted(meta)}: {error}",
                expected=fields.split(", "),
                found=sorted(meta),
            ) from error


def epsilon_together(releases: Sequence[ImageRelease], adjacency: str) -> float | None:
    """Compute epsilon of several releases of the same part of one image (composition).

    Gaussian releases compose exactly: the squares of clip / standard deviation add up. The epsilons of Laplace releases
    add up, and are added to the epsilon of the Gaussian releases. With two or more such terms, the sum is an upper
    bound.

    Args:
        releases: The releases, for example FedFed's two copies. The same run again makes further releases.
        adjacency: ``add_remove`` or ``replace``.

    Returns:
        Epsilon, with the delta of the Gaussian releases if there are any. None if a release has no clip or no noise. 0
        without releases.

    Raises:
        SettingsError: If the adjacency is unknown, or Gaussian releases have different deltas.

    Example:
        >>> copies = [ImageRelease("gaussian", variance, clip=1.0) for variance in (0.15, 0.25)]
        >>> round(epsilon_together(copies, "add_remove"), 1)
        18.6
    """
    check_choice("adjacency", adjacency, SENSITIVITY)
    gaussian: list[composition.NoisedReleases] = []
    laplace: list[float] = []
    for release in releases:
        if release.clip is None or release.noise == "none":
            return None
        if release.noise == "gaussian":
            gaussian.append(composition.NoisedReleases(release.scale / release.clip, 1))
        else:
            laplace.append(SENSITIVITY[adjacency] * release.clip / release.scale)
    exact = composition.epsilon(tuple(gaussian), _delta(releases), adjacency) if gaussian else 0.0
    return exact + math.fsum(laplace)


def guarantee_sentences(releases: Sequence[ImageRelease]) -> list[str]:
    """Return sentences about the common guarantee of several releases of the same part of each image.

    Args:
        releases: At least one release; all of the same part.

    Returns:
        If a release has no clip or no noise, the first sentence begins with "no differential privacy". Otherwise the
        sentences name the unit, delta, epsilon for both adjacencies, the effect of further releases, and the limits of
        the guarantee.
    """
    part = IMAGE_PARTS[releases[0].of]
    limits = [
        "Not covered are the generator, the classifier and the task model: they are trained on raw images and shared.",
        "The label of each part and the number of parts of a site are sent in clear.",
    ]
    if not all(release.private for release in releases):
        return [f"no differential privacy: {_describe_gap(releases)}.", f"Each site sends {part}.", *limits]
    return [
        f"The unit is one image's shared part: {part}; {_describe_noise(releases)}.",
        _describe_guarantee(releases),
        f"That is for {'one release' if len(releases) == 1 else f'these {len(releases)} copies'} of each image; "
        "another run on the same images, or another image of the same patient, adds to it: "
        f"{_describe_composition(releases)}.",
        "The guarantee is conditional on the published generator, which may itself reveal information about the images "
        "it was trained on.",
        *limits,
    ]


def _delta(releases: Sequence[ImageRelease]) -> float:
    """Return the common delta of the Gaussian releases; 0 without Gaussian releases, as Laplace releases have none."""
    deltas = {release.delta for release in releases if release.noise == "gaussian"}
    if len(deltas) > 1:
        raise SettingsError(
            "several_deltas",
            f"expected one delta for all releases of the same image, got {sorted(deltas)}. Choose one.",
            found=deltas,
        )
    return deltas.pop() if deltas else 0.0


def _describe_guarantee(releases: Sequence[ImageRelease]) -> str:
    added, replaced = (epsilon_together(releases, adjacency) for adjacency in ("add_remove", "replace"))
    names = {"gaussian": "the exact (analytic) Gaussian mechanism", "laplace": "the Laplace mechanism"}
    by = " and ".join(names[kind] for kind in sorted({release.noise for release in releases}))
    return (
        f"It is (epsilon, delta)-private with delta {_delta(releases):g} and epsilon {added:.4g} for a part that is "
        f"{ADJACENCY_WORDS['add_remove']} ('add_remove': against an empty part), or epsilon {replaced:.4g} for one "
        f"that is {ADJACENCY_WORDS['replace']} ('replace'), by {by}."
    )


def _describe_noise(releases: Sequence[ImageRelease]) -> str:
    """Return a clause about the clipping and noise of each release."""
    subject = "it" if len(releases) == 1 else "one copy"
    return " and ".join(
        f"{subject} is clipped as a whole to {release.norm.upper()} norm {release.clip:g} and carries {_noise(release)}"
        for release in releases
    )


def _noise(release: ImageRelease) -> str:
    """Return a phrase with the kind, variance and scale of the noise of a release."""
    scale = "scale" if release.noise == "laplace" else "standard deviation"
    return f"{release.noise.capitalize()} noise of variance {release.variance:g} ({scale} {release.scale:.4g})"


def _describe_gap(releases: Sequence[ImageRelease]) -> str:
    """Return the reason why the releases are not differentially private."""
    if any(release.noise == "none" for release in releases):
        return "parts of images are sent without noise"
    unbounded = " and ".join(_noise(release) for release in releases if release.clip is None)
    return f"{unbounded} is added, but no clip bounds the norm of the part, so the noise hides no image"


def _describe_composition(releases: Sequence[ImageRelease]) -> str:
    rules = {
        "gaussian": "the squares of clip / standard deviation of all Gaussian releases add up, and their sum gives one "
        "epsilon for all",
        "laplace": "the epsilons of Laplace releases add up",
    }
    return "; ".join(rules[kind] for kind in sorted({release.noise for release in releases}))
