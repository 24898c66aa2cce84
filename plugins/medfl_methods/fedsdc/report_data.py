"""Heads that sites hold in turn: who held which head when, as a picture, and how evenly they went round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from markupsafe import Markup, escape

from medfl.utils.formats import number
from medfl_report.rasters import strips

COLOURS = (
    *("#0072b2", "#d55e00", "#6db6ff", "#920000", "#f0e442", "#332288", "#009e73", "#cc79a7"),
    *("#b6dbff", "#e69f00", "#a0522d", "#b66dff", "#808080", "#555555", "#bbbbbb"),
)
"""Of heads. With any colour vision two are told apart, and each from an empty cell; the first ones differ most."""

COLUMNS = 400
"""With more rounds than this only every second one is drawn, or every third, and so on."""

WIDTH = 800.0
"""Most pixels that the rounds take."""

WIDEST, NARROWEST = 28.0, 16.0
"""Most pixels of a round, and fewest that a number has room in."""

EVEN = 0.179
"""On a ground of this luminance black and white have the same contrast."""

DIGIT = 8.0
"""Pixels that a digit of a round's number below the picture needs."""


@dataclass(frozen=True)
class Badge:
    """How a head is drawn.

    Attributes:
        number: From 1.
        colour: Of its cells; heads whose numbers are so many apart as there are colours share one.
        ink: Of its number.
    """

    number: int
    colour: str
    ink: str


@dataclass(frozen=True)
class Picture:
    """Who held which head when: a row for each site, a column for each round.

    Attributes:
        svg: The cells with the numbers of the rounds below, without the sites' names.
        row: Height of a row in pixels.
        every: 1 if each round is drawn, 2 if every second one, and so on.
    """

    svg: Markup
    row: int
    every: int


def badge(head: int) -> Badge:
    """How a head is drawn.

    Args:
        head: From 0.
    """
    colour = COLOURS[head % len(COLOURS)]
    red, green, blue = ((int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5))
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return Badge(head + 1, colour, "#000000" if light > EVEN else "#ffffff")


def times_held(held: np.ndarray, heads: int) -> np.ndarray:
    """In how many rounds each site held each head.

    Args:
        held: Head, from 0, that a site held in a round, below 0 for none: shape (rounds, sites).
        heads: Number of heads.

    Returns:
        Shape (sites, heads).
    """
    counts: np.ndarray = (held[:, :, None] == np.arange(heads)).sum(axis=0)
    return counts


def evenness(times: np.ndarray) -> str:
    """How evenly heads went round, as sentences.

    Args:
        times: From `times_held`.
    """
    heads, active = times.shape[1], times[times.any(axis=1)]
    if not len(active):
        return "No site held a head."
    different, most = (active > 0).sum(axis=1), int(active.max())
    idle = len(times) - len(active)
    many = f"all {heads}" if different.min() == heads > 1 else f"{_span(different)} of the {heads}"
    text = f"Each site held {many} heads, and each of these in {_span(active[active > 0])} round{'s' * (most > 1)}."
    return text + (f" {idle} of {len(times)} sites never took part." if idle else "")


def _span(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def held_picture(held: np.ndarray, description: str) -> Picture:
    """Draw who held which head when.

    Args:
        held: As in `times_held`, of at least one round and one site.
        description: What the picture shows, for those who do not see it.
    """
    rounds, sites = held.shape
    every = -(-rounds // COLUMNS)
    drawn = held[::every].T
    across = min(WIDEST, WIDTH / drawn.shape[1])
    numbered = across >= NARROWEST
    row = 22 if numbered else 14
    width, height = across * drawn.shape[1], row * sites
    cells = "".join(strips(drawn == head, badge(head).colour) for head in np.unique(drawn[drawn >= 0]).tolist())
    body = (
        f'<rect class="none" width="{width:g}" height="{height}"/>'
        f'<g transform="scale({across:g} {row})" shape-rendering="crispEdges">{cells}</g>'
        f'<path class="gaps" d="{_gaps(drawn.shape, across if numbered else 0, row, width)}"/>'
        + (_numbers(drawn, across, row) if numbered else "")
        + _rounds(rounds, every, across, height)
    )
    start = f'<svg role="img" aria-label="{escape(description)}" width="{width + 16:g}" height="{height + 32}">'
    return Picture(Markup(f"{start}{body}</svg>"), row, every)  # noqa: S704


def _gaps(shape: Sequence[int], across: float, row: int, width: float) -> str:
    """Lines between the rows, and between the columns where those have a width."""
    sites, columns = shape
    lines = [f"M0 {row * place}h{width:g}" for place in range(1, sites)]
    if across:
        lines += [f"M{across * place:g} 0v{row * sites}" for place in range(1, columns)]
    return "".join(lines)


def _numbers(drawn: np.ndarray, across: float, row: int) -> str:
    """The number of each head in its cells."""
    texts_by_ink: dict[str, list[str]] = {}
    for (site, column), head in np.ndenumerate(drawn):
        if head >= 0:
            place = f'x="{across * (column + 0.5):g}" y="{row * site + row // 2 + 4}"'
            texts_by_ink.setdefault(badge(int(head)).ink, []).append(f"<text {place}>{head + 1}</text>")
    return "".join(f'<g fill="{ink}">{"".join(texts)}</g>' for ink, texts in texts_by_ink.items())


def _rounds(rounds: int, every: int, across: float, height: int) -> str:
    """The numbers of rounds below the columns: the first, and then such as people count by."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    room = DIGIT * (1 + len(str(rounds)))
    step = next(candidate for candidate in steps if candidate * across / every >= room or candidate >= rounds)
    named = [*([1] if step > 2 else []), *range(step, rounds + 1, step)]
    places = [(round_, across * ((round_ - 1) / every + 0.5)) for round_ in named]
    labels = "".join(f'<text x="{place:.5g}" y="{height + 14}">{round_}</text>' for round_, place in places)
    return f'<g class="axis">{labels}<text class="name" x="0" y="{height + 29}">round</text></g>'
