"""The page of an inversion attack: images of the training data, and what an attacker makes of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from markupsafe import Markup, escape
from torch.nn.functional import adaptive_avg_pool2d

from medfl.types import Meta
from medfl.utils.files import write_atomic
from medfl_attacks.results import Attacked, Reconstruction
from medfl_report.rasters import AGAINST, FOR
from medfl_report.section import render_template

TEMPLATE = "inversion.html"

SIDE = 96
"""Most cells of a picture along each side; larger images are averaged down to bound the page."""

FULL = 0.99
"""The quantile of the sizes of an image's values that has the full colour."""

ATTACKS = {
    "none": "the image itself",
    "mean_image": "mean image",
    "gradient": "gradient descent",
    "decoder": "decoder",
    "fixed_point": "fixed point",
}
"""Attack to its name on the page."""

SIGNED = ("shared part x_s", "sent x_p")
"""Pictures of values on both sides of 0."""

TITLES = {"shared": "Shared images", "update": "The update of a site", "model": "The global model"}
"""Target to the heading of its section."""

ITEMS = {"none": "", "update": "", "class mean": "the mean of the class", "nearest image": "the nearest image"}
"""Items that have other names on the page."""


def write_page(path: Path, method: str, seed: int, attacked: Sequence[Attacked]) -> None:
    """Write the page.

    Args:
        path: The file; what is there is replaced.
        method: Name of the run's method.
        seed: The run's.
        attacked: What was found, target by target.

    Raises:
        StoreError: If it can't be written.
    """
    write_atomic(path, render(method, seed, attacked).encode())


def render(method: str, seed: int, attacked: Sequence[Attacked]) -> str:
    """The page as HTML; arguments as in `write_page`. The same content gives the same bytes."""
    page = render_template(
        __file__,
        TEMPLATE,
        title=f"Inversion attack: {method}, seed {seed}",
        sections=[_section(result) for result in attacked],
        small=small,
        volumes=any(result.truth.dim() == 5 for result in attacked),
        ends=(AGAINST, FOR),
    )
    return str(page)


def _section(result: Attacked) -> Meta:
    pictures = [made for made in result.reconstructions if made.attack != "none"]
    columns = [group for made in pictures if (group := _same(made, pictures))[0] is made]
    return {
        "id": result.target,
        "title": TITLES[result.target],
        "sentence": sentence(result),
        "notes": result.notes,
        "against": result.target == "model",
        "rows": [_row(made) for made in result.reconstructions],
        "heads": [("class mean" if result.target == "model" else "raw", ""), *((name, "") for name in result.shown)]
        + [_head(group, result.target) for group in columns],
        "images": [{"name": name, "cells": _cells(result, columns, place)} for place, name in enumerate(result.names)],
    }


def _same(made: Reconstruction, all_: Sequence[Reconstruction]) -> list[Reconstruction]:
    """The results on the same reconstructions: one picture, compared with several."""
    return [other for other in all_ if other.attack == made.attack and torch.equal(other.images, made.images)]


def _row(made: Reconstruction) -> Meta:
    return made.quality.row() | {
        "attack": ATTACKS[made.attack],
        "item": ITEMS.get(made.item, made.item),
        "rest": None if made.converged is None else f"{int(made.converged.sum())} of {len(made.converged)} at rest",
        "baseline": made.attack in ("mean_image", "none"),
    }


def _head(group: Sequence[Reconstruction], target: str) -> tuple[str, str]:
    item = ITEMS.get(group[0].item, group[0].item)
    if target == "model":
        return ("inverted class" if group[0].attack == "gradient" else ATTACKS[group[0].attack]), ""
    return ATTACKS[group[0].attack], f"from {item}" if item else ""


def _cells(result: Attacked, columns: Sequence[Sequence[Reconstruction]], place: int) -> list[Meta]:
    """The pictures of an image, side by side."""
    who = f"image {place + 1}, class {result.names[place]}"
    cells = [{"image": picture(result.truth[place], f"Raw {who}"), "lines": []}]
    for heading, values in result.shown.items():
        full = float(values[place].abs().flatten().float().quantile(FULL)) if heading in SIGNED else None
        lines = [] if full is None else [f"± {full:#.2g}"]
        cells.append({"image": picture(values[place], f"{heading} of {who}", full), "lines": lines})
    for group in columns:
        text = f"{ATTACKS[group[0].attack]}, {ITEMS.get(group[0].item, group[0].item)}: {who}"
        cells.append({"image": picture(group[0].images[place], text), "lines": _lines(group, place)})
    return cells


