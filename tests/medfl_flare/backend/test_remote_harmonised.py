"""Features harmonised between machines: the bits of one machine, stops, absent sites, and lies of either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import SITES, Loopback, Place, make_place
from refusals import refused
from remote_cases import (
    Change,
    Files,
    Photographed,
    changed,
    local_outcome,
    offered,
    on,
    opened_once,
    outcome,
    restore,
    serve,
    set_meta,
    silent,
    talk,
)

from medfl.data.harmonisation.combat import FeatureSums, PooledMoments, pool_sums
from medfl.data.sites import load_sites
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.simulation import Callbacks
from medfl.engine.runs.site_bundles import export
from medfl.errors import MedflError, RefusedError, SettingsError, StoreError
from medfl.records.run_file import RunFile
from medfl.types import Meta
from medfl.utils import wire
from medfl_flare.backend.feature_messages import (
    MOMENTS,
    SUMS,
    moments_to_tensors,
    read_moments,
    read_sums,
    sums_to_reply,
)
from medfl_flare.backend.messages import Limits, Message, pack, unpack
from medfl_flare.offered_bundle import open_offer
from medfl_flare.records.audit import read_entries
from medfl_flare.records.offer import Offer
from medfl_flare.server import MOMENTS_FILE
from medfl_flare.sites.audit_log import audit_path
from medfl_flare.sites.site_service import SiteService

LAST = SITES[-1]


@pytest.fixture(scope="module", autouse=True)
def once() -> Any:
    with opened_once():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("harmonised"))


def harmonised(place: Place, **settings: Any) -> Offer:
    return offered(place, **({"rounds": 2, "train_part": "head", "harmonise_features": "combat"} | settings))


def moments_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the moments in the state of a run at the server."""
    return wire.decode((folder / "state" / "server" / MOMENTS_FILE).read_bytes())[0]


def kinds(site: str, kept: list[str]) -> Callable[[str, bytes], bytes]:
    """Note the kind of each message to a site."""

    def note(name: str, blob: bytes) -> bytes:
        if name == site:
            kept.append(unpack(blob, Limits()).kind)
        return blob

    return note


# ---- the bits of one machine


@pytest.fixture(scope="module")
def unbroken(place: Place) -> tuple[Path, Files]:
    """Return the folder and the files of an undisturbed run with a personal model at each site."""
    files = place.files("unbroken")
    folder, progress, _ = serve(files, harmonised(place, method="ditto"))
    assert (progress.state, progress.missing) == ("finished", {})
    return folder, files


def test_states_scores_and_exported_bundles_equal_those_of_one_machine(
    place: Place, tmp_path: Path, unbroken: tuple[Path, Files]
) -> None:
    folder, files = unbroken
    offer = harmonised(place, method="ditto")
    built = open_offer(offer, files["server"]).built
    loaded = load_sites(place.data, built.task.objective, built.mean, built.std)
    facts = {name: site.test_metadata for name, site in loaded.items()}
    about = SiteExport(bundle_root=place.bundle, values=built.site_values, facts=facts, objective=built.task.objective)
    place.local(offer, files, tmp_path, Callbacks(export=partial(export, site_export=about)))
    assert outcome(folder, files) == local_outcome(tmp_path)
    maps = []
    for site in SITES:
        there, here = files[site].state / "runs" / "one" / "bundle", tmp_path / "sites" / site
        ours, theirs = (torch.load(path / "models" / "model.pt", weights_only=True) for path in (here, there))
        assert wire.tensors_equal(ours, theirs)
        assert (there / "predictions.csv").read_bytes() == (here / "predictions.csv").read_bytes()
        maps.append(theirs["head.weight"])
    assert not torch.allclose(maps[0], maps[1], rtol=0.01)


def test_the_records_of_server_and_sites_name_the_harmonisation(unbroken: tuple[Path, Files]) -> None:
    folder, files = unbroken
    text = RunFile.read(folder / "run.json").provenance.data.harmonisation
    assert "ComBat" in text
    assert text in (folder / "global" / "docs" / "README.md").read_text()
    for site in SITES:
        own = files[site].state / "runs" / "one"
        assert RunFile.read(own / "run.json").provenance.data.harmonisation == text
        assert text in (own / "bundle" / "docs" / "README.md").read_text()


