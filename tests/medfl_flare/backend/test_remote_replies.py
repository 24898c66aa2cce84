"""The server checks the sites' replies: a site with an invalid reply is unavailable, and no other site is affected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import SITES, Loopback, Place
from remote_cases import (
    LIMITS,
    Change,
    flipped,
    local_outcome,
    mini_place,
    offered,
    on,
    one_less,
    opened_once,
    other_shape,
    outcome_without,
    renamed,
    serve,
    set_meta,
    set_tensor,
    without_last_site,
)

from medfl.engine.filters import CODEC_KEY
from medfl.records.summary import Summary
from medfl.testing.cohort import scores
from medfl_flare import server as server_run
from medfl_flare.backend.messages import Message, unpack
from medfl_flare.backend.run_progress import RunStatus


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with opened_once():
        yield mini_place(tmp_path_factory.mktemp("messages"))


def set_answer(**values: Any) -> Change:
    def change(message: Message) -> None:
        message.meta["answer"] |= values

    return change


def set_reply_meta(**values: Any) -> Change:
    def change(message: Message) -> None:
        message.meta["answer"]["meta"] |= values

    return change


def new_name(message: Message) -> None:
    message.tensors["model/another"] = torch.ones(2)


def undeclared_name(message: Message) -> None:
    message.tensors["images/0"] = torch.ones(2)


def empty(message: Message) -> None:
    message.tensors.clear()


def row(*changes: tuple[int, Any]) -> list[Any]:
    values: list[Any] = [1, "site-03", "personal", "train", "trained", "loss", 0.5]
    for index, value in changes:
        values[index] = value
    return values


FROM_SITE: dict[str, Change] = {
    "another kind": renamed,
    "undeclared name": undeclared_name,
    "other shape": set_tensor(other_shape, "model/"),
    "not finite": set_tensor(lambda t: torch.full_like(t, torch.nan), "model/"),
    "undeclared meta": set_reply_meta(patient="x"),
    "negative size": set_reply_meta(size=-4),
    "size as text": set_reply_meta(size="4"),
    "size as nothing": set_reply_meta(size=None),
    "size beyond 64 bits": set_reply_meta(size=10**30),
    "a tensor missing": one_less,
    "an empty reply": empty,
    "rows of another site": set_answer(rows=[row((1, "site-01"))]),
    "a row of other moment": set_answer(rows=[row((4, "never"))]),
    "a row with a line break": set_answer(rows=[row((5, "loss\n1,site-01"))]),
    "rows as text": set_answer(rows="rows"),
    "an answer as list": set_meta(answer=[1]),
    "a codec": set_reply_meta(**{CODEC_KEY: {"bits": 7, "tensors": {}}}),
}


HARMFUL: dict[str, Change] = {
    "size as list": set_reply_meta(size=[4]),
    "one tensor more": new_name,
    "an absurd cost": set_answer(rows=[row((6, 10**400))]),
    "an absurd score": set_meta(evaluation=[[1, "site-03", "global", "val", "aggregated", "accuracy", 10**400]]),
}


@pytest.fixture(scope="module")
def alone(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of one round on one machine without site-03."""
    return without_last_site(place, tmp_path_factory.mktemp("alone"))


def once(change: Change) -> Change:
    """Change only the reply to a request; all other replies stay honest."""

    def first(message: Message) -> Message | None:
        return change(message) if message.meta["answer"] else None

    return first


