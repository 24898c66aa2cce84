"""The page: one HTML text without anything from elsewhere, and what of it is exchanged as the runs go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from medfl.engine.attendance import stretches
from medfl_report.monitor.view import Drawn, View
from medfl_report.section import render_template

WIDTH, HEIGHT = 420, 150
"""Of a curve, in pixels of its own."""

LEFT, BOTTOM = 44, 20
"""Room for the numbers beside and below it."""

UNSEEN = 30
"""With more sites than this their own lines are left out of a picture."""

DETAILED = 4
"""Runs that are shown in full beside the table of all: those at work first."""


def page(title: str, nonce: str, shown: Markup) -> str:
    """The whole page.

    Args:
        title: What is watched.
        nonce: Names the page's own script, which is the only one that a browser runs.
        shown: Its content now; what follows comes by the stream of events.
    """
    return str(render_template(__file__, "monitor.html", title=title, nonce=nonce, shown=shown))


def content(views: Sequence[View]) -> Markup:
    """What is shown now."""
    detailed = sorted(views, key=lambda view: view.over)[:DETAILED] if len(views) > 1 else list(views)
    drawn = {view.name: [(curve, picture(curve)) for curve in view.curves] for view in detailed}
    rows = {view.name: stretches(view.attendance, view.last_round) for view in detailed}
    return render_template(__file__, "runs.html", views=views, detailed=detailed, drawn=drawn, matrices=rows)


def picture(curve: Drawn) -> Markup:
    """A curve as SVG: the mean, and the sites behind it."""
    sites = curve.sites if len(curve.sites) <= UNSEEN else {}
    values = [*curve.mean, *(value for known in sites.values() for value in known.values())]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    first, last = curve.rounds[0], max(curve.rounds[-1], curve.rounds[0] + 1)

    def place(round_: int, value: float) -> str:
        across = LEFT + (WIDTH - LEFT - 8) * (round_ - first) / (last - first)
        return f"{across:.1f},{8 + (HEIGHT - BOTTOM - 8) * (high - value) / (high - low):.1f}"

    def line(name: str, points: Mapping[int, float], kind: str) -> str:
        places = [place(round_, points[round_]) for round_ in sorted(points) if round_ >= first]
        dot = places[-1].split(",")
        words = f"<title>{escape(name)}: {points[max(points)]:.3f} after round {max(points)}</title>"
        end = f'<circle class="{kind}" cx="{dot[0]}" cy="{dot[1]}" r="2.5">{words}</circle>'
        return f'<polyline class="{kind}" points="{" ".join(places)}">{words}</polyline>{end}'

    lines = [line(name, known, "site") for name, known in sorted(sites.items()) if known]
    lines.append(line("mean", dict(zip(curve.rounds, curve.mean, strict=True)), "mean"))
    texts = [
        (LEFT - 6, 14, "end", f"{high:.3g}"),
        (LEFT - 6, HEIGHT - BOTTOM, "end", f"{low:.3g}"),
        (LEFT, HEIGHT - 4, "start", f"round {first}"),
        (WIDTH - 8, HEIGHT - 4, "end", str(last)),
    ]
    words = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>' for x, y, anchor, text in texts
    )
    axis = f'<path class="axis" d="M{LEFT},8V{HEIGHT - BOTTOM}H{WIDTH - 8}"/>'
    label = escape(f"{curve.title}: {curve.mean[-1]:.3f} after round {curve.rounds[-1]}")
    return Markup(  # noqa: S704  (texts are escaped, the rest are numbers)
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{axis}{"".join(lines)}{words}</svg>'
    )