def test_the_audit_record_lists_the_sums(unbroken: tuple[Path, Files]) -> None:
    entries = read_entries(audit_path(unbroken[1][LAST]))
    (entry,) = [entry for entry in entries if entry is not None and entry.kind == SUMS]
    assert (entry.outcome, entry.tells, entry.names) == ("answered", ("count",), (f"{SUMS}/squares", f"{SUMS}/total"))
    assert (entry.leaves[SUMS].tensors, entry.leaves[SUMS].values) == (2, 2 * 8)


@pytest.mark.slow
def test_a_run_stopped_at_any_point_ends_in_the_bits_of_the_unbroken_one(place: Place, tmp_path: Path) -> None:
    files, offer = place.files("stopped"), harmonised(place, rounds=1)
    loopback = Photographed(files)
    loopback.watch(tmp_path)
    folder, _ = loopback.serve(offer)
    expected, moments = outcome(folder, files), moments_of(folder)
    assert len(loopback.pictures) > 6
    for picture in loopback.pictures.values():
        restore(picture, files)
        folder, progress, _ = serve(files, offer)
        assert (progress.state, progress.missing) == ("finished", {})
        assert outcome(folder, files) == expected, picture.name
        assert wire.tensors_equal(moments_of(folder), moments)


def test_the_moments_delivered_twice_change_nothing(place: Place, unbroken: tuple[Path, Files]) -> None:
    files = place.files("twice")
    loopback = Loopback(files)

    def twice(site: str, blob: bytes) -> bytes:
        if unpack(blob, Limits()).kind in (SUMS, MOMENTS):
            loopback.services[site].answer(blob)
        return blob

    loopback.tamper = twice
    folder, _ = loopback.serve(harmonised(place, method="ditto"))
    assert outcome(folder, files) == outcome(*unbroken)


# ---- absent sites


def test_a_continued_run_keeps_its_moments_and_requests_no_sums(place: Place, tmp_path: Path) -> None:
    files, offer, requests = place.files("continued"), harmonised(place), list[str]()
    folder, progress, _ = serve(files, offer, tamper_answer=silent("site-02", "step"))
    assert (progress.state, list(progress.missing)) == ("incomplete", ["site-02"])
    moments = moments_of(folder)
    folder, progress, _ = serve(files, offer, tamper=kinds("site-02", requests))
    assert (progress.state, progress.missing) == ("finished", {})
    assert requests[:4] == ["hello", "begin", MOMENTS, "step"]
    assert wire.tensors_equal(moments_of(folder), moments)
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")


@pytest.mark.parametrize("since", ["hello", "begin", SUMS])
def test_without_the_sums_of_a_needed_site_the_run_does_not_begin(place: Place, tmp_path: Path, since: str) -> None:
    files, offer = place.files(f"absent-{since}"), harmonised(place)
    with refused(MedflError, "missing_feature_sums", expected=3, found=2, sites=["site-02"]) as caught:
        serve(files, offer, tamper_answer=silent("site-02", since))
    assert "site-02: did not reply in time" in str(caught.value)
    assert not list(files["server"].state.rglob(MOMENTS_FILE))
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")


