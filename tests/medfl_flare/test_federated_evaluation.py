"""Federated evaluation in one process: scores equal those of a local evaluation, and nothing but scores leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as st
import torch
from loopback import BUNDLE, FACTS, SITES, Loopback, Place, make_place
from refusals import refused
from typer.testing import CliRunner

from medfl.bundle.bundle_folders import bundle_hash
from medfl.engine.runs.records import read_run
from medfl.errors import MedflError, RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.records.evaluation import ScoreEstimate
from medfl.workflow import run_bundle
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.commands import federate
from medfl_flare.connection import COMPLETED
from medfl_flare.federated_evaluation import researcher_evaluation
from medfl_flare.federated_evaluation.evaluation_request import (
    KIND,
    MODEL_KIND,
    EvaluationRequest,
    is_evaluation_request,
)
from medfl_flare.federated_evaluation.researcher_evaluation import EvaluatedWeights, EvaluationPlan, read_evaluation
from medfl_flare.federated_evaluation.server_evaluation import REPLY_LIMITS, RESULT_FILE_NAME, request_evaluation
from medfl_flare.federated_evaluation.site_scores import FederatedEvaluation, SiteScores, read_scores
from medfl_flare.federated_statistics import researcher_session
from medfl_flare.federated_statistics.statistics_request import is_statistics_request
from medfl_flare.follow import FollowedJob
from medfl_flare.job_folder import WEIGHTS_FILE_NAME, write_job
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit_log import audit_path
from medfl_report.cards.write import write_cards
from medfl_report.evaluation.evaluate import evaluate_sites
from medfl_report.evaluation.stored import read_evaluations

SITE = SITES[0]
SCORES = ["accuracy", "balanced_accuracy", "auc"]
ALLOWED = {"evaluation_scores": SCORES}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"), images=120)


@pytest.fixture(scope="module")
def model(place: Place) -> Path:
    """The global bundle of a run on the sites' data, with a network that has batch normalisation."""
    out = place.root / "run"
    options = {"rounds": 1, "batch_size": 8, "network_name": "tiny", "method": "fedavg"}
    run_bundle(place.bundle, options | {"dataset_dir": str(place.data), "output_dir": str(out)})
    return out / "global"


@pytest.fixture(scope="module")
def prepared(place: Place, model: Path) -> EvaluatedWeights:
    return read_evaluation(EvaluationPlan(str(model), place.bundle, SCORES, SITES), "external")


def ask(
    loop: Loopback, prepared: EvaluatedWeights, out: Path, **changes: Any
) -> tuple[dict[str, SiteScores], dict[str, str]]:
    request = EvaluationRequest.from_meta(prepared.request.to_json() | changes)
    job = write_job(request, out, prepared.content)
    request_evaluation(request, job / "app_server" / "config", loop, out, RunStatus())
    content = json.loads((out / RESULT_FILE_NAME).read_text())
    sites = {
        site: read_scores(Message(MODEL_KIND, {}, meta), request.scores) for site, meta in content["sites"].items()
    }
    return sites, content["missing"]


def reply(loop: Loopback, request: dict[str, Any]) -> str:
    return str(unpack(loop.services[SITE].answer(pack(Message(KIND, {}, request))), REPLY_LIMITS).meta["refused"])


def test_the_sites_return_the_scores_of_a_local_evaluation(
    place: Place, model: Path, prepared: EvaluatedWeights, tmp_path: Path
) -> None:
    sites, missing = ask(Loopback(place.files("all", dict.fromkeys(SITES, ALLOWED))), prepared, tmp_path)
    assert missing == {}
    here = {each.site: each for each in evaluate_sites(str(model), place.data, tmp_path / "here", device="cpu")}
    for site in SITES:
        disclosed, local = sites[site], here[site]
        assert disclosed.scores.keys() == set(SCORES)
        assert (disclosed.images, disclosed.patients, disclosed.suppressed) == (local.images, local.patients, [])
        for name, score in disclosed.scores.items():
            expected = local.scores[name]
            assert score is not None
            assert expected is not None
            assert (score.value, score.low, score.high) == pytest.approx(
                (expected.value, expected.low, expected.high), abs=5e-4
            )
            assert score.value == float(f"{score.value:.4g}")