def test_changed_replies_make_their_site_missing_and_harm_no_one(place: Place, tmp_path: Path) -> None:
    """Apply another change in every other round."""
    rounds = 2 * len(FROM_SITE)  # a site that fails twice in a row is left out
    files = place.files("changed", {name: {"max_rounds": 99} for name in ("server", *SITES)})
    offer = offered(place, min_replies=2, rounds=rounds, evaluate_every=rounds)
    waiting = [change for tamper in FROM_SITE.values() for change in (tamper, lambda message: None)]
    reasons, progress = [], RunStatus()

    def change(message: Message) -> Message | None:
        return waiting.pop(0)(message) if message.meta["answer"] else None

    def look(site: str, blob: bytes) -> bytes:
        message = unpack(blob, LIMITS)
        if site == "site-03" and message.kind == "step" and message.meta["evaluate"] is None:
            reasons.append(progress.missing.get(site, ""))
        return blob

    loopback = Loopback(files, tamper=look, tamper_answer=on("site-03", "step", change))
    folder = server_run.serve(offer, files["server"], loopback, progress)
    for service in loopback.services.values():
        service.close()
    assert not waiting
    assert len(reasons) == rounds
    assert [bool(reason) for reason in reasons] == [False, *[True, False] * (len(FROM_SITE) - 1), True]
    place.local(offer, files, tmp_path / "local", unavailable=lambda site, step: site == "site-03" and step % 2 == 1)
    expected = local_outcome(tmp_path / "local")
    states = outcome_without("site-03", folder, files)
    assert states == {name: expected[name] for name in states}
    assert not any(line.startswith("1,site-03,") for line in scores(folder))


@pytest.mark.parametrize("what", HARMFUL)
def test_a_reply_that_is_not_whole_makes_its_site_missing_and_harms_no_one(
    place: Place, alone: dict[str, Any], what: str
) -> None:
    check_harmless(place, alone, what, once(HARMFUL[what]))


def check_harmless(place: Place, alone: dict[str, Any], what: str, change: Change) -> None:
    files = place.files(what.replace(" ", "-"))
    reasons: list[dict[str, str]] = []
    loopback = Loopback(files, tamper_answer=on("site-03", "step", change))
    progress = RunStatus()

    def look(site: str, blob: bytes) -> bytes:
        reasons.append(dict(progress.missing))
        return blob

    loopback.tamper = look
    folder = server_run.serve(offered(place, min_replies=2, rounds=1), files["server"], loopback, progress)
    for service in loopback.services.values():
        service.close()
    assert progress.state == "finished"
    assert outcome_without("site-03", folder, files) == alone
    assert any(reason.get("site-03") for reason in reasons)
    assert not any(",site-03," in line and "trained" in line for line in scores(folder))


def test_flipped_bits_in_a_reply_make_its_site_missing(place: Place, alone: dict[str, Any]) -> None:
    def flip(site: str, blob: bytes) -> bytes:
        message = unpack(blob, LIMITS)
        requested = message.kind == "step" and message.meta["answer"]
        return flipped(blob, len(blob) - 9) if site == "site-03" and requested else blob

    files = place.files("flipped")
    folder, progress, _ = serve(files, offered(place, min_replies=2, rounds=1), tamper_answer=flip)
    assert progress.state == "finished"
    assert outcome_without("site-03", folder, files) == alone


def test_a_reply_above_the_runs_norm_bound_is_refused_at_the_server(place: Place) -> None:
    def larger(message: Message) -> None:
        message.tensors = {n: t * 1e6 if t.is_floating_point() else t for n, t in message.tensors.items()}

    files = place.files("bound")
    offer = offered(place, min_replies=3, rounds=1, norm_bound=1000.0)
    _, progress, _ = serve(files, offer, tamper_answer=on("site-03", "step", once(larger)))
    assert progress.state == "incomplete"


def test_an_oversized_reply_is_refused_before_it_is_read(place: Place, alone: dict[str, Any]) -> None:
    files = place.files("oversized", {"server": {"max_message_mb": 1}})

    def larger(message: Message) -> Message | None:
        return Message("step", {"model/x": torch.zeros(10**6)}, message.meta) if message.meta["answer"] else None

    folder, progress, _ = serve(
        files, offered(place, min_replies=2, rounds=1), tamper_answer=on("site-03", "step", larger)
    )
    assert progress.state == "finished"
    assert outcome_without("site-03", folder, files) == alone


