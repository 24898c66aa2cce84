"""HTML page of an inversion attack: training images, and the attacker's reconstructions of them.

A target is the kind of information under attack (``shared`` images, ``update``, ``model``). Findings are all results on
one target. An item is the information that one attack started from, such as an image as it was sent.
"""

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
from medfl_attacks.inversion.reconstructions import AttackReconstruction, InversionFindings
from medfl_report.rasters import NEGATIVE, POSITIVE
from medfl_report.section import render_template

TEMPLATE = "inversion.html"
"""File name of the page's Jinja template."""

MAX_PIXELS = 96
"""Largest number of cells of an image on the page along each side.

Larger images are averaged down to limit the size of the page.
"""

FULL_COLOUR_QUANTILE = 0.99
"""Quantile of the absolute values of an image with values of both signs; larger values are drawn in full colour."""

ATTACK_NAMES = {
    "none": "original image",
    "mean_image": "mean image",
    "gradient": "gradient descent",
    "decoder": "trained decoder",
    "fixed_point": "fixed point",
}
"""Maps each attack to its name on the page."""

SIGNED_IMAGES = ("shared part x_s", "sent x_p")
"""Headings of images with positive and negative values."""

SECTION_TITLES = {"shared": "Shared images", "update": "Update of a site", "model": "Global model"}
"""Maps each target to the heading of its section."""

ITEM_NAMES = {"none": "", "update": "", "class mean": "mean of the class", "nearest image": "nearest image"}
"""Mapping from an item to its name on the page, for items whose name differs there."""


def write_inversion_page(path: Path, method: str, seed: int, findings: Sequence[InversionFindings]) -> None:
    """Write the HTML page of an inversion attack; replace an existing file.

    Args:
        path: Path of the page.
        method: Name of the run's method.
        seed: Seed of the run.
        findings: Findings for each target.

    Raises:
        StoreError: If the page can't be written.
    """
    write_atomic(path, render_inversion_page(method, seed, findings).encode())


def render_inversion_page(method: str, seed: int, findings: Sequence[InversionFindings]) -> str:
    """Return the page as HTML. The same content gives the same bytes.

    Args:
        method: Name of the run's method.
        seed: Seed of the run.
        findings: Findings for each target.
    """
    page = render_template(
        __file__,
        TEMPLATE,
        title=f"Inversion attack: {method}, seed {seed}",
        sections=[_section(result) for result in findings],
        format_mse=format_mse,
        volumes=any(result.truth.dim() == 5 for result in findings),
        ends=(NEGATIVE, POSITIVE),
    )
    return str(page)


def _section(result: InversionFindings) -> Meta:
    """Return the template values of the section on one target."""
    attacks_shown = [reconstructed for reconstructed in result.reconstructions if reconstructed.attack != "none"]
    columns = [
        group
        for reconstructed in attacks_shown
        if (group := _with_same_images(reconstructed, attacks_shown))[0] is reconstructed
    ]
    return {
        "id": result.target,
        "title": SECTION_TITLES[result.target],
        "sentence": summarize_findings(result),
        "notes": result.notes,
        "against": result.target == "model",
        "rows": [_measure_row(reconstructed) for reconstructed in result.reconstructions],
        "heads": [
            ("class mean" if result.target == "model" else "original", ""),
            *((name, "") for name in result.shown),
        ]
        + [_column_heading(group, result.target) for group in columns],
        "images": [
            {"name": name, "cells": _image_cells(result, columns, place)} for place, name in enumerate(result.names)
        ],
    }


def _with_same_images(
    reconstructed: AttackReconstruction, all_: Sequence[AttackReconstruction]
) -> list[AttackReconstruction]:
    """Return the results with the same images as a given result; they share a column of the page."""
    return [
        other
        for other in all_
        if other.attack == reconstructed.attack and torch.equal(other.images, reconstructed.images)
    ]


def _measure_row(reconstructed: AttackReconstruction) -> Meta:
    """Return the template values of a row in the table of measures."""
    return reconstructed.similarity.summarize() | {
        "attack": ATTACK_NAMES[reconstructed.attack],
        "item": ITEM_NAMES.get(reconstructed.item, reconstructed.item),
        "converged": None
        if reconstructed.converged is None
        else f"{int(reconstructed.converged.sum())} of {len(reconstructed.converged)} converged",
        "baseline": reconstructed.attack in ("mean_image", "none"),
    }


def _column_heading(group: Sequence[AttackReconstruction], target: str) -> tuple[str, str]:
    """Return heading and subheading of a column of reconstructions."""
    item = ITEM_NAMES.get(group[0].item, group[0].item)
    if target == "model":
        return ("reconstructed class" if group[0].attack == "gradient" else ATTACK_NAMES[group[0].attack]), ""
    return ATTACK_NAMES[group[0].attack], f"from {item}" if item else ""


def _image_cells(
    result: InversionFindings, columns: Sequence[Sequence[AttackReconstruction]], place: int
) -> list[Meta]:
    """Return the images in a row of the page: the true image, further images, and its reconstructions."""
    who = f"image {place + 1}, class {result.names[place]}"
    cells = [{"image": image_element(result.truth[place], f"Original {who}"), "lines": []}]
    for heading, values in result.shown.items():
        full = (
            float(values[place].abs().flatten().float().quantile(FULL_COLOUR_QUANTILE))
            if heading in SIGNED_IMAGES
            else None
        )
        lines = [] if full is None else [f"± {full:#.2g}"]
        cells.append({"image": image_element(values[place], f"{heading} of {who}", full), "lines": lines})
    for group in columns:
        text = f"{ATTACK_NAMES[group[0].attack]}, {ITEM_NAMES.get(group[0].item, group[0].item)}: {who}"
        cells.append({"image": image_element(group[0].images[place], text), "lines": _measure_lines(group, place)})
    return cells


