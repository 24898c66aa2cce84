"""Images, names of images and the noise secret stay at the site, which exports its own bundle."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import SITES, Loopback, Place, digests
from monai.bundle import ConfigParser
from remote_cases import LIMITS, Files, local_outcome, mini_place, offered, opened_once, outcome, serve

from medfl.data.sites import load_site
from medfl.errors import MedflError, RefusedError
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.testing.cohort import scores
from medfl.utils import wire
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.sites.site_service import SiteService
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards

PRIVACY = {"unit": "site", "epsilon": 4.0, "clip": 1.0}
PRIVATE = {"privacy": PRIVACY, "norm_sync": "params", "rounds": 1, "disclose": []}
SECRETS = {site: bytes([number + 1]) * 32 for number, site in enumerate(SITES)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened_once():
        yield mini_place(tmp_path_factory.mktemp("home"))


def with_secrets(files: Files, secrets: Mapping[str, bytes] = SECRETS) -> Files:
    for site, secret in secrets.items():
        path = files[site].state / "secret"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(secret)
        path.chmod(0o600)
    return files


# ---- privacy


@pytest.fixture(scope="module")
def noised(place: Place) -> tuple[dict[str, Any], list[tuple[str, bytes]], Path]:
    """Run with a privacy setting; return the outcome, all bytes that left the sites, and the folder."""
    files, left = with_secrets(place.files("noised")), []

    def tell(site: str, blob: bytes) -> bytes:
        left.append((site, blob))
        return blob

    folder, _, _ = serve(files, offered(place, **PRIVATE), tamper_answer=tell)
    return outcome(folder, files), left, folder


def test_noise_has_the_bits_of_one_machine_with_the_same_secrets(
    place: Place, tmp_path: Path, noised: tuple[dict[str, Any], Any, Path]
) -> None:
    place.local(offered(place, **PRIVATE), with_secrets(place.files("noised-local")), tmp_path)
    expected = local_outcome(tmp_path)
    assert {name: noised[0][name] for name in ("server", *SITES)} == {
        name: expected[name] for name in ("server", *SITES)
    }


@pytest.mark.parametrize("other", ["site-02", None])
def test_another_secret_of_one_site_is_other_noise(
    place: Place, noised: tuple[dict[str, Any], Any, Path], other: str | None
) -> None:
    secrets = SECRETS | ({other: b"x" * 32} if other else {})
    files = with_secrets(place.files(f"secret-{other}"), secrets)
    folder, _, _ = serve(files, offered(place, **PRIVATE))
    assert (digests(folder, files, "one")["server"] == noised[0]["server"]) == (other is None)


def test_nothing_made_of_training_images_leaves_but_the_noised_update(
    noised: tuple[dict[str, Any], list[tuple[str, bytes]], Path],
) -> None:
    _, left, folder = noised
    costs = ("seconds", "bytes")
    for _, blob in left:
        meta = unpack(blob, LIMITS).meta
        answer = meta.get("answer") or {"rows": [], "meta": {}}
        rows = [row for row in [*(meta.get("evaluation") or []), *answer["rows"]] if row[3] == "train"]
        assert all(any(word in row[5] for word in costs) for row in rows)
        assert "size" not in answer["meta"]
        assert (meta.get("facts") or {}).keys() <= {"trainable", "validates"}
    trained = [line for line in scores(folder) if ",train," in line]
    assert trained
    assert all(any(word in line for word in costs) for line in trained)


def test_the_summary_shows_what_each_site_released(noised: tuple[dict[str, Any], Any, Path]) -> None:
    accounts = json.loads((noised[2] / "summary.json").read_text())["privacy"]
    assert sorted(accounts) == list(SITES)


def test_a_site_with_a_secret_that_others_can_read_does_not_take_part(place: Place) -> None:
    files = with_secrets(place.files("open-secret"))
    (files["site-03"].state / "secret").chmod(0o644)
    _, progress, _ = serve(files, offered(place, rounds=1, min_replies=2))
    assert (progress.state, list(progress.missing)) == ("finished", ["site-03"])
    assert str(place.root) not in progress.missing["site-03"]


@pytest.mark.parametrize("method", ["fedavg", "pfedcdp"])
def test_under_privacy_a_personal_model_is_not_posted(place: Place, method: str) -> None:
    files, posted = place.files(f"posted-{method}"), []

    def look(sender: str, to: str, blob: bytes) -> bytes:
        posted.append(to)
        return blob

    offer = offered(place, method=method, cross_site_evaluation=True, **PRIVATE)
    with contextlib.suppress(MedflError):  # a run that does not begin is as good
        serve(files, offer, tamper_peer_message=look)
    assert posted == []


# ---- what leaves


@pytest.mark.parametrize(
    ("method", "more"),
    [("fedavg", {"cross_site_evaluation": True, "disclose": ["size", "label_counts"]}), ("fedskd", {}), ("fedsdc", {})],
)
def test_no_message_names_a_folder_or_a_subject(place: Place, method: str, more: dict[str, Any]) -> None:
    files, left = place.files(f"names-{method}"), []

    def answer(site: str, blob: bytes) -> bytes:
        left.append(blob)
        return blob

    def peer_message(sender: str, to: str, blob: bytes) -> bytes:
        left.append(blob)
        return blob

    serve(
        files, offered(place, method=method, rounds=1, **more), tamper_answer=answer, tamper_peer_message=peer_message
    )
    check_silent(place, left)


def check_silent(place: Place, left: list[bytes]) -> None:
    private = {str(place.root), place.root.name, "datalist", str(Path.home())}
    for site in SITES:
        private |= subjects(json.loads((place.data / site / "datalist.json").read_text()))
    assert left
    assert len(private) > 20
    for blob in left:
        text = blob[8 : 8 + int.from_bytes(blob[:8], "little")].decode()
        assert not [word for word in private if word in text]


def subjects(value: Any) -> set[str]:
    """Return all subject ids of a data list."""
    if isinstance(value, dict):
        own = {str(value["subject_id"])} if "subject_id" in value else set()
        return own.union(*(subjects(inner) for inner in value.values())) if value else own
    return set().union(*map(subjects, value)) if isinstance(value, list) else set()


def test_what_goes_wrong_at_a_site_is_reported_without_its_text(place: Place) -> None:
    broken = place.root / "broken" / "site-03"
    broken.mkdir(parents=True)
    (broken / "datalist.json").write_text('{"subject_id": "Jane Doe"')
    files, left = place.files("broken-data", {"site-03": {"entry": {"data": str(broken)}}}), []

    def answer(site: str, blob: bytes) -> bytes:
        left.append(blob)
        return blob

    _, progress, _ = serve(files, offered(place, rounds=1, min_replies=2), tamper_answer=answer)
    assert (progress.state, list(progress.missing)) == ("finished", ["site-03"])
    assert "data" in progress.missing["site-03"]
    assert "Jane" not in progress.missing["site-03"]
    check_silent(place, left)


@pytest.mark.parametrize("error", [OSError("/data/jane"), ValueError("Jane Doe"), MemoryError("Jane")])
def test_an_unexpected_error_is_reported_by_its_kind_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    service = SiteService(place.files(f"error-{type(error).__name__}")["site-01"], lambda to, blob, patience: True)

    def fail(offer: object, file: object) -> None:
        raise error

    monkeypatch.setattr("medfl_flare.sites.site_service.open_offer", fail)
    refused = unpack(service.answer(pack(Message("hello", {}, offered(place).to_json()))), LIMITS).meta["refused"]
    assert type(error).__name__ in refused
    assert "ane" not in refused


def test_a_refusal_within_a_step_is_reported_and_the_others_continue(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medfl.toolkit.averaging import Averaging

    execute = Averaging.execute

    def refuse(self: Any, site: Any, request: Any) -> Any:
        if site.name == "site-03":
            raise RefusedError("not_today", "not today")
        return execute(self, site, request)

    monkeypatch.setattr(Averaging, "execute", refuse)
    folder, progress, _ = serve(place.files("today"), offered(place, rounds=1, min_replies=2))
    assert progress.state == "finished"
    _, progress, _ = serve(place.files("not-today"), offered(place, rounds=1, min_replies=3))
    assert progress.state in ("diverged", "incomplete")


# ---- what a site takes home


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_sites_own_bundle_scores_as_the_servers_rows_say(place: Place, method: str) -> None:
    files = place.files(f"bundle-{method}")
    folder, _, _ = serve(files, offered(place, method=method, rounds=1))
    for site in SITES[:1]:
        home = files[site].state / "runs" / "one" / "bundle"
        parser = ConfigParser()
        parser.read_config(home / "configs" / "inference.json")
        parser["bundle_root"] = str(home)
        parser.parse()
        network = parser.get_parsed_content("network_def")
        network.load_state_dict(torch.load(home / "models" / "model.pt", weights_only=True))
        mean, std = (parser.get_parsed_content(name) for name in ("mean", "std"))
        test = load_site(place.data / site, Multiclass(3), mean, std).test
        images, labels = test.batch(torch.arange(len(test)))
        with torch.no_grad():
            logits = network.eval()(images)
        correct = (logits.argmax(1) == labels).float().mean().item()
        values = {tuple(line.split(",")[1:6]): float(line.split(",")[6]) for line in scores(folder)[1:]}
        model = "global" if method == "fedavg" else "personal"
        assert values[site, model, "test", "aggregated", "accuracy"] == pytest.approx(correct, abs=1e-6)
        rows = list(csv.DictReader((home / "predictions.csv").open()))
        assert [int(row["label"]) for row in rows] == labels.tolist()
        expected = logits.softmax(1)
        probabilities = torch.tensor([[float(row[f"p{number}"]) for number in range(3)] for row in rows])
        torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=0)
        assert not (home / "configs" / "federate.json").exists()
        write_cards(files[site].state / "runs" / "one", load_plugins(), data=place.data)
        (checked,) = verify(files[site].state / "runs" / "one")
        assert (checked.problems, checked.files) == ([], len([path for path in home.rglob("*.*") if path.is_file()]))
        card = (home / "README.md").read_text()
        assert f"model of {site}" in card
        assert "| lymphocyte | fewer than 5 |" in card, "five test images in all are the least that is scored"
        assert "| licence | CC0 1.0 |" in card
    assert not list(folder.rglob("predictions.csv"))
    if method == "fedavg":
        write_cards(folder, load_plugins())
        assert [(checked.name, checked.problems) for checked in verify(folder)] == [("global", [])]
    assert (folder / "global").is_dir() == (method == "fedavg")


def test_the_servers_folder_holds_no_model_of_a_circulation(place: Place) -> None:
    files = place.files("circulating")
    folder, _, _ = serve(files, offered(place, method="fedskd", rounds=1))
    for path in folder.rglob("*.safetensors"):
        tensors, _ = wire.decode(path.read_bytes())
        assert not [name for name in tensors if "model/" in name]
    assert not (folder / "global").exists()


def test_a_site_that_is_restarted_within_a_run_is_missing_until_the_run_is_resumed(place: Place) -> None:
    files, offer, restarted = place.files("restarted"), offered(place, min_replies=2), []
    loopback = Loopback(files)

    def restart(site: str, blob: bytes) -> bytes:
        if site == "site-02" and unpack(blob, LIMITS).kind == "step" and not restarted:
            restarted.append(site)
            loopback.services[site].close()
            loopback.services[site] = SiteService(files[site], loopback._poster(site))
        return blob

    loopback.tamper = restart
    _, progress = loopback.serve(offer)
    assert progress.state == "finished"
    assert list(progress.missing) == ["site-02"]
