"""Measure the time and memory of three forms of FedSKD's similarity loss: direct, n x n and k x k, over n and k.

Each repetition runs every form once on the same features. The order changes with each repetition, so the load of the
machine affects all forms equally. The reported time of a form is its minimum, because other processes can only increase
it. The direct form implements the paper's formula with autograd: two Gram matrices, row normalisation, squared
distance. "chosen" is the form that `gram_loss` selects; its time divided by the time of the fastest form should be 1.
Memory is the peak resident set size of a child process in one forward and backward pass (VmHWM of Linux) minus its
resident set size before the pass. It includes the gradients and excludes the features.

The second part measures the region form for an atlas that moves with each image. One measurement is a forward and a
backward pass: it computes the weights of the regions on the grids of four stages, and the loss with these weights.
"masks" creates and pools a mask for each region; "medfl" counts each voxel once in its cell.

    python benchmarks/similarity_loss.py
    python benchmarks/similarity_loss.py --sizes 13824x512 --repetitions 1 --threads 2
    python benchmarks/similarity_loss.py --sizes "" --atlas 48x116x8

The direct form at 13824 x 512 (the first stage of a 3-D ResNet at 48^3, batch 8) takes 4.4 GiB and up to half a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch

from medfl.utils.memory import release_memory
from medfl_methods.fedskd.gram import choose_algorithm, gram_loss
from medfl_methods.fedskd.regions import pool
from medfl_methods.fedskd.similarity import region_similarity_loss
from medfl_methods.fedskd.stages import RegionGrids

DEFAULT_SIZES = (
    "8x110592 27x4096 116x512 216x2048 784x2048 1728x1024 3136x1024 2048x512 3072x512 1024x256 1536x256 3136x64"
)
FORMS = ("direct", "n x n", "k x k")
MIB = 2**20
MAX_WIDTH_RATIO = 8
"""Ratio k / n above which the k x k form is skipped, because it would take minutes and is never the fastest."""

Sizes = list[tuple[int, int]]


def direct(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the loss by the paper's formula. Both inputs have shape (k, n)."""
    n = x.shape[1]

    def similarity(h: torch.Tensor) -> torch.Tensor:
        gram = h @ h.T
        return gram / gram.norm(dim=1, keepdim=True) * n**0.5

    return (similarity(x.T) - similarity(y.T)).square().sum() / n**2


