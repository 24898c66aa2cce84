"""``medfl federate evaluate``: score a finished model at the sites of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN", help="Exported bundle, run, or RUN#SITE for a site's model.", show_default=False
        ),
    ],
    kit: Annotated[Path, typer.Option(help="The researcher's startup kit.", show_default=False)],
    bundle: Annotated[
        str,
        typer.Option(
            help="Bundle that trained the model: a folder, or a name of `medfl list bundles`.", show_default=False
        ),
    ],
    scores: Annotated[str, typer.Option(help="Names of scores, with commas.")] = "auc,balanced_accuracy",
    sites: Annotated[str, typer.Option(help="Names of sites, with commas; by default all connected sites.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("evaluation"),
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for a silent site.")] = 3600,
) -> None:
    """Score a finished model on the test images of the sites of a federation. Nothing is trained.

    The weights go to each site whose own file allows the scores (key evaluation_scores). A site runs its own copy of
    the bundle and returns the scores with 95 % intervals. If too few patients are behind a number, it is suppressed.
    Writes federated_evaluation.json and scores.csv.

    Example: medfl federate evaluate runs/fedavg --kit kits/me@hospital.org --bundle medmnist_classification --scores
    auc,balanced_accuracy
    """
    from medfl.bundle.bundle_folders import find_bundle
    from medfl.utils.text import visible
    from medfl_flare.federated_evaluation.researcher_evaluation import EvaluationPlan, fetch_evaluation
    from medfl_flare.federated_evaluation.site_scores import FederatedEvaluation

    plan = EvaluationPlan(model, find_bundle(bundle), _names_in(scores), _names_in(sites), timeout)
    evaluation = fetch_evaluation(plan, kit.absolute(), out)
    for site, disclosed in evaluation.sites.items():
        if disclosed.suppressed:
            typer.echo(visible(f"{site}: suppressed {', '.join(disclosed.suppressed)}: {disclosed.reason}"))
        for name in evaluation.requested:
            score = disclosed.scores[name]
            if score is not None:
                typer.echo(visible(f"{site}: {name} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"))
            elif name not in disclosed.suppressed:
                typer.echo(visible(f"{site}: {name} is not defined for its images"))
    for site, why in evaluation.missing.items():
        typer.echo(visible(f"no scores of {site}: {why}"))
    typer.echo(evaluation.relation.sentence)
    typer.echo(f"result: {out / FederatedEvaluation.NAME}")


def _names_in(text: str) -> list[str]:
    """Return the names in a text with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]