FACTS: dict[str, dict[str, Any]] = {
    "undeclared": {"facts": {"patients": 3}},
    "negative": {"facts": {"size": -3}},
    "no facts": {"facts": None},
    "another number of classes": {"facts": {"label_counts": [3]}},
    "label counts as number": {"facts": {"label_counts": 7}},
    "newest as text": {"newest": "3"},
    "data as list": {"data": []},
}
"""Invalid information of site-03 at the start of a run."""


@pytest.mark.parametrize("counts", [[3], 7])
def test_label_counts_of_another_form_make_their_site_missing(
    place: Place, counts: Any, request: pytest.FixtureRequest
) -> None:
    files = place.files(request.node.callspec.id)
    offer = offered(place, min_replies=2, rounds=1, method="feddisco", disclose=["size", "label_counts"])
    _, progress, _ = serve(files, offer, tamper_answer=on("site-03", "step", once(set_reply_meta(label_counts=counts))))
    assert progress.state == "finished"


@pytest.mark.parametrize("what", FACTS)
def test_facts_that_can_not_be_make_their_site_missing(place: Place, what: str) -> None:
    files = place.files(f"facts-{what}".replace(" ", "-"))
    offer = offered(
        place, min_replies=2, rounds=1, method="isfl", method_args={"probe": 3}, disclose=["size", "label_counts"]
    )
    progress = RunStatus()

    def stop(message: Message) -> None:
        raise StopIteration

    loopback = Loopback(
        files, tamper=on("site-01", "step", stop), tamper_answer=on("site-03", "begin", set_meta(**FACTS[what]))
    )
    with pytest.raises(StopIteration):
        server_run.serve(offer, files["server"], loopback, progress)
    assert list(progress.missing) == ["site-03"]


def test_a_privacy_account_of_another_form_leaves_its_site_out_with_the_reason(place: Place) -> None:
    def change(message: Message) -> None:
        message.meta["privacy"] |= {"releases": -1}

    files = place.files("account")
    private = {"privacy": {"unit": "site", "epsilon": 4.0, "clip": 1.0}, "norm_sync": "params", "disclose": []}
    offer = offered(place, rounds=1, **private)
    folder, progress, _ = serve(files, offer, tamper_answer=on("site-03", "install", change))
    assert progress.state == "finished"
    summary = Summary.read(folder / "summary.json")
    assert sorted(summary.privacy) == ["site-01", "site-02"]
    assert list(progress.missing) == list(summary.unavailable_reasons) == ["site-03"]
    assert "privacy account of site 'site-03' was refused in its field 'releases'" in progress.missing["site-03"]


def test_names_of_classes_are_no_code_in_the_bundle_that_the_server_writes(place: Place) -> None:
    def code(message: Message) -> None:
        message.meta["data"] |= {"classes": ["$1/0", "@task", "%x"], "name": "$1/0"}  # from every site

    files = place.files("code")
    loopback = Loopback(files, tamper_answer=lambda site, blob: on(site, "begin", code)(site, blob))
    folder, progress = loopback.serve(offered(place, rounds=1))
    written = folder / "global" / "configs" / "metadata.json"
    assert progress.state == "incomplete" or not any(
        text[:1] in "$@%" for text in texts(json.loads(written.read_text()))
    )


def texts(value: Any) -> list[str]:
    """Return all nonempty strings in a JSON value."""
    if isinstance(value, dict | list):
        return [text for inner in (value.values() if isinstance(value, dict) else value) for text in texts(inner)]
    return [value] if isinstance(value, str) and value else []


def test_the_first_site_alone_does_not_make_the_others_leave(place: Place) -> None:
    def other(message: Message) -> None:
        message.meta["data"]["classes"] = ["x", "y", "z"]

    files = place.files("classes")
    _, progress, _ = serve(files, offered(place, min_replies=2, rounds=1), tamper_answer=on("site-01", "begin", other))
    assert progress.state == "finished"
    assert list(progress.missing) == ["site-01"]
