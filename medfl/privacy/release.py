"""Images of a kind that a site releases once: each is clipped as a whole, then noised; and what that guarantees.

What is released is a part of an image, such as the residual x_s = x - q(x) of a generator q. Images in [0, 1] bound
its norm by the root of the number of pixels and by nothing better, and a guarantee is about the worst case: however
small the part is as a rule, only a norm that is enforced gives the noise something to hide. Without a clip there is no
differential privacy, and the statement says so.

One image's part is present or empty under ``add_remove`` (it moves by at most the clip) and exchanged for any other
under ``replace`` (at most twice the clip). Gaussian noise needs a bound on the L2 norm; its epsilon is that of the
analytic Gaussian mechanism. Laplace noise of scale b needs one on the L1 norm; its epsilon is clip / b, and delta 0.
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
from medfl.privacy.statements import WHAT
from medfl.utils.rng import SecretStream

Noise = Literal["gaussian", "laplace", "none"]

PARTS = {
    "x_s": "the generalisable part of the image (the image less its reconstruction)",
    "raw": "the whole image",
}
"""What may be released, and what that is."""

CHUNK_NUMBERS = 1 << 22
"""Numbers that are clipped and noised at once, in float64; it bounds the memory, and another one is another noise."""


@dataclass(frozen=True)
class Release:
    """How a part of each image is clipped and noised before it leaves a site.

    Attributes:
        noise: ``gaussian``, ``laplace`` or ``none``.
        variance: Of the noise of each number, > 0, in squared units of images in [0, 1]; without noise it counts for
            nothing. FedFed's released code takes its numbers as standard deviations and as scales of Laplace noise.
        clip: Largest norm of the part of one image, > 0: L1 for Laplace noise, otherwise L2. None clips nothing.
            Without noise a clip guarantees nothing.
        delta: For Gaussian noise, in (0, 1).
        of: What is released, one of `PARTS`.

    Raises:
        SettingsError: If a value is out of range.

    Example:
        >>> round(Release("gaussian", 0.15, clip=1.0).epsilon("add_remove"), 2)
        13.76
    """

    noise: Noise
    variance: float
    clip: float | None
    delta: float = 1e-5
    of: str = "x_s"

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, get_args(Noise))
        check_choice("part to release", self.of, PARTS)
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
                f"expected a finite clip > 0, got {self.clip}. For no clipping leave it out (none).",
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
        """Standard deviation of Gaussian noise; scale b of Laplace noise, whose variance is 2 b^2; 0 without noise."""
        if self.noise == "none":
            return 0.0
        return math.sqrt(self.variance / 2 if self.noise == "laplace" else self.variance)

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """The norm that `clip` bounds."""
        return "l1" if self.noise == "laplace" else "l2"

    @property
    def private(self) -> bool:
        """Whether this guarantees anything: there is a clip, and noise."""
        return self.clip is not None and self.noise != "none"

    def clipped(self, part: torch.Tensor) -> torch.Tensor:
        """Each image's part, scaled as a whole by min(1, clip / norm).

        Args:
            part: (N, C, *spatial), any floating type.

        Returns:
            float64, of the same shape: in a shorter type rounding could carry a norm over the bound. A part within the
            bound keeps its numbers exactly.

        Raises:
            RefusedError: If a number is not finite.
            ContractError: If the numbers are integers, which would swallow the noise.
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
                f"expected finite parts of images to release, got {bad} of {len(whole)} that are not. The training of "
                "the generator diverged; a smaller learning rate may help.",
                count=bad,
                total=len(whole),
            )
        if self.clip is None:
            return whole
        factors = torch.where(norms > self.clip, self.clip / norms, 1.0)
        return whole * factors.view(-1, *[1] * (whole.dim() - 1))

    def apply(self, part: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        """Clip each image's part, then add noise.

        Args:
            part: (N, C, *spatial), any floating type.
            stream: The site's; its key holds a hash of the parts, or two sets with one noise could be subtracted.
                Copies of the same parts are made one after the other from one stream, for the same reason.

        Returns:
            New tensor of the same shape, type and device.

        Raises:
            RefusedError: If a number is not finite.
        """
        rows = max(1, CHUNK_NUMBERS // max(1, part[:1].numel()))
        return torch.cat([self._noised(block, stream) for block in part.split(rows)])

    def _noised(self, part: torch.Tensor, stream: SecretStream) -> torch.Tensor:
        clipped = self.clipped(part)
        if self.noise != "none":
            draw = stream.laplace if self.noise == "laplace" else stream.normal
            clipped = clipped + self.scale * draw(tuple(part.shape)).to(part.device)
        return clipped.to(part.dtype)

    def epsilon(self, adjacency: str) -> float | None:
        """The smallest epsilon for one release of one image's part, given the generator.

        Args:
            adjacency: ``add_remove`` or ``replace``.

        Returns:
            With delta `delta` for Gaussian noise, with delta 0 for Laplace noise; None where there is no clip or no
            noise: no differential privacy.
        """
        return epsilon_together([self], adjacency)

    def statement(self) -> str:
        """What is guaranteed, or that nothing is, and what is not covered; sentences for the report and the log."""
        return " ".join(sentences([self]))

    def meta(self) -> dict[str, Any]:
        """As JSON has it; `from_meta` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Release:
        """The release that `meta` wrote down.

        Raises:
            SettingsError: If a field is unknown or missing, or a value out of range.
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


def epsilon_together(releases: Sequence[Release], adjacency: str) -> float | None:
    """What holds when one image's part is released in each of these ways.

    Gaussian releases compose exactly: the squares of clip / standard deviation add up. Epsilons of Laplace releases
    add up, to one another and to that of the Gaussian ones; for two or more of them that is an upper bound.

    Args:
        releases: For example FedFed's two copies; the same run again is another one.
        adjacency: ``add_remove`` or ``replace``.

    Returns:
        Epsilon; with the delta of the Gaussian releases, if there are any. None where one of them has no clip or no
        noise. 0 without releases.

    Raises:
        SettingsError: If the adjacency is unknown or Gaussian releases name several deltas.

    Example:
        >>> copies = [Release("gaussian", variance, clip=1.0) for variance in (0.15, 0.25)]
        >>> round(epsilon_together(copies, "add_remove"), 1)
        18.6
    """
    check_choice("adjacency", adjacency, SENSITIVITY)
    gaussian: list[composition.Part] = []
    laplace: list[float] = []
    for release in releases:
        if release.clip is None or release.noise == "none":
            return None
        if release.noise == "gaussian":
            gaussian.append(composition.Part(release.scale / release.clip, 1))
        else:
            laplace.append(SENSITIVITY[adjacency] * release.clip / release.scale)
    exact = composition.epsilon(tuple(gaussian), _delta(releases), adjacency) if gaussian else 0.0
    return exact + math.fsum(laplace)


def sentences(releases: Sequence[Release]) -> list[str]:
    """What releases of one and the same part of each image guarantee together, sentence by sentence.

    Args:
        releases: At least one; all of the same part.

    Returns:
        The first begins with "no differential privacy" where one has no clip or no noise. Otherwise they name the
        unit, both adjacencies with their epsilon, delta, what further releases add, on what it is conditional and what
        it does not cover.
    """
    part = PARTS[releases[0].of]
    hints = [
        "Not covered are the generator, the classifier and the task model: they are trained on raw images and shared.",
        "The label of each part and the number of parts of a site are sent in clear.",
    ]
    if not all(release.private for release in releases):
        return [f"no differential privacy: {_gap(releases)}.", f"What is sent of each image is {part}.", *hints]
    return [
        f"The unit is one image's shared part: {part}; {_hiding(releases)}.",
        _guarantee(releases),
        f"That is for {'one release' if len(releases) == 1 else f'these {len(releases)} copies'} of each image; "
        f"another run on the same images, or another image of the same patient, adds to it: {_adding(releases)}.",
        "It holds given the published generator: it is conditional on that, and what the generator itself tells about "
        "the images it was trained on comes on top.",
        *hints,
    ]


def _delta(releases: Sequence[Release]) -> float:
    """The one delta of the Gaussian releases; 0 without any, for Laplace releases need none."""
    deltas = {release.delta for release in releases if release.noise == "gaussian"}
    if len(deltas) > 1:
        raise SettingsError(
            "several_deltas",
            f"expected one delta for releases of the same image, got {sorted(deltas)}. Choose one.",
            found=deltas,
        )
    return deltas.pop() if deltas else 0.0


def _guarantee(releases: Sequence[Release]) -> str:
    added, replaced = (epsilon_together(releases, adjacency) for adjacency in ("add_remove", "replace"))
    names = {"gaussian": "the exact (analytic) Gaussian mechanism", "laplace": "the Laplace mechanism"}
    by = " and ".join(names[kind] for kind in sorted({release.noise for release in releases}))
    return (
        f"It is (epsilon, delta)-private with delta {_delta(releases):g} and epsilon {added:.4g} for a part that is "
        f"{WHAT['add_remove']} ('add_remove': against an empty part), or epsilon {replaced:.4g} for one that is "
        f"{WHAT['replace']} ('replace'), by {by}."
    )


def _hiding(releases: Sequence[Release]) -> str:
    """How each release is clipped and noised."""
    what = "it" if len(releases) == 1 else "one copy"
    return " and ".join(
        f"{what} is clipped as a whole to {release.norm.upper()} norm {release.clip:g} and carries {_noise(release)}"
        for release in releases
    )


def _noise(release: Release) -> str:
    scale = "scale" if release.noise == "laplace" else "standard deviation"
    return f"{release.noise.capitalize()} noise of variance {release.variance:g} ({scale} {release.scale:.4g})"


def _gap(releases: Sequence[Release]) -> str:
    """Why nothing is guaranteed."""
    if any(release.noise == "none" for release in releases):
        return "parts of images are sent without noise"
    unbounded = " and ".join(_noise(release) for release in releases if release.clip is None)
    return f"{unbounded} is added, but no clip bounds the norm of the part, so the noise hides no image"


def _adding(releases: Sequence[Release]) -> str:
    rules = {
        "gaussian": "the squares of clip / standard deviation of all Gaussian releases add up, and their sum gives one "
        "epsilon for all",
        "laplace": "the epsilons of Laplace releases add up",
    }
    return "; ".join(rules[kind] for kind in sorted({release.noise for release in releases}))
