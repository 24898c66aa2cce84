"""Files for papers: every picture and every table of the page, with the same numbers, and nothing of this machine."""

from __future__ import annotations

import csv
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from make_runs import make_run
from markupsafe import Markup
from objective_runs import run_objective
from read_page import Page, words

from medfl.cli.main import main
from medfl.engine.runs.records import read_run
from medfl.objectives import Segmentation
from medfl_report.page import make_page, write_report
from medfl_report.paper.export import write_files
from medfl_report.paper.page_figures import PageFigure, record_figure, recorded_figures, write_figure
from medfl_report.paper.page_tables import ReportTable, cell, latex, recorded_tables, to_csv, to_latex
from medfl_report.rasters import (
    POSITIVE,
    colour_layer,
    grey_layer,
    grey_levels,
    outline_layer,
    thumbnail_svg,
    tile_figure,
)
from medfl_report.section import show_table

CLASSES = ("a_b & 50 %", "$c", "d\\e")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page of two methods at three sites, and the folder of its files."""
    place = tmp_path_factory.mktemp("paper")
    options = {"rounds": 2, "images": 12, "classes": CLASSES, "metrics": ("accuracy",)}
    runs = [make_run(place / name, name, **options) for name in ("fedavg", "local")]
    page = make_page([read_run(run) for run in runs])
    write_files(page.parts, place / "files")
    return page, place / "files"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def numbers(text):
    """The numbers in a text, however their signs and thousands are written."""
    text = re.sub(r"(?<=\d)(\u202f|\\,)(?=\d{3})", "", text)
    return re.findall(r"[+-]?\d+(?:\.\d+)?", text.replace("\u2212", "-").replace("$-$", "-"))


def test_every_table_of_the_page_is_there_with_its_numbers(made):
    made_page, folder = made
    page = Page(re.sub("<svg.*?</svg>", "", made_page.html, flags=re.DOTALL).replace("<small", " <small"))
    index = [row for row in rows_of(folder / "index.csv") if row[1] == "table"]
    tables = [table for part in made_page.parts for table in part.tables if table.file != ""]
    assert len(index) == len(tables) > 8
    assert {"methods.csv", "methods.tex", "sites.csv"} <= {path.name for path in folder.iterdir()}
    count = 0
    for (stem, *_), table in zip(index, tables, strict=True):
        label = table.label or table.title
        assert (folder / f"{stem}.tex").exists() == table.latex
        if stem == "sites":
            continue  # the page has its rows in several tables
        shown = page.tables[label]
        written = rows_of(folder / f"{stem}.csv")
        assert len(written) == len(shown), label
        for cells, row in zip(written, shown, strict=True):
            kept = cells[len(cells) - len(row) :]  # a cell that takes several rows is written in each of them
            assert [numbers(cell) for cell in kept] == [numbers(words(cell)) for cell in row], label
            count += sum(len(numbers(cell)) for cell in kept)
        if not table.latex:
            continue
        text = (folder / f"{stem}.tex").read_text()
        body = text[text.index("\\toprule") :].replace("\\toprule", "").replace("\\midrule", "")
        lines = [line for line in body[: body.index("\\bottomrule")].splitlines() if line]
        assert len(lines) == len(written)
        for line, cells in zip(lines, written, strict=True):
            assert len(re.findall(r"(?<!\\)&", line)) == len(cells) - 1
            assert numbers(line) == [value for cell in cells for value in numbers(cell)], label
    assert count > 100


def test_every_picture_of_the_page_is_there_as_svg_and_pdf(made):
    page, folder = made
    html = page.html
    index = [row for row in rows_of(folder / "index.csv") if row[1] == "figure"]
    forests = [row for row in index if "forest" in row[0]]
    assert len(index) - len(forests) == html.count('<svg role="img"')
    assert len(forests) == html.count('<table class="gains">') == 1
    for stem, *_ in index:
        root = ElementTree.parse(folder / f"{stem}.svg").getroot()
        assert root.tag.endswith("svg")
        pdf = (folder / f"{stem}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert pdf.rstrip().endswith(b"%%EOF")
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.pdf")}


def test_no_file_has_a_date_or_a_path(made):
    _, folder = made
    for path in folder.iterdir():
        content = path.read_bytes()
        for word in (
            b"CreationDate",
            b"ModDate",
            b"dc:date",
            b"Producer",
            str(folder.parent).encode(),
            b"/tmp",
            b"/root",
        ):
            assert word not in content, (path.name, word)


def test_the_same_runs_give_the_same_bytes(made):
    page, folder = made
    section = next(section for section in page.sections if section.id == "curves")
    for path in write_figure(section.figures[0], folder.parent / "again"):
        assert path.read_bytes() == (folder / f"curves-{section.figures[0].name}{path.suffix}").read_bytes()


def test_a_forest_has_the_differences_and_intervals_of_its_table(made):
    page, folder = made
    picture = next(s for s in page.sections if s.id == "gains").figures[0]
    (axes,) = picture.draw().axes
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    spans = [collection.get_segments()[0][:, 0] for collection in axes.collections]
    rows = rows_of(folder / "gains.csv")[1:]
    written = [[float(value) for value in numbers(row[3])] for row in rows][::-1]
    assert marks == pytest.approx([row[0] for row in written], abs=0.00051)
    assert np.array(spans) == pytest.approx(np.array([row[1:] for row in written if len(row) == 3]), abs=0.00051)
    assert [label.get_text() for label in axes.get_yticklabels()][::-1] == [row[0].split(" (")[0] for row in rows]


def test_a_table_has_the_same_cells_on_the_page_and_in_files():
    table = ReportTable("Of  x_1 & y", texts=(0,), spans=True)
    table.head(cell("a", "b"), "n", "v")
    table.row("one", cell("−0.5", "−1 to 1", None, "± 2"), cell(None, "x", html=Markup("<svg><text>7</text></svg>")))
    table.row("one", "1\u202f234", "–")
    table.group()
    table.heading("all")
    with recorded_tables() as tables:
        html = show_table(table)
    assert tables == [table]
    assert to_csv(table) == "a (b),n,v\none,-0.5 (-1 to 1) ± 2,x\none,1234,\nall,all,all\n"
    text = to_latex(table, "t")
    assert "\\caption{Of x\\_1 \\& y}" in text
    assert "\\begin{tabular}{lll}" in text, "the last row is text"
    assert (
        "one & $-$0.5 ($-$1 to 1) $\\pm$ 2 & x \\\\\none & 1\\,234 & -- \\\\\n\\midrule\nall & all & all \\\\" in text
    )
    assert "Of  x_1 &amp; y</caption>" in html
    assert html.count('<th scope="rowgroup" rowspan="2">one') == 1
    assert '<th scope="rowgroup" colspan="3">all' in html
    assert '<td class="n">−0.5<small>−1 to 1</small> <small>± 2</small>' in html
    assert table.frame.shape == (3, 3)


def test_a_column_of_numbers_is_aligned_to_the_right():
    table = ReportTable("Numbers")
    table.head("site", "images", "note")
    table.row("a", 12, "–")
    table.total("all", 12, "2 of 3")
    assert "\\begin{tabular}{lrr}" in to_latex(table, "t")


def test_names_mean_nothing_in_latex(made):
    _, folder = made
    assert latex("50 % of a_b & $c \\ {#}") == r"50 \% of a\_b \& \$c \textbackslash{} \{\#\}"
    assert r"a\_b \& 50 \% & \$c & d\textbackslash{}e" in (folder / "images-training.tex").read_text()


# ---- pictures of images


def test_an_image_is_drawn_in_its_own_greys_with_what_lies_over_it():
    values = np.arange(12.0).reshape(3, 4)
    levels, mask = np.zeros((3, 4), dtype=int), np.zeros((3, 4), dtype=bool)
    levels[1, 2], mask[:2, :2] = 4, True
    figure = tile_figure(
        (3, 4), grey_layer(grey_levels(values)) + colour_layer(levels) + outline_layer(mask, "#00c2ff")
    )
    drawn = np.asarray(figure.axes[0].images[0].get_array())
    greys = np.rint(255 * grey_levels(values) / 11) / 255
    colour = np.array([int(POSITIVE[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    expected = np.repeat(greys[..., None], 3, axis=2)
    expected[1, 2] = 0.2 * expected[1, 2] + 0.8 * colour
    assert drawn == pytest.approx(expected)
    (edges,) = figure.axes[0].collections
    assert len(edges.get_segments()) == 8, "two by two cells have eight edges"


def test_nothing_is_kept_where_no_one_wants_it():
    thumbnail_svg((1, 1), "", "nothing")
    with recorded_figures() as pictures:
        thumbnail_svg((1, 1), "", "one")
        record_figure("named", "two", lambda: tile_figure((1, 1), ""))
    thumbnail_svg((1, 1), "", "nothing")
    assert [(picture.name, picture.description) for picture in pictures] == [("image0", "one"), ("named", "two")]
    assert isinstance(pictures[0], PageFigure)


@pytest.mark.slow
def test_pictures_of_the_worst_masks_are_files_too(tmp_path):
    folder = run_objective(tmp_path / "run", Segmentation(channels=2), rounds=1, tests=4, worst_case_images=True)
    page = write_report([folder], tmp_path / "page.html", figures=tmp_path / "files")
    assert page.read_text().count('class="tile"') == len(list((tmp_path / "files").glob("masks-image*.svg"))) > 0


def test_the_command_says_where_the_files_are(tmp_path, capsys):
    folder = make_run(tmp_path / "run", rounds=1, images=5, metrics=("accuracy",), bundles=False)
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder), "--figures", str(tmp_path / "out" / "files")])
    assert (end.value.code or 0) == 0
    assert "index.csv lists them" in capsys.readouterr().out
    assert (tmp_path / "out" / "files" / "scores.csv").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder), "--figures", str(tmp_path / "file")])
    assert end.value.code == 2
    assert "Name another folder" in capsys.readouterr().err