def _lines(group: Sequence[Reconstruction], place: int) -> list[str]:
    lines = []
    for made in group:
        compared = [f"to {ITEMS[made.item]}:"] if len(group) > 1 else []
        mse, psnr, ssim = (float(values[place]) for values in vars(made.quality).values())
        lines += [*compared, f"MSE {small(mse)}", f"{psnr:.1f} dB", f"SSIM {ssim:.2f}"]
    return lines


# ---- words


def sentence(result: Attacked) -> str:
    """What the numbers mean, in words: the best attack beside the mean image."""
    attacks = [made for made in result.reconstructions if made.attack not in ("none", "mean_image")]
    base = next(made for made in result.reconstructions if made.attack == "mean_image")
    best = min((made for made in attacks if _counts(made, result)), key=lambda made: float(made.quality.mse.mean()))
    mine, naive = (made.quality.row() for made in (best, base))
    start = {
        "shared": "From what the sites sent",
        "update": "From the update of a site",
        "model": "From the global model alone",
    }[result.target]
    whom = "the mean of a class's training images" if result.target == "model" else "the training images"
    text = (
        f"{start} the best attack ({ATTACKS[best.attack]}) comes as close to {whom} as {_numbers(mine)}, on average. "
        f"The mean of other people's images, which takes no attack, comes as close as {_numbers(naive)}. "
    )
    if mine["mse"] < 0.95 * naive["mse"]:
        gain = f"So the attacker's error is {1 - mine['mse'] / naive['mse']:.0%} smaller than it would be without"
        return text + gain + ("." if result.target == "model" else ": what was given away tells about single images.")
    return text + "So these attacks gain nothing that the mean image would not give; stronger ones may."


def _counts(made: Reconstruction, result: Attacked) -> bool:
    return made.item == (result.sent or "class mean")


def _numbers(row: Meta) -> str:
    return f"MSE {small(row['mse'])}, PSNR {row['psnr']:.1f} dB, SSIM {row['ssim']:.2f}"


def small(mse: float) -> str:
    """A mean squared error with four decimals, or where these would all be 0 with one digit."""
    return f"{mse:.4f}" if mse >= 5e-5 or mse == 0 else f"{mse:.0e}"


# ---- pictures


def picture(values: torch.Tensor, description: str, full: float | None = None) -> Markup:
    """An image as an element of a page that holds its pixels.

    Args:
        values: (C, H, W) in [0, 1]; of a volume (C, H, W, D) the middle slice is drawn, as in `medfl_report.rasters`.
        description: For those who do not see it.
        full: Draw values on both sides of 0: with one channel from blue over white to red, with three around mid-grey;
            this size has the full colour.
    """
    from PIL import Image

    cells = _pixels(_plane(values.detach().cpu().double()), full)
    data = io.BytesIO()
    Image.fromarray((255 * cells).round().byte().numpy()).save(data, "PNG", optimize=True)
    code = base64.b64encode(data.getvalue()).decode()
    return Markup(f'<img class="pixels" alt="{escape(description)}" src="data:image/png;base64,{code}">')  # noqa: S704


def _plane(values: torch.Tensor) -> torch.Tensor:
    """(C, H, W) of at most `SIDE` cells along each side, C 1 or 3."""
    if values.dim() == 4:
        values = values[..., values.shape[3] // 2].transpose(1, 2).flip(1)
    if values.shape[0] != 3:
        values = values.mean(dim=0, keepdim=True)
    return adaptive_avg_pool2d(values, (min(values.shape[1], SIDE), min(values.shape[2], SIDE)))


def _pixels(values: torch.Tensor, full: float | None) -> torch.Tensor:
    """(H, W) for grey or (H, W, 3), in [0, 1]."""
    if full is None:
        return values.clamp(0, 1).permute(1, 2, 0).squeeze(2)
    strength = (values / full if full > 0 else torch.zeros_like(values)).clamp(-1, 1).permute(1, 2, 0)
    if strength.shape[2] == 3:
        return 0.5 + strength / 2
    ends = torch.where(strength > 0, _colour(FOR), _colour(AGAINST))
    return 1 - strength.abs() * (1 - ends)


def _colour(code: str) -> torch.Tensor:
    return torch.tensor([int(code[start : start + 2], 16) / 255 for start in (1, 3, 5)], dtype=torch.float64)
