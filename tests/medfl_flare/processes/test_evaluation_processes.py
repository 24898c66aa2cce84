"""Federated evaluation in real NVFlare processes: the weights travel with the job, the scores come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flare_federation import Federation, federation
from loopback import SITES
from refusals import refused

from medfl.errors import MedflError
from medfl.workflow import run_bundle
from medfl_flare.federated_evaluation.evaluation_request import KIND, MODEL_KIND
from medfl_flare.federated_evaluation.researcher_evaluation import EvaluationPlan, fetch_evaluation
from medfl_flare.federated_evaluation.site_scores import FederatedEvaluation
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit_log import audit_path
from medfl_report.evaluation.evaluate import evaluate_sites

pytestmark = [pytest.mark.flare, pytest.mark.slow]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("f")) as up:
        yield up


def test_sites_score_a_model_across_processes_and_one_without_consent_refuses(
    running: Federation, tmp_path: Path
) -> None:
    scores = ["accuracy", "auc"]
    running.write_files(
        site_01={"evaluation_scores": scores}, site_02={"evaluation_scores": scores, "min_count": 10_000}
    )
    place, kit = running.place, running.kits["researcher"]
    options = {"rounds": 1, "steps": 2, "batch_size": 8, "network_name": "resnet4", "method": "fedavg"}
    run_bundle(place.bundle, options | {"dataset_dir": str(place.data), "output_dir": str(tmp_path / "run")})
    plan = EvaluationPlan(str(tmp_path / "run"), place.bundle, scores, reply_timeout=300)
    evaluation = fetch_evaluation(plan, kit, tmp_path / "external", lambda _: running._shared())
    assert FederatedEvaluation.read(tmp_path / "external" / FederatedEvaluation.NAME) == evaluation
    (here,) = evaluate_sites(str(tmp_path / "run"), place.data / SITES[0], tmp_path / "here", device="cpu")
    first = evaluation.sites[SITES[0]]
    assert first.images == here.images
    for name in scores:
        disclosed, local = first.scores[name], here.scores[name]
        assert disclosed is not None
        assert local is not None
        assert (disclosed.value, disclosed.low) == pytest.approx((local.value, local.low), abs=5e-4)
    assert evaluation.sites[SITES[1]].suppressed == scores
    assert evaluation.missing.keys() == {SITES[2]}
    assert "allows (evaluation_scores): none" in evaluation.missing[SITES[2]]
    entries = read_entries(audit_path(running.files[SITES[0]]))
    assert [(entry.kind, entry.outcome) for entry in entries if entry] == [(KIND, "answered"), (MODEL_KIND, "answered")]
    nowhere = EvaluationPlan(str(tmp_path / "run"), place.bundle, ["f1"], reply_timeout=300)
    with refused(MedflError, "scores_failed") as caught:
        fetch_evaluation(nowhere, kit, tmp_path / "nowhere", lambda _: running._shared())
    assert "no site returned scores" in caught.value.fields["reason"]