def test_a_site_that_joins_later_sends_no_sums_and_gets_the_moments_of_the_others(place: Place) -> None:
    files, replies, requests = place.files("joins"), dict[str, FeatureSums](), list[str]()

    def keep(site: str, blob: bytes) -> bytes:
        message = unpack(blob, Limits())
        if message.kind == SUMS:
            total, squares = (message.tensors[f"{SUMS}/{name}"] for name in ("total", "squares"))
            replies[site] = FeatureSums(message.meta["count"], total, squares)
        return blob

    offer = harmonised(place, min_replies=2)
    _, progress, _ = serve(files, harmonised(place, min_replies=2, rounds=1), tamper=silent(LAST), tamper_answer=keep)
    assert (progress.state, list(progress.missing)) == ("finished", [LAST])
    folder, progress, _ = serve(files, offer, tamper=kinds(LAST, requests), tamper_answer=keep)
    assert (progress.state, progress.missing) == ("finished", {})
    assert (sorted(replies), SUMS in requests, MOMENTS in requests) == (list(SITES[:2]), False, True)
    pooled = pool_sums([replies[site] for site in SITES[:2]])
    assert wire.tensors_equal(moments_of(folder), moments_to_tensors(pooled))
    assert (files[LAST].state / "runs" / "one" / "bundle" / "models" / "model.pt").is_file()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_whose_moments_are_damaged_or_lost_is_not_continued(place: Place, is_lost: bool) -> None:
    files, requests = place.files(f"damaged-{is_lost}"), list[str]()
    folder, _, _ = serve(files, harmonised(place, rounds=1))
    path = folder / "state" / "server" / MOMENTS_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    if is_lost:
        path.unlink()
    with refused(StoreError, "unreadable_file", path=str(path)):
        serve(files, harmonised(place), tamper=kinds(LAST, requests))
    assert requests == ["hello", "begin"]


# ---- refusals


@pytest.mark.parametrize("disclosed", [["size"], ["feature_sums"]])
def test_a_site_whose_file_does_not_disclose_sums_sends_none(place: Place, disclosed: list[str]) -> None:
    files = place.files(f"closed-{disclosed[0]}", {LAST: {"disclose": disclosed}})
    _, progress, _ = serve(files, harmonised(place, rounds=1, min_replies=2))
    assert (progress.state, list(progress.missing)) == ("finished", [LAST])
    assert "the sum and the sum of squared deviations" in progress.missing[LAST]
    entries = read_entries(audit_path(files[LAST]))
    assert [(entry.kind, entry.outcome) for entry in entries if entry is not None] == [("hello", "refused")]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"privacy": {"unit": "site", "epsilon": 4.0, "clip": 1.0}}, "incompatible_settings"),
        ({"secure_aggregation": {"threshold": 2}}, "incompatible_settings"),
        ({"disclose": []}, "incompatible_settings"),
        ({"method": "local", "networks_by_site": {LAST: "mini6"}}, "unlike_networks"),
    ],
    ids=["privacy", "secure aggregation", "size", "networks"],
)
def test_a_run_that_can_not_harmonise_is_refused_at_the_server(
    place: Place, settings: dict[str, Any], code: str
) -> None:
    requests: list[str] = []
    with refused(SettingsError, code):
        serve(place.files("excluded"), harmonised(place, **settings), tamper=kinds(LAST, requests))
    assert requests == ["hello"]


def test_a_site_begins_no_run_with_harmonisation_and_privacy_whatever_the_server_checks(place: Place) -> None:
    offer = harmonised(place, privacy={"unit": "site", "epsilon": 4.0, "clip": 1.0}, norm_sync="params")
    service = SiteService(place.files("private")["site-01"], lambda to, blob, patience: False)
    messages = Message("hello", {}, offer.to_json()), Message("begin", {}, {"networks": {}}), Message(SUMS)
    reasons = [unpack(service.answer(pack(message)), Limits()).meta["refused"] for message in messages]
    service.close()
    assert reasons[0] is None
    assert "a problem with its settings" in reasons[1]
    assert "expected 'begin'" in reasons[2]


def test_a_site_with_few_images_sends_no_sums(place: Place, tmp_path: Path) -> None:
    small = make_place(tmp_path, images=12)
    files = place.files("few", {LAST: {"entry": {"data": str(small.data / LAST)}}})
    sent: list[str] = []
    _, progress, _ = serve(files, harmonised(place, rounds=1, min_replies=2), tamper=kinds(LAST, sent))
    assert (progress.state, list(progress.missing)) == ("finished", [LAST])
    assert sent == ["hello", "begin"]