def test_no_message_has_a_value_of_an_image(place: Place, prepared: EvaluatedWeights, tmp_path: Path) -> None:
    left: dict[str, list[bytes]] = {site: [] for site in SITES}

    def keep(site: str, blob: bytes) -> bytes:
        left[site].append(blob)
        return blob

    files = place.files("messages", dict.fromkeys(SITES, ALLOWED))
    ask(Loopback(files, tamper_answer=keep), prepared, tmp_path)
    for site in SITES:
        first, second = (unpack(blob, REPLY_LIMITS) for blob in left[site])
        assert (first.kind, first.tensors, first.meta) == (KIND, {}, {"refused": None})
        assert (second.kind, second.tensors) == (MODEL_KIND, {})
        assert second.meta.keys() == {"refused", *SiteScores.model_fields}
        assert second.meta["scores"].keys() == set(SCORES)
        assert all(score.keys() == {"value", "low", "high"} for score in second.meta["scores"].values())
        numbers = [value for value in second.meta.values() if isinstance(value, list)]
        assert numbers == [[]], "no list but the empty one of suppressed scores"
        entries = read_entries(audit_path(files[site]))
        assert [(entry.kind, entry.run, entry.outcome, entry.bytes) for entry in entries if entry] == [
            (kind, "external", "answered", len(blob)) for kind, blob in zip((KIND, MODEL_KIND), left[site], strict=True)
        ]
        assert not list(files[site].state.rglob("predictions*"))


def test_scores_below_the_minimum_are_suppressed(place: Place, prepared: EvaluatedWeights, tmp_path: Path) -> None:
    listed = json.loads((place.data / SITE / "datalist.json").read_text())
    labels = [record["label"] for record in listed["test"]]
    smallest = min(np.bincount(labels)[np.bincount(labels) > 0])
    own = {
        SITES[0]: ALLOWED | {"min_count": int(smallest) + 1},
        SITES[1]: ALLOWED | {"min_count": 10_000},
        SITES[2]: ALLOWED | {"disclose": []},
    }
    sites, missing = ask(Loopback(place.files("few", own)), prepared, tmp_path)
    assert missing == {}
    for site in SITES[:2]:
        assert sites[site].scores == dict.fromkeys(SCORES)
        assert sites[site].suppressed == SCORES
    assert "a class" in sites[SITES[0]].reason
    assert sites[SITES[0]].images == len(labels)
    assert (sites[SITES[1]].images, sites[SITES[1]].patients) == (None, None)
    assert "fewer than 10000" in sites[SITES[1]].reason
    assert (sites[SITES[2]].images, sites[SITES[2]].patients, sites[SITES[2]].suppressed) == (None, None, [])


def test_the_minimum_counts_patients_and_as_many_as_it_are_enough(
    place: Place, prepared: EvaluatedWeights, tmp_path: Path
) -> None:
    """Site 1: all images of a class are of two patients; site 2: of three. The minimum is three."""
    data = shutil.copytree(place.data, tmp_path / "data")
    (data / "partition.json").unlink(missing_ok=True)
    for site, patients in zip(SITES, (2, 3), strict=False):
        path = data / site / "datalist.json"
        listed = json.loads(path.read_text())
        listed["test"], listed["training"] = listed["training"], listed["test"]  # more images of each class
        seen: dict[int, int] = {}
        for record in listed["test"]:
            place_in_class = seen[record["label"]] = seen.get(record["label"], -1) + 1
            record["subject_id"] = f"{record['label']}-{place_in_class % patients}"
        assert min(seen.values()) + 1 >= 3
        path.write_text(json.dumps(listed))
    files = Place(place.root, place.bundle, data).files("patients", dict.fromkeys(SITES, ALLOWED | {"min_count": 3}))
    sites, _ = ask(Loopback(files), prepared, tmp_path, sites=list(SITES[:2]))
    assert sites[SITES[0]].suppressed == SCORES
    assert sites[SITES[1]].suppressed == []
    assert sites[SITES[1]].scores["auc"] is not None


