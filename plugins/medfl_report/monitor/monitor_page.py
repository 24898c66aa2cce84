"""HTML of the monitor's page: one self-contained document, and the part of it that is replaced as runs progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from medfl.engine.attendance import stretches
from medfl_report.monitor.run_view import ProgressCurve, RunView
from medfl_report.section import render_template

WIDTH, HEIGHT = 420, 150
"""Width and height of a figure in SVG units."""

LEFT, BOTTOM, MARGIN = 44, 20, 8
"""Space around a figure's curve in SVG units: for the labels at the left, for the labels below, and on other sides."""

MAX_SITE_CURVES = 30
"""Maximum number of sites whose curves a figure shows; with more sites it shows only the mean."""

MAX_DETAILED_RUNS = 4
"""Maximum number of runs that are shown in full below the table of all runs; unfinished runs come first."""


def render_page(title: str, nonce: str, content: Markup) -> str:
    """Return the whole page as HTML.

    Args:
        title: Name of the monitored folder.
        nonce: Nonce of the content security policy: browsers run only the script with this nonce.
        content: Initial content from `render_runs`; the page replaces it by the content of each server-sent event.
    """
    return str(render_template(__file__, "monitor_page.html", title=title, nonce=nonce, content=content))


def render_runs(views: Sequence[RunView]) -> Markup:
    """Return the content of the page: a table if there are several runs, and some runs in full.

    Args:
        views: Views of all runs.
    """
    detailed = sorted(views, key=lambda view: view.is_over)[:MAX_DETAILED_RUNS] if len(views) > 1 else list(views)
    figures = {view.name: [(curve, draw_curve(curve)) for curve in view.curves] for view in detailed}
    attendance = {view.name: stretches(view.attendance, view.last_round) for view in detailed}
    return render_template(
        __file__, "monitored_runs.html", views=views, detailed=detailed, figures=figures, attendance=attendance
    )


def draw_curve(curve: ProgressCurve) -> Markup:
    """Return a curve as SVG: a line for the mean, above thinner lines for the sites.

    Args:
        curve: The curve. The vertical axis spans its values, or an interval around them if they are all equal.
    """
    sites = curve.sites if len(curve.sites) <= MAX_SITE_CURVES else {}
    all_values = [*curve.mean, *(value for values in sites.values() for value in values.values())]
    low, high = min(all_values), max(all_values)
    if low == high:
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    first, last = curve.rounds[0], max(curve.rounds[-1], curve.rounds[0] + 1)

    def point(round_: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - MARGIN) * (round_ - first) / (last - first)
        y = MARGIN + (HEIGHT - BOTTOM - MARGIN) * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    def line(name: str, values: Mapping[int, float], css_class: str) -> str:
        points = [point(round_, values[round_]) for round_ in sorted(values) if round_ >= first]
        x, y = points[-1].split(",")
        tooltip = f"<title>{escape(name)}: {values[max(values)]:.3f} after round {max(values)}</title>"
        end = f'<circle class="{css_class}" cx="{x}" cy="{y}" r="2.5">{tooltip}</circle>'
        return f'<polyline class="{css_class}" points="{" ".join(points)}">{tooltip}</polyline>{end}'

    lines = [line(name, values, "site") for name, values in sorted(sites.items()) if values]
    lines.append(line("mean", dict(zip(curve.rounds, curve.mean, strict=True)), "mean"))
    labels = [
        (LEFT - 6, 14, "end", f"{high:.3g}"),
        (LEFT - 6, HEIGHT - BOTTOM, "end", f"{low:.3g}"),
        (LEFT, HEIGHT - 4, "start", f"round {first}"),
        (WIDTH - MARGIN, HEIGHT - 4, "end", str(last)),
    ]
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>' for x, y, anchor, text in labels
    )
    axis = f'<path class="axis" d="M{LEFT},{MARGIN}V{HEIGHT - BOTTOM}H{WIDTH - MARGIN}"/>'
    description = escape(f"{curve.title}: {curve.mean[-1]:.3f} after round {curve.rounds[-1]}")
    return Markup(  # noqa: S704  (texts are escaped, the rest are numbers)
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{description}">{axis}{"".join(lines)}{texts}</svg>'
    )
