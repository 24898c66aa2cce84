"""A site checks the server's messages: a changed message is refused and has no effect."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from loopback import Place
from remote_cases import (
    LIMITS,
    Change,
    changed,
    flipped,
    mini_place,
    offered,
    opened_once,
    other_shape,
    refused,
    renamed,
    serve,
    set_meta,
    set_tensor,
    talk,
)

from medfl.utils import wire
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.sites.audit_log import AUDIT_FILE_NAME
from medfl_flare.sites.site_service import SiteService


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with opened_once():
        yield mini_place(tmp_path_factory.mktemp("messages"))


def set_request(**values: Any) -> Change:
    def change(message: Message) -> None:
        message.meta["request"] |= values

    return change


def set_evaluate(**values: Any) -> Change:
    def change(message: Message) -> None:
        message.meta["evaluate"] |= values

    return change


def without_digest(message: Message) -> None:
    name = next(name for name, tensor in message.tensors.items() if tensor.is_floating_point())
    message.tensors[name] += 1


TO_SITE: dict[str, Change] = {
    "another kind": renamed,
    "another digest": set_request(digest="0" * 64),
    "tensors of another digest": without_digest,
    "other shape": set_tensor(other_shape),
    "other dtype": set_tensor(lambda t: t.double()),
    "not finite": set_tensor(lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t.double() / 0),
    "no order": set_meta(request="fit"),
    "no facts": set_request(meta=[]),
    "a round above the run's": set_request(round=3),
    "an absurd round": set_request(round=2**40),
    "round 0": set_request(round=0),
    "a negative step": set_request(step=-1),
    "step 0": set_request(step=0),
    "an absurd step": set_request(step=2**31),
    "a step as text": set_request(step="1"),
    "evaluate as list": set_meta(evaluate=[1]),
    "same of other names": set_meta(evaluate={"step": 1, "round": 1, "same": ["model/none"]}),
    "same as a path": set_meta(evaluate={"step": 1, "round": 1, "same": "../../secret"}),
}


def test_a_site_refuses_changed_messages_and_then_answers_the_honest_ones_as_ever(place: Place) -> None:
    requests, replies = talk(place, "to-site")
    other = place.files("to-site-again")
    before = set(place.root.rglob("*"))
    service = SiteService(other["site-01"], lambda to, blob, patience: False)
    hello, begin, first = requests[:3]
    for early in (begin, first, pack(Message("install", {}, {"step": 1, "round": 1}))):
        assert refused(service.answer(early))
    service.answer(hello), service.answer(begin)
    for name, change in TO_SITE.items():
        assert refused(service.answer(changed(first, change))), name
    for place_ in range(0, len(first), max(1, len(first) // 150)):
        assert refused(service.answer(flipped(first, place_))), place_
    for cut in (b"", first[:7], first[:100], first[:-1], first + b"\0", b"\xff" * 8 + first[8:]):
        assert refused(service.answer(cut))
    own = other["site-01"].state / "runs" / "one"
    beside = [other["site-01"].state / name for name in ("secret", AUDIT_FILE_NAME)]
    assert all(own in path.parents or path in (own, *own.parents, *beside) for path in
               set(place.root.rglob("*")) - before)  # fmt: skip
    assert not list(own.rglob("step-*"))
    answers = [unpack(service.answer(blob), LIMITS) for blob in requests[2:5]]
    for mine, honest in zip(answers, (unpack(blob, LIMITS) for blob in replies[2:5]), strict=True):
        assert wire.digest(mine.tensors) == wire.digest(honest.tensors)
        assert untimed(mine.meta) == untimed(honest.meta)
    service.close()


def test_a_step_number_that_the_store_can_not_name_is_refused(place: Place) -> None:
    requests, _ = talk(place, "steps")
    service = SiteService(place.files("steps-again")["site-01"], lambda to, blob, patience: False)
    service.answer(requests[0]), service.answer(requests[1])
    answer = service.answer(changed(requests[2], set_request(step=10**9)))
    service.close()
    assert refused(answer)


def untimed(meta: Any) -> str:
    copied = copy.deepcopy(meta)
    for rows in (copied.get("evaluation") or [], (copied.get("answer") or {}).get("rows") or []):
        rows[:] = [row for row in rows if "seconds" not in row[5]]
    return json.dumps(copied, sort_keys=True)


OFFERS: dict[str, dict[str, Any]] = {
    "code": {"overrides": {"method": "$__import__('os').getcwd()"}},
    "reference": {"overrides": {"metrics": ["@task"]}},
    "macro": {"overrides": {"mean": ["%configs/train.json::mean"]}},
    "target": {"overrides": {"networks#mini4#_target_": "os.system"}},
    "nested target": {"overrides": {"method_args": {"_target_": "os.system"}}},
    "a path": {"overrides": {"dataset_dir": "/tmp"}},
    "bundle root": {"overrides": {"bundle_root": "/tmp"}},
    "name of the run": {"run": "../../elsewhere"},
    "name of the bundle": {"bundle": "../small"},
    "more": {"and": 1},
    "another site": {"sites": ["site-02", "site-03"]},
}


@pytest.mark.parametrize("what", OFFERS)
def test_an_offer_holds_no_code_and_no_path(place: Place, what: str) -> None:
    meta = offered(place).to_json()
    values = OFFERS[what]
    meta |= {"overrides": meta["overrides"] | values["overrides"]} if "overrides" in values else values
    files = place.files(f"offer-{what}".replace(" ", "-"))
    service = SiteService(files["site-01"], lambda to, blob, patience: False)
    answer = unpack(service.answer(pack(Message("hello", {}, meta))), LIMITS)
    assert isinstance(answer.meta["refused"], str)
    assert "unexpected" not in answer.meta["refused"]
    assert refused(service.answer(pack(Message("begin", {}, {"networks": {}}))))
    assert [path.name for path in files["site-01"].state.iterdir()] == [AUDIT_FILE_NAME]


def test_a_model_is_posted_only_to_sites_of_the_run_and_only_in_a_cross_site_evaluation(place: Place) -> None:
    requests, _ = talk(place, "send_model", method="fedper", rounds=1, cross_site_evaluation=True)
    posted: list[str] = []
    service = SiteService(place.files("post-again")["site-01"], lambda to, blob, patience: posted.append(to) is None)
    sending = next(blob for blob in requests if unpack(blob, LIMITS).kind == "send_model")
    for blob in requests[:3]:
        service.answer(blob)
    for other in ("server", "stranger", "../site-02"):
        service.answer(changed(sending, set_meta(to=[other])))
    service.close()
    assert posted == []


def test_a_model_is_not_posted_where_the_run_has_no_cross_site_evaluation(place: Place) -> None:
    requests, _ = talk(place, "no-post", method="fedper", rounds=1)
    posted: list[str] = []
    service = SiteService(place.files("no-post-again")["site-01"], lambda to, blob, patience: posted.append(to) is None)
    for blob in requests[:3]:
        service.answer(blob)
    published = wire.select(unpack(requests[3], LIMITS).tensors, "published/")
    answer = service.answer(pack(Message("send_model", published, {"step": 1, "round": 1, "to": ["site-02"]})))
    service.close()
    assert refused(answer)
    assert posted == []


def test_nothing_is_written_outside_the_state_folders(place: Place) -> None:
    files = place.files("inside")
    before = set(place.root.rglob("*"))
    serve(files, offered(place, method="fedskd", rounds=1, cross_site_evaluation=True))
    states = [file.state for file in files.values()]
    written = set(place.root.rglob("*")) - before
    assert written
    assert all(any(state in (path, *path.parents) for state in states) for path in written)
    for state in states:
        assert {path.name for path in state.iterdir()} <= {"runs", "secret", AUDIT_FILE_NAME}
        assert {path.name for path in (state / "runs").iterdir()} == {"one"}
