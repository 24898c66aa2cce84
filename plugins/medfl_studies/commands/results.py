"""Commands ``medfl results``: keep the raw results of studies, generate pages from them, and recompute every page."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
"""Typer application with all subcommands of ``medfl results``."""

DOCS = Path("docs/results")
"""Folder of the results pages in a checkout of medfl."""

Docs = Annotated[Path, typer.Option("--docs", metavar="DIR", help="Folder of the results pages.")]
"""Option of every subcommand."""


@app.callback()
def group() -> None:
    """Keep the raw results of studies, generate pages from them, and recompute every number of every page.

    Example: medfl results check
    """


@app.command()
def collect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Study file (YAML).", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder of the study.", show_default="runs/<name>[-<scale>]"),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the raw results.", show_default="raw/<name> beside the pages"),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the source data.", show_default="$MEDFL_DATA")
    ] = None,
    scale: Annotated[str, typer.Option(help="Scale of the study.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="as in the study")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Seed to collect; can be repeated.", show_default="all")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data set of the study to collect; can be repeated.", show_default="all")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Row of the study to collect; can be repeated.", show_default="all")
    ] = None,
    digits: Annotated[
        int, typer.Option(min=1, max=17, help="Significant digits of predictions; run folders have 9.")
    ] = 9,
    decimals: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decimals of the probabilities of classes. A case whose predicted class would change keeps all "
            "digits. 3 suffice for accuracy and F1.",
            show_default="no limit",
        ),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Keep runs of the earlier raw results that are not in the output folder.")
    ] = False,
    note: Annotated[
        list[str] | None, typer.Option(help="Sentence about the origin of the runs; can be repeated.")
    ] = None,
    docs: Docs = DOCS,
) -> None:
    """Write the raw results of a study from its output folder: settings, scores and predictions of every run.

    Give the study file and the options that `medfl study` had. The scores are the final ones, and those on test images
    by round. The files contain no name, date or identifier of the source. A data set without a stated licence is
    refused. Earlier raw results of the study are replaced; with --add, only those of the same runs, so that parts of a
    study can be run on several machines. Afterwards, `medfl results render` generates the pages.

    Example: medfl results collect studies/pretrained_breast.yaml
    """
    from medfl.utils.formats import count, size
    from medfl_studies.results.check_pages import update_sums
    from medfl_studies.results.collect import StudyPart, collect_study
    from medfl_studies.results.pages import RAW
    from medfl_studies.study_reader import choose_seeds

    place = into or docs / RAW / file.stem
    part = StudyPart(scale, choose_seeds(seeds, seed), data or (), row or ())
    collected = collect_study(file, place, out, source, part, digits, decimals, note or (), add)
    files = sorted(path for path in place.iterdir() if path.is_file())
    if place.resolve().is_relative_to(docs.resolve()):
        update_sums(docs, files, removed_below=place)
    for name, kept in collected.raw.data.items():
        typer.echo(f"{name}: {kept.dataset}, licence: {kept.licence}")
    left_out = Counter((run.data, run.row, run.status) for run in collected.raw.unfinished)
    for (name, title, status), number in left_out.items():
        typer.echo(f"left out: {name} / {title}: {count(number, 'run')}: {status}")
    for path in files:
        typer.echo(f"{path}: {size(path.stat().st_size)}")
    typer.echo(f"{len(collected.raw.runs)} runs, {size(collected.size)}")


@app.command()
def keep(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files.", show_default=False)],
    docs: Docs = DOCS,
) -> None:
    """List files with measured numbers in SHA256SUMS as they are. Pages are refused: they are generated.

    `medfl results check` then fails if a file is changed.

    Example: medfl results keep docs/results/flamby_loop.json
    """
    from medfl.errors import SettingsError
    from medfl_studies.results.check_pages import update_sums

    for path in files:
        if path.suffix == ".md":
            raise SettingsError(
                "generated_page",
                f"'{path}' is a page, and pages are generated. Change its template and run `medfl results render`.",
                path=path,
            )
    update_sums(docs, files)


@app.command()
def render(
    pages: Annotated[
        list[str] | None, typer.Argument(metavar="[PAGE]...", help="Names of pages; by default all with a template.")
    ] = None,
    docs: Docs = DOCS,
) -> None:
    """Generate results pages from their templates and the raw results.

    Files that are not generated must be unchanged: raw results change only by `medfl results collect`.

    Example: medfl results render pretrained
    """
    from medfl.utils.files import write_atomic
    from medfl_studies.results.check_pages import verify_sums
    from medfl_studies.results.pages import choose_pages, page_renderer

    chosen, generate = choose_pages(docs, pages or []), page_renderer(docs)
    verify_sums(docs)
    for page in chosen:
        write_atomic(page.path, generate(page).text.encode())
        typer.echo(page.path)


@app.command()
def check(
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of pages to check at the same time.", show_default="one per core")
    ] = None,
    docs: Docs = DOCS,
) -> None:
    """Recompute every number, interval and test of every results page, and compare the pages byte by byte.

    Each page and each study has a line that begins with ok or FAIL. The exit status is 1 if a page or a file was
    changed, or a page has no template.

    Example: medfl results check
    """
    from medfl.utils.processes import core_count
    from medfl_studies.results.check_pages import check_results

    started, failed = time.monotonic(), 0
    for line in check_results(docs, jobs or core_count()):
        typer.echo(f"{line} ({line.seconds:.1f} s)" if line.seconds else str(line))
        failed += not line.ok
    typer.echo(f"{failed} failed, {time.monotonic() - started:.0f} s")
    if failed:
        raise typer.Exit(1)
