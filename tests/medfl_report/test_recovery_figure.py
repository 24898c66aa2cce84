"""The picture of falls and recoveries: what is shaded and marked, and that the pictures of two runs can be compared."""

from __future__ import annotations

from medfl_report.figures import Curve, RecoveryInterval, curves_figure, looks, recovery_figure, svg

SCORES = [0.4, 0.2, 0.4, 0.6, 0.3]
FALLS = [RecoveryInterval(0, 2, True), RecoveryInterval(3, 4, False)]
LOOK = looks(["fedavg"])["fedavg"]


def test_a_fall_is_shaded_from_its_peak_to_its_end_and_marked():
    figure = recovery_figure(Curve("fedavg", [1, 2, 3, 4, 5], SCORES), FALLS, LOOK, "accuracy")
    line, peaks, backs = figure.axes[0].lines
    assert line.get_ydata().tolist() == SCORES
    assert peaks.get_xydata().tolist() == [[1, 0.4], [4, 0.6]]
    assert backs.get_xydata().tolist() == [[3, 0.4]]
    areas = [area for area in figure.axes[0].collections if area.get_paths()]
    extents = {bool(area.get_hatch()): area.get_paths()[0].get_extents().extents.tolist() for area in areas}
    assert extents == {False: [1, 0.2, 3, 0.4], True: [4, 0.3, 5, 0.6]}


def test_what_comes_back_above_the_peak_is_not_shaded():
    figure = recovery_figure(
        Curve("fedavg", [1, 2, 3], [0.4, 0.2, 0.6]), [RecoveryInterval(0, 2, True)], LOOK, "accuracy"
    )
    (area,) = [area for area in figure.axes[0].collections if area.get_paths()]
    assert area.get_paths()[0].get_extents().extents.tolist() == [1, 0.2, 2.5, 0.4], "the peak is crossed at 2.5"


def test_the_legend_names_all_that_is_drawn():
    text = svg(recovery_figure(Curve("fedavg", [1, 2, 3, 4, 5], SCORES), FALLS, LOOK, "accuracy"), "falls", "one fall")
    for name in ("fedavg", "below the peak, recovers", "below the peak, does not recover", "peak", "recovery"):
        assert text.count(f">{name}</text>") == 1


def test_pictures_to_compare_have_the_same_axes_and_legend():
    first, second = (
        recovery_figure(Curve("fedavg", [1, 2, 3, 4, 5], scores), falls, LOOK, "accuracy", (0.0, 0.7))
        for scores, falls in ((SCORES, FALLS), ([0.1, 0.2, 0.3, 0.4, 0.5], []))
    )
    assert first.axes[0].get_ylim() == second.axes[0].get_ylim() == (0.0, 0.7)
    entries = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in (first, second)]
    assert entries[0] == entries[1]


def test_jagged_curves_have_thin_lines():
    few, many = (
        curves_figure([Curve("fedavg", range(1, rounds + 1), [0.5] * rounds)], {"fedavg": LOOK}, "accuracy")
        for rounds in (20, 100)
    )
    assert many.axes[0].lines[0].get_linewidth() < few.axes[0].lines[0].get_linewidth()