def loss_of(form: str, n: int, k: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the loss function of a form."""
    if form == "direct":
        return direct
    square = "small" if choose_algorithm(n, n) == "small" else "tiles"
    return lambda x, y: gram_loss(x, y, "columns" if form == "k x k" else square)


def features(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random features of two models after a ReLU, each of shape (k, n), with the same mean before the ReLU."""
    torch.manual_seed(0)
    mean = torch.rand(k, 1)
    x, y = ((mean + torch.randn(k, n)).relu_() for _ in range(2))
    return x, y


def forms_for(n: int, k: int) -> list[str]:
    """Return the forms to measure for a size."""
    return [form for form in FORMS if form != "k x k" or k <= MAX_WIDTH_RATIO * n]


def seconds(form: str, n: int, k: int, x: torch.Tensor, y: torch.Tensor, gradient: bool) -> float:
    """Run one forward pass, and a backward pass if `gradient`, and return its wall seconds."""
    x, y = x.detach().requires_grad_(gradient), y.detach().requires_grad_(gradient)
    loss = loss_of(form, n, k)
    start = time.perf_counter()
    value = loss(x, y)
    if gradient:
        value.backward()
    return time.perf_counter() - start


def measure_time(n: int, k: int, repetitions: int) -> dict[str, dict[bool, float]]:
    """Return the minimum seconds by form and by whether the time includes the backward pass."""
    forms = forms_for(n, k)
    x, y = features(n, k)
    samples: dict[str, dict[bool, list[float]]] = {form: {False: [], True: []} for form in forms}
    for number in range(-1 if repetitions > 1 else 0, repetitions):  # repetition -1 is a warm-up
        turn = number % len(forms)
        for form in forms[turn:] + forms[:turn]:
            for gradient in (False, True):
                taken = seconds(form, n, k, x, y, gradient)
                if number >= 0:
                    samples[form][gradient].append(taken)
    return {form: {gradient: min(times[gradient]) for gradient in times} for form, times in samples.items()}


def measure_memory(form: str, n: int, k: int, threads: int) -> float:
    """Return the additional memory of one pass in a separate process, in bytes."""
    command = [sys.executable, __file__, "--peak", form, "--sizes", f"{n}x{k}", "--threads", str(threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def peak_memory(form: str, n: int, k: int) -> int:
    """Run one pass in this process and return its additional peak memory in bytes."""
    x, y = features(n, k)
    seconds(form, 64, 32, *features(64, 32), gradient=True)  # a warm-up: libraries allocate their buffers
    release_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = psutil.Process().memory_info().rss
    seconds(form, n, k, x, y, gradient=True)
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 - before


def moved_atlas(edge: int, regions: int, batch: int) -> torch.Tensor:
    """Return a synthetic atlas for each image of a batch, moved by up to two voxels.

    The regions are the Voronoi cells of random points, cut off at a ball; voxels outside the ball have label 0.

    Args:
        edge: Edge of the volume in voxels.
        regions: Number of regions.
        batch: Number of images.

    Returns:
        Labels of shape (batch, edge, edge, edge).
    """
    torch.manual_seed(0)
    places = torch.stack(torch.meshgrid(*[torch.arange(float(edge))] * 3, indexing="ij"), dim=-1).view(-1, 3)
    labels = torch.cdist(places, torch.rand(regions, 3) * edge).argmin(1) + 1
    labels[(places - edge / 2).norm(dim=1) > 0.46 * edge] = 0
    atlas = labels.view(edge, edge, edge)
    return torch.stack([atlas.roll(number % 3, dims=0) for number in range(batch)])


def weights_from_masks(labels: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Compute the weights of the regions, shape (B, R, *size), with one mask per region."""
    masks = [(labels == value)[:, None].float() for value in labels.unique() if value > 0]
    return torch.cat([pool(mask, size) for mask in masks], dim=1)


def region_seconds(form: str, labels: torch.Tensor, features: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Run one pass over all stages and return its CPU seconds, which depend less on other load than wall seconds."""
    start = time.process_time()
    grids = RegionGrids(labels, "soft")
    total = torch.zeros(())
    for a, b in features:
        weights = grids.for_maps(a, b) if form == "medfl" else weights_from_masks(labels, a.shape[2:])
        total = total + region_similarity_loss(a, b, weights)
    total.backward()
    return time.process_time() - start


def measure_regions(edge: int, regions: int, batch: int, repetitions: int) -> dict[str, float]:
    """Measure "masks" and "medfl" alternately over stages of 64, 128, 256 and 512 channels.

    Returns:
        The minimum CPU milliseconds of each and their ratio, by the name of the figure.
    """
    labels = moved_atlas(edge, regions, batch)
    shapes = [(batch, 64 * 2**stage, *[max(edge // 2 ** (stage + 1), 1)] * 3) for stage in range(4)]
    maps = [tuple(torch.randn(shape).relu_().requires_grad_() for _ in range(2)) for shape in shapes]
    times: dict[str, list[float]] = {"masks": [], "medfl": []}
    for number in range(repetitions + 1):  # repetition 0 is a warm-up
        for form in sorted(times, reverse=bool(number % 2)):
            taken = region_seconds(form, labels, maps)
            times[form] += [taken] if number else []
    region_figures = {
        f"{form}: CPU milliseconds forward and backward": min(taken) * 1e3 for form, taken in times.items()
    }
    region_figures["masks / medfl: time"] = min(times["masks"]) / min(times["medfl"])
    return {f"atlas {edge} x {regions} x {batch}, {name}": value for name, value in region_figures.items()}


def figures(n: int, k: int, repetitions: int, threads: int, memory: bool) -> dict[str, float]:
    """Return the figures of one size by name: times, ratios and, if `memory`, the memory of each form."""
    times = measure_time(n, k, repetitions)
    chosen = "k x k" if choose_algorithm(n, k) == "columns" else "n x n"
    results = {}
    for form, taken in times.items():
        results[f"{form}: milliseconds forward"] = taken[False] * 1e3
        results[f"{form}: milliseconds forward and backward"] = taken[True] * 1e3
        if memory:
            results[f"{form}: MiB at the peak"] = measure_memory(form, n, k, threads) / MIB
    best = min(taken[True] for taken in times.values())
    results["chosen / fastest: time"] = times[chosen][True] / best
    results["direct / chosen: time"] = times["direct"][True] / times[chosen][True]
    if memory:
        least = max(results[f"{chosen}: MiB at the peak"], 1e-3)
        results["direct / chosen: memory"] = results["direct: MiB at the peak"] / least
    return {f"{n} x {k}, {name}": value for name, value in results.items()}


def row(n: int, k: int, results: dict[str, float]) -> str:
    """Return the row of one size in the Markdown table."""

    def cell(name: str, digits: int = 1) -> str:
        value = results.get(f"{n} x {k}, {name}")
        return "" if value is None else f"{value:.{digits}f}"

    cells = [str(n), str(k)]
    for unit in ("milliseconds forward", "milliseconds forward and backward", "MiB at the peak"):
        cells.append(" / ".join(cell(f"{form}: {unit}") or "-" for form in FORMS))
    cells.append("k x k" if choose_algorithm(n, k) == "columns" else "n x n")
    cells += [cell("chosen / fastest: time", 2), cell("direct / chosen: time"), cell("direct / chosen: memory")]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help="sizes as NxK, separated by spaces; may be empty")
    parser.add_argument("--atlas", default="48x116x8", help="size of the atlas as EDGExREGIONSxIMAGES; may be empty")
    parser.add_argument("--repetitions", type=int, default=7, help="repetitions of each form")
    parser.add_argument("--threads", type=int, default=2, help="number of torch's threads")
    parser.add_argument(
        "--no-memory", action="store_true", help="measure times only; the memory measurement needs Linux"
    )
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    parser.add_argument("--peak", choices=FORMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes: Sizes = [(int(n), int(k)) for n, k in (size.split("x") for size in options.sizes.split())]
    if options.peak:
        print(peak_memory(options.peak, *sizes[0]))
        return
    print("Each cell with three values: direct / n x n / k x k.\n")
    print("| n | k | ms, forward | ms, forward and backward | MiB | chosen | chosen / fastest |", end="")
    print(" times faster than direct | times less memory |\n|" + "---|" * 9)
    results: dict[str, float] = {}
    for n, k in sizes:
        results |= figures(n, k, options.repetitions, options.threads, not options.no_memory)
        print(row(n, k, results), flush=True)
    if options.atlas:
        edge, regions, batch = map(int, options.atlas.split("x"))
        results |= (atlas := measure_regions(edge, regions, batch, options.repetitions))
        print("\n" + "\n".join(f"{name}: {value:.1f}" for name, value in atlas.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
