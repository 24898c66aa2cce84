"""Figure and summary of the assignment of heads to sites over the rounds.

A head is a classifier on a shared body. In each round each participating site trains one of the heads. The figure has a
row for each site, a column for each round, and the colour of the head in each cell.
"""

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
"""Colours of the heads. Each differs from the others and from an empty cell with any colour vision; the first ones
differ most."""

MAX_COLUMNS = 400
"""Maximum number of columns of the figure. With more rounds only every second one is drawn, or every third, and so
on."""

MAX_FIGURE_WIDTH = 800.0
"""Maximum width of all columns of the figure together, in pixels."""

MAX_COLUMN_WIDTH = 28.0
"""Maximum width of a round's column, in pixels."""

MIN_NUMBERED_WIDTH = 16.0
"""Minimum width of a round's column in which the cells show the number of the head, in pixels."""

EQUAL_CONTRAST_LUMINANCE = 0.179
"""Luminance of a background on which black and white text have the same contrast."""

DIGIT_WIDTH = 8.0
"""Width in pixels that a digit of a round's number below the figure needs."""


@dataclass(frozen=True)
class HeadBadge:
    """Appearance of a head in figures and tables.

    Attributes:
        number: Number of the head, from 1.
        colour: Colour of the head's cells. Heads whose numbers differ by `len(COLOURS)` have the same colour.
        ink: Colour of the number within a cell.
    """

    number: int
    colour: str
    ink: str


@dataclass(frozen=True)
class AssignmentFigure:
    """Figure of the assignment of heads: a row for each site, a column for each round.

    Attributes:
        svg: Image of the cells with the numbers of the rounds below, without the sites' names.
        row: Height of a row in pixels.
        every: Distance of the drawn rounds: 1 if each round is drawn, 2 for every second one, and so on.
    """

    svg: Markup
    row: int
    every: int


def head_badge(head: int) -> HeadBadge:
    """Return the appearance of a head in figures and tables.

    Args:
        head: Number of the head, from 0.
    """
    colour = COLOURS[head % len(COLOURS)]
    red, green, blue = ((int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5))
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return HeadBadge(head + 1, colour, "#000000" if light > EQUAL_CONTRAST_LUMINANCE else "#ffffff")


def count_rounds_with_head(assigned: np.ndarray, heads: int) -> np.ndarray:
    """Return the number of rounds in which each site had each head.

    Args:
        assigned: Number of the head, from 0, of each site in each round, below 0 for none: shape (rounds, sites).
        heads: Number of heads.

    Returns:
        Counts of shape (sites, heads).
    """
    counts: np.ndarray = (assigned[:, :, None] == np.arange(heads)).sum(axis=0)
    return counts


def describe_assignment(times: np.ndarray) -> str:
    """Describe in sentences how evenly the heads were assigned to the sites.

    Args:
        times: Counts from `count_rounds_with_head`.
    """
    heads, active = times.shape[1], times[times.any(axis=1)]
    if not len(active):
        return "No site trained a head."
    different, most = (active > 0).sum(axis=1), int(active.max())
    idle = len(times) - len(active)
    trained = f"all {heads}" if different.min() == heads > 1 else f"{_range_text(different)} of the {heads}"
    rounds = f"{_range_text(active[active > 0])} round{'s' * (most > 1)}"
    text = f"Each site trained {trained} heads, and each of these in {rounds}."
    return text + (f" {idle} of {len(times)} sites never took part." if idle else "")


def _range_text(values: np.ndarray) -> str:
    """Return the range of values as text, or the value if there is only one."""
    low, high = int(values.min()), int(values.max())
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def assignment_figure(assigned: np.ndarray, description: str) -> AssignmentFigure:
    """Draw the assignment of heads.

    Args:
        assigned: Number of the head, from 0, of each site in each round, below 0 for none: shape (rounds, sites), each
            at least 1.
        description: Description of the figure for screen readers.
    """
    rounds, sites = assigned.shape
    every = -(-rounds // MAX_COLUMNS)
    drawn = assigned[::every].T
    column_width = min(MAX_COLUMN_WIDTH, MAX_FIGURE_WIDTH / drawn.shape[1])
    numbered = column_width >= MIN_NUMBERED_WIDTH
    row = 22 if numbered else 14
    width, height = column_width * drawn.shape[1], row * sites
    cells = "".join(strips(drawn == head, head_badge(head).colour) for head in np.unique(drawn[drawn >= 0]).tolist())
    body = (
        f'<rect class="none" width="{width:g}" height="{height}"/>'
        f'<g transform="scale({column_width:g} {row})" shape-rendering="crispEdges">{cells}</g>'
        f'<path class="gaps" d="{_cell_gaps(drawn.shape, column_width if numbered else 0, row, width)}"/>'
        + (_head_numbers(drawn, column_width, row) if numbered else "")
        + _round_numbers(rounds, every, column_width, height)
    )
    start = f'<svg role="img" aria-label="{escape(description)}" width="{width + 16:g}" height="{height + 32}">'
    return AssignmentFigure(Markup(f"{start}{body}</svg>"), row, every)  # noqa: S704


def _cell_gaps(shape: Sequence[int], column_width: float, row: int, width: float) -> str:
    """Return lines between the rows, and between the columns if these have a width."""
    sites, columns = shape
    lines = [f"M0 {row * place}h{width:g}" for place in range(1, sites)]
    if column_width:
        lines += [f"M{column_width * place:g} 0v{row * sites}" for place in range(1, columns)]
    return "".join(lines)


def _head_numbers(drawn: np.ndarray, column_width: float, row: int) -> str:
    """Return the number of each head in its cells, as SVG."""
    texts_by_ink: dict[str, list[str]] = {}
    for (site, column), head in np.ndenumerate(drawn):
        if head >= 0:
            place = f'x="{column_width * (column + 0.5):g}" y="{row * site + row // 2 + 4}"'
            texts_by_ink.setdefault(head_badge(int(head)).ink, []).append(f"<text {place}>{head + 1}</text>")
    return "".join(f'<g fill="{ink}">{"".join(texts)}</g>' for ink, texts in texts_by_ink.items())


def _round_numbers(rounds: int, every: int, column_width: float, height: int) -> str:
    """Return the numbers of rounds below the columns, as SVG: the first, and then multiples of 1, 2, 5, 10, ..."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    room = DIGIT_WIDTH * (1 + len(str(rounds)))
    step = next(candidate for candidate in steps if candidate * column_width / every >= room or candidate >= rounds)
    named = [*([1] if step > 2 else []), *range(step, rounds + 1, step)]
    places = [(round_, column_width * ((round_ - 1) / every + 0.5)) for round_ in named]
    labels = "".join(f'<text x="{place:.5g}" y="{height + 14}">{round_}</text>' for round_, place in places)
    return f'<g class="axis">{labels}<text class="name" x="0" y="{height + 29}">round</text></g>'