def _measure_lines(group: Sequence[AttackReconstruction], place: int) -> list[str]:
    """Return the measures below a reconstruction, as lines of text."""
    lines = []
    for reconstructed in group:
        compared = [f"to {ITEM_NAMES[reconstructed.item]}:"] if len(group) > 1 else []
        mse, psnr, ssim = (float(values[place]) for values in vars(reconstructed.similarity).values())
        lines += [*compared, f"MSE {format_mse(mse)}", f"{psnr:.1f} dB", f"SSIM {ssim:.2f}"]
    return lines


# ---- words


def summarize_findings(result: InversionFindings) -> str:
    """Return sentences that compare the best attack on a target with a guess of the mean image."""
    attacks = [
        reconstructed for reconstructed in result.reconstructions if reconstructed.attack not in ("none", "mean_image")
    ]
    base = next(reconstructed for reconstructed in result.reconstructions if reconstructed.attack == "mean_image")
    best = min(
        (reconstructed for reconstructed in attacks if _is_actual_attack(reconstructed, result)),
        key=lambda reconstructed: float(reconstructed.similarity.mse.mean()),
    )
    attacker, baseline = (reconstructed.similarity.summarize() for reconstructed in (best, base))
    start = {
        "shared": "From the images that the sites sent",
        "update": "From the update of a site",
        "model": "From the global model alone",
    }[result.target]
    truth = "the mean image of each class" if result.target == "model" else "the training images"
    text = (
        f"{start}, the best attack ({ATTACK_NAMES[best.attack]}) reconstructs {truth} with "
        f"{_format_measures(attacker)}, on average. The mean of other patients' images, "
        f"which needs no attack, reaches {_format_measures(baseline)}. "
    )
    if attacker["mse"] < 0.95 * baseline["mse"]:
        gain = f"The attack's error is {1 - attacker['mse'] / baseline['mse']:.0%} smaller than that of the mean image"
        return text + gain + ("." if result.target == "model" else ": the run reveals information about single images.")
    return text + "These attacks gain nothing over the mean image; stronger attacks may."


def _is_actual_attack(reconstructed: AttackReconstruction, result: InversionFindings) -> bool:
    """Return whether a reconstruction started from the item that really left the sites, or is of a class mean."""
    return reconstructed.item == (result.sent or "class mean")


def _format_measures(row: Meta) -> str:
    """Format the three measures of a result."""
    return f"MSE {format_mse(row['mse'])}, PSNR {row['psnr']:.1f} dB, SSIM {row['ssim']:.2f}"


def format_mse(mse: float) -> str:
    """Format a mean squared error with four decimals, or in scientific notation if these would all be 0."""
    return f"{mse:.4f}" if mse >= 5e-5 or mse == 0 else f"{mse:.0e}"


# ---- pictures


def image_element(values: torch.Tensor, description: str, full: float | None = None) -> Markup:
    """Return an image as an HTML element with embedded pixels.

    Args:
        values: (C, H, W) in [0, 1]. For a volume (C, H, W, D) the middle slice of the last axis is drawn.
        description: Alternative text.
        full: For values of both signs, the absolute value that gets full colour. Images of one channel are drawn from
            blue over white to red, images of three channels around mid-grey. None for values in [0, 1].
    """
    from PIL import Image

    cells = _to_colours(_middle_plane(values.detach().cpu().double()), full)
    data = io.BytesIO()
    Image.fromarray((255 * cells).round().byte().numpy()).save(data, "PNG", optimize=True)
    code = base64.b64encode(data.getvalue()).decode()
    return Markup(f'<img class="pixels" alt="{escape(description)}" src="data:image/png;base64,{code}">')  # noqa: S704


def _middle_plane(values: torch.Tensor) -> torch.Tensor:
    """Reduce an image to (C, H, W) with at most `MAX_PIXELS` cells along each side and C = 1 or 3."""
    if values.dim() == 4:
        values = values[..., values.shape[3] // 2].transpose(1, 2).flip(1)
    if values.shape[0] != 3:
        values = values.mean(dim=0, keepdim=True)
    return adaptive_avg_pool2d(values, (min(values.shape[1], MAX_PIXELS), min(values.shape[2], MAX_PIXELS)))


def _to_colours(values: torch.Tensor, full: float | None) -> torch.Tensor:
    """Map values to colours in [0, 1]: (H, W) for grey, or (H, W, 3)."""
    if full is None:
        return values.clamp(0, 1).permute(1, 2, 0).squeeze(2)
    strength = (values / full if full > 0 else torch.zeros_like(values)).clamp(-1, 1).permute(1, 2, 0)
    if strength.shape[2] == 3:
        return 0.5 + strength / 2
    ends = torch.where(strength > 0, _parse_colour(POSITIVE), _parse_colour(NEGATIVE))
    return 1 - strength.abs() * (1 - ends)


def _parse_colour(code: str) -> torch.Tensor:
    """Parse a colour such as ``#ff0000`` to three numbers in [0, 1]."""
    return torch.tensor([int(code[start : start + 2], 16) / 255 for start in (1, 3, 5)], dtype=torch.float64)