def test_a_site_does_nothing_in_a_run_before_it_has_the_moments(place: Place) -> None:
    requests, _ = talk(place, "order", rounds=1, train_part="head", harmonise_features="combat")
    service = SiteService(place.files("order-again")["site-01"], lambda to, blob, patience: False)
    answers = {}
    for blob in requests:
        if (kind := unpack(blob, Limits()).kind) != MOMENTS:
            answers[kind] = unpack(service.answer(blob), Limits())
    service.close()
    assert not answers[SUMS].meta["refused"]
    for kind in ("step", "install"):
        assert f"expected '{MOMENTS}' before '{kind}'" in answers[kind].meta["refused"]
        assert not answers[kind].tensors


@pytest.mark.parametrize("kind", [SUMS, MOMENTS])
def test_a_server_gets_no_sums_in_a_run_without_harmonisation(place: Place, kind: str) -> None:
    requests, _ = talk(place, f"plain-{kind}", rounds=1, train_part="head")
    service = SiteService(place.files(f"plain-again-{kind}")["site-01"], lambda to, blob, patience: False)
    for blob in requests[:2]:
        service.answer(blob)
    answer = unpack(service.answer(pack(Message(kind))), Limits())
    service.close()
    assert "expected a message of kind" in answer.meta["refused"]
    assert not answer.tensors


# ---- lies

SUM = FeatureSums(12, torch.tensor([6.0, -3.0], dtype=torch.float64), torch.tensor([4.0, 0.0], dtype=torch.float64))
MOMENT = PooledMoments(SUM.mean, SUM.squares / 12, torch.tensor([True, False]))


def set_entry(name: str, value: float) -> Callable[[dict[str, torch.Tensor], Meta], None]:
    def change(tensors: dict[str, torch.Tensor], meta: Meta) -> None:
        tensors[name] = tensors[name].clone()
        tensors[name][0] = value

    return change


def set_count(count: object) -> Callable[[dict[str, torch.Tensor], Meta], None]:
    return lambda tensors, meta: meta.update(count=count)


def reshape(name: str, form: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor], Meta], None]:
    return lambda tensors, meta: tensors.update({name: form(tensors[name])})


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor])


SUM_LIES = {
    "another number of features": (reshape(f"{SUMS}/total", longer), "wrong_shape"),
    "a matrix": (reshape(f"{SUMS}/squares", lambda tensor: tensor[None]), "wrong_shape"),
    "float32": (reshape(f"{SUMS}/total", torch.Tensor.float), "wrong_shape"),
    "NaN": (set_entry(f"{SUMS}/total", float("nan")), "not_finite"),
    "infinity": (set_entry(f"{SUMS}/squares", float("inf")), "not_finite"),
    "negative squares": (set_entry(f"{SUMS}/squares", -1e-9), "impossible_moments"),
    "sums whose pool has no end": (set_entry(f"{SUMS}/total", 1e300), "norm_too_large"),
    "a sum above all features": (set_entry(f"{SUMS}/total", 1e45), "impossible_moments"),
    "squares above all features": (set_entry(f"{SUMS}/squares", 1e80), "impossible_moments"),
    "no squares": (lambda tensors, meta: tensors.pop(f"{SUMS}/squares"), "unexpected_tensors"),
    "more tensors": (lambda tensors, meta: tensors.update(images=SUM.total), "unexpected_tensors"),
    "no tensors": (lambda tensors, meta: tensors.clear(), "unexpected_tensors"),
    "another number of images": (set_count(13), "wrong_count"),
    "no number of images": (lambda tensors, meta: meta.clear(), "wrong_count"),
    "a number of another type": (set_count(12.0), "wrong_count"),
    "a truth value": (set_count(True), "wrong_count"),
}


@pytest.mark.parametrize("lie", SUM_LIES)
def test_sums_that_can_not_be_are_refused_with_a_code(lie: str) -> None:
    change, code = SUM_LIES[lie]
    tensors, meta = sums_to_reply(SUM)
    change(tensors, meta)
    with refused(RefusedError, code):
        read_sums(LAST, Message(SUMS, tensors, meta), 2, 12)