def test_a_site_refuses_by_default_and_scores_that_its_file_does_not_declare(
    place: Place, prepared: EvaluatedWeights, tmp_path: Path
) -> None:
    floor = {"unit": "sample", "adjacency": "replace", "epsilon": 4.0, "delta": 1e-5}
    own = {SITES[1]: {"evaluation_scores": ["auc"]}, SITES[2]: ALLOWED | {"privacy": floor}}
    files = place.files("refuses", own)
    with refused(MedflError, "no_scores") as caught:
        ask(Loopback(files), prepared, tmp_path)
    missing = caught.value.fields["missing"]
    assert "allows (evaluation_scores): none" in missing[SITES[0]]
    assert "accuracy, balanced_accuracy of a model" in missing[SITES[1]]
    assert "requires at least: unit sample" in missing[SITES[2]]
    assert all(entry.outcome == "refused" for site in SITES for entry in read_entries(audit_path(files[site])) if entry)
    sites, _ = ask(Loopback(files), prepared, tmp_path, scores=["auc"])
    assert sites.keys() == {SITES[1]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"names": ["benign", "malignant", "normal"]}, "classes or outputs: the model has benign, malignant, normal, "),
        ({"values": FACTS | {"num_classes": 4}, "names": []}, "classes or outputs: the model has 4, the site has 3"),
        ({"values": FACTS | {"size": 16}}, r"images of the shape \(channels, edges\): the model has 3, 16, 16"),
        ({"network": "vast"}, "names the network 'vast'; the bundle has"),
        ({"bundle_hash": "0" * 64}, "bundle_hash: the request has 000"),
        ({"bundle": "another"}, "wants the bundle 'another'"),
        ({"medfl": "0.0.1"}, r"version of medfl: the request has 0\.0\.1"),
        ({"sites": ["site-02"]}, "The request is for site-02; this site is 'site-01'"),
        ({"values": FACTS | {"rounds": 3}}, "The request sets 'rounds'"),
        ({"values": FACTS | {"output_dir": "/"}}, "The request sets 'output_dir'"),
        ({"values": FACTS | {"mean": "$__import__('os')"}}, "mean"),
        ({"scores": ["perplexity"]}, "scores perplexity, which the objective 'multiclass' does not have"),
        ({"scores": ["auc", "auc"]}, "each score once"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_a_site_refuses(place: Place, prepared: EvaluatedWeights, changes: dict[str, Any], why: str) -> None:
    own = {SITE: {"evaluation_scores": [*SCORES, "perplexity"]}}
    loop = Loopback(place.files("request", own))
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(reply(loop, prepared.request.to_json() | changes))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda model: model.pop(next(iter(model))), "lacks tensor"),
        (lambda model: model.update({"model/extra": torch.zeros(1)}), "unknown tensor 'model/extra'"),
        (lambda model: model.update({name: model[name][:1] for name in [_last(model)]}), "was refused: expected"),
        (lambda model: model.update({name: model[name] * float("nan") for name in [_last(model)]}), "finite numbers"),
    ],
)
def test_a_model_that_does_not_fit_the_network_is_refused_by_the_name_of_its_tensor(
    place: Place, prepared: EvaluatedWeights, change: Callable[[dict[str, torch.Tensor]], Any], why: str
) -> None:
    loop = Loopback(place.files("network", {SITE: ALLOWED}))
    model = {f"model/{name}": tensor for name, tensor in st.load(prepared.content).items()}
    change(model)
    service = loop.services[SITE]
    service.answer(pack(Message(KIND, {}, prepared.request.to_json())))
    answered = unpack(service.answer(pack(Message(MODEL_KIND, model, {}))), REPLY_LIMITS)
    assert why in answered.meta["refused"]
    again = unpack(service.answer(pack(Message(MODEL_KIND, model, {}))), REPLY_LIMITS)
    assert again.meta["refused"], "a refused model ends the evaluation"


def _last(model: dict[str, torch.Tensor]) -> str:
    """Name of the weights of the last layer."""
    return [name for name, tensor in model.items() if tensor.dim() == 2][-1]


def test_a_model_without_an_accepted_request_is_refused_and_not_even_fetched(
    place: Place, prepared: EvaluatedWeights
) -> None:
    service = Loopback(place.files("order", {SITE: ALLOWED})).services[SITE]
    blob = pack(Message(MODEL_KIND, {"model/x": torch.zeros(3)}, {}))
    assert unpack(service.answer(blob), REPLY_LIMITS).meta["refused"]
    assert service.refuse_by_size(2 * 2**20) is not None
    service.answer(pack(Message(KIND, {}, prepared.request.to_json())))
    assert service.refuse_by_size(2 * 2**20) is None


def test_the_server_accepts_nothing_but_the_requested_scores(
    place: Place, prepared: EvaluatedWeights, tmp_path: Path
) -> None:
    score = {"value": 0.5, "low": 0.4, "high": 0.6}
    lies: dict[str, dict[str, Any]] = {
        SITES[0]: {"scores": {**dict.fromkeys(SCORES), "f1": score}, "min_count": 1},
        SITES[1]: {"scores": dict.fromkeys(SCORES), "min_count": 1, "predictions": [0.1, 0.9]},
        SITES[2]: {"scores": dict.fromkeys(SCORES, score), "suppressed": ["auc"], "min_count": 1},
    }

    def lie(site: str, blob: bytes) -> bytes:
        is_model = unpack(blob, REPLY_LIMITS).kind == MODEL_KIND
        return pack(Message(MODEL_KIND, {}, {"refused": None} | lies[site])) if is_model else blob

    files = place.files("lies", dict.fromkeys(SITES, ALLOWED))
    with refused(MedflError, "no_scores") as caught:
        ask(Loopback(files, tamper_answer=lie), prepared, tmp_path)
    missing = caught.value.fields["missing"]
    assert "expected exactly the requested scores" in missing[SITES[0]]
    assert "invalid fields: predictions" in missing[SITES[1]]
    assert "no value for a suppressed score" in missing[SITES[2]]