@pytest.mark.parametrize("images", [13, None, 9])
def test_sums_of_few_images_or_of_an_undisclosed_number_are_refused(images: int | None) -> None:
    sums = replace(SUM, count=9) if images == 9 else SUM
    with refused(RefusedError, "wrong_count", site=LAST, minimum=10):
        read_sums(LAST, Message(SUMS, *sums_to_reply(sums)), 2, images)
    assert read_sums(LAST, Message(SUMS, *sums_to_reply(SUM)), 2, 12).count == 12


MOMENT_LIES = {
    "another number of features": (reshape(f"{MOMENTS}/mean", longer), "wrong_shape"),
    "numbers in place of truth values": (reshape(f"{MOMENTS}/varies", torch.Tensor.double), "wrong_shape"),
    "NaN": (set_entry(f"{MOMENTS}/variance", float("nan")), "not_finite"),
    "infinity": (set_entry(f"{MOMENTS}/mean", -float("inf")), "not_finite"),
    "a variance of zero": (set_entry(f"{MOMENTS}/variance", 0.0), "not_positive"),
    "a negative variance": (set_entry(f"{MOMENTS}/variance", -1.0), "impossible_moments"),
    "a mean above all features": (set_entry(f"{MOMENTS}/mean", 1e39), "impossible_moments"),
    "no mean": (lambda tensors, meta: tensors.pop(f"{MOMENTS}/mean"), "unexpected_tensors"),
}


@pytest.mark.parametrize("lie", MOMENT_LIES)
def test_moments_that_can_not_be_are_refused_with_a_code(lie: str) -> None:
    change, code = MOMENT_LIES[lie]
    tensors = moments_to_tensors(MOMENT)
    change(tensors, {})
    with refused(RefusedError, code):
        read_moments(tensors, 2, "the server")
    honest = read_moments(moments_to_tensors(MOMENT), 2, "the server")
    assert wire.tensors_equal(moments_to_tensors(honest), moments_to_tensors(MOMENT))


def negate(name: str) -> Change:
    def change(message: Message) -> None:
        message.tensors[name] = -1 - message.tensors[name]

    return change


CHANGES = {"squares": negate(f"{SUMS}/squares"), "count": set_meta(count=10)}


@pytest.mark.parametrize("lie", CHANGES)
def test_a_site_with_impossible_sums_is_missing_and_changes_no_moment(place: Place, lie: str) -> None:
    honest, files = place.files(f"without-{lie}"), place.files(f"liar-{lie}")
    offer = harmonised(place, rounds=1, min_replies=2)
    expected, _, _ = serve(honest, offer, tamper=silent(LAST, SUMS))
    folder, progress, _ = serve(files, offer, tamper_answer=on(LAST, SUMS, CHANGES[lie]))
    assert (progress.state, list(progress.missing)) == ("finished", [LAST])
    assert LAST in progress.missing[LAST]
    assert wire.tensors_equal(moments_of(folder), moments_of(expected))
    assert not (files[LAST].state / "runs" / "one" / "bundle").exists()


def test_a_site_refuses_impossible_moments_and_the_others_continue(place: Place) -> None:
    files = place.files("lying-server")
    offer = harmonised(place, rounds=1, min_replies=2)
    _, progress, _ = serve(files, offer, tamper=on(LAST, MOMENTS, negate(f"{MOMENTS}/variance")))
    assert (progress.state, list(progress.missing)) == ("finished", [LAST])
    assert "the server was refused" in progress.missing[LAST]


def test_a_reply_of_a_site_that_was_not_asked_changes_nothing(place: Place, unbroken: tuple[Path, Files]) -> None:
    class Crowd(Loopback):
        def ask(self, requests: Any, patience: float, take: Any) -> dict[str, str]:
            def take_twice(site: str, blob: bytes) -> None:
                take(site, blob)
                if unpack(blob, Limits()).kind == SUMS:
                    take("site-04", changed(blob, set_meta(count=99)))

            return super().ask(requests, patience, take_twice)

    files = place.files("crowd")
    folder, _ = Crowd(files).serve(harmonised(place, method="ditto"))
    assert outcome(folder, files) == outcome(*unbroken)
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