def test_its_job_is_known_from_the_others_and_holds_the_weights(
    place: Place, model: Path, prepared: EvaluatedWeights, tmp_path: Path
) -> None:
    job = write_job(prepared.request, tmp_path, prepared.content)
    server = json.loads((job / "app_server" / "config" / "config_fed_server.json").read_text())
    content = server["workflows"][0]["args"]["offer"]
    assert EvaluationRequest.from_meta(content) == prepared.request
    assert is_evaluation_request(content)
    assert not is_statistics_request(content)
    assert not is_evaluation_request(place.offer().to_json())
    assert prepared.request.bundle_hash == bundle_hash(place.bundle)
    assert prepared.request.values["num_classes"] == FACTS["num_classes"]
    sent = st.load((job / "app_server" / "config" / WEIGHTS_FILE_NAME).read_bytes())
    kept = torch.load(model / "models" / "model.pt", weights_only=True)
    assert sent.keys() == kept.keys()
    assert all(torch.equal(sent[name], kept[name]) for name in kept)
    assert not (job / "app_site" / "config" / WEIGHTS_FILE_NAME).exists()


def test_an_unknown_score_is_refused_before_anything_is_sent(place: Place, model: Path) -> None:
    with refused(SettingsError, "unknown_choice"):
        read_evaluation(EvaluationPlan(str(model), place.bundle, ["aucc"]), "external")
    with refused(RefusedError, "invalid_setting"):
        read_evaluation(EvaluationPlan(str(model), place.bundle, []), "external")


def test_the_command_writes_the_scores_of_each_site(
    place: Place, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user runs it; the connection hands the job to sites in this process."""
    own = {SITES[0]: ALLOWED, SITES[1]: ALLOWED | {"min_count": 10_000}, SITES[2]: {}}
    loop = Loopback(place.files("command", own))

    class Connected:
        def sites_within(self, wanted: list[str], seconds: float) -> list[str]:
            return list(SITES)

        def submit(self, job: Path) -> str:
            config = job / "app_server" / "config"
            offer = json.loads((config / "config_fed_server.json").read_text())["workflows"][0]["args"]["offer"]
            request_evaluation(EvaluationRequest.from_meta(offer), config, loop, tmp_path / "result", RunStatus())
            return "job"

        def fetch(self, job: str, folder: Path) -> Path:
            return tmp_path / "result"

        def close(self) -> None:
            """Close nothing."""

    monkeypatch.setattr(researcher_session, "read_admin_kit", lambda kit: {})
    monkeypatch.setattr(researcher_session, "follow", lambda connection, job, out: FollowedJob(job, COMPLETED))
    fetch = researcher_evaluation.fetch_evaluation
    monkeypatch.setattr(
        researcher_evaluation, "fetch_evaluation", lambda plan, kit, out: fetch(plan, kit, out, lambda kit: Connected())
    )
    out = tmp_path / "external"
    words = ["evaluate", str(model), "--kit", str(tmp_path), "--bundle", str(place.bundle), "--out", str(out)]
    done = CliRunner().invoke(federate.app, [*words, "--scores", "auc,accuracy"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    evaluation = FederatedEvaluation.read(out / FederatedEvaluation.NAME)
    assert (evaluation.relation.kind, evaluation.relation.reason) == ("unchecked", "other_machine")
    assert (evaluation.model, evaluation.bundle, evaluation.requested) == ("global", BUNDLE, ("auc", "accuracy"))
    assert evaluation.sites.keys() == set(SITES[:2])
    assert evaluation.missing.keys() == {SITES[2]}
    rows = [line.split(",") for line in (out / "scores.csv").read_text().splitlines()[1:]]
    assert [(row[0], row[1], row[5], row[8]) for row in rows] == [
        (site, name, state, "unchecked")
        for site, state in zip(SITES, ("disclosed", "suppressed"), strict=False)
        for name in ("auc", "accuracy")
    ]
    assert rows[2][2:5] == ["", "", ""]
    disclosed, suppressed = read_evaluations(read_run(model.parent))
    score = evaluation.sites[SITES[0]].scores["auc"]
    assert score is not None
    assert disclosed.record.scores["auc"] == ScoreEstimate(value=score.value, low=score.low, high=score.high)
    assert set(suppressed.record.scores.values()) == {None}
    assert {stored.record.relation.kind for stored in (disclosed, suppressed)} == {"unchecked"}
    (card,) = [path for path in write_cards(model.parent, load_plugins()) if path.parent == model]
    assert "No external validation could be verified" in card.read_text()
    assert f"{score.low:.3f} to {score.high:.3f}" in card.read_text()
    assert f"{SITES[0]}: auc " in done.output
    assert f"{SITES[1]}: suppressed auc, accuracy" in done.output
