"""Test that a site refuses requests that would reveal more than a sum, even if the server made it lose its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from site_refusals import raise_refusal, recorded_refusals

from medfl.contract import Request
from medfl.engine.backend import SiteResult
from medfl.engine.secure.method import wrap_method
from medfl.engine.secure.ops import (
    CONFIRM,
    CONFIRMED,
    KEYS,
    MASKED,
    PUBLIC,
    REVEALED,
    SEALED,
    SHARES,
    UNMASK,
    AggregationMeta,
    by_site,
)
from medfl.engine.secure.shamir import SHARE_BYTES
from medfl.engine.site import SiteRunner
from medfl.errors import RefusedError, StoreError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import make_plan, make_site, make_task
from medfl.types import Tensors
from medfl.utils import wire

NAMES = ("site-1", "site-2", "site-3", "site-4", "site-5")
SETTINGS = Settings.model_validate(
    {"rounds": 2, "batch_size": 5, "norm_sync": "params", "secure_aggregation": {"threshold": 3}}
)
REGISTRY = load_plugins()
ABOUT = AggregationMeta(NAMES)


def method() -> Any:
    return wrap_method(lambda: REGISTRY.make_method("fedavg", {}), SETTINGS)()


@dataclass
class Sites:
    """Sites of a run, to which a test sends requests as the server."""

    runners: dict[str, SiteRunner]

    def ask(
        self,
        name: str,
        step: int,
        op: str,
        about: AggregationMeta,
        tensors: Tensors,
        keep: tuple[int, ...] = (),
        round_: int = 1,
    ) -> SiteResult:
        request = Request(name, op, dict(tensors), about.meta())
        return self.runners[name].step(method, request, step, round_, wire.digest(tensors), keep)

    def demand(self, *arguments: Any, **options: Any) -> None:
        """Send a request as `ask` does, and raise the error of a refusal."""
        with recorded_refusals() as errors:
            answer = self.ask(*arguments, **options)
        raise_refusal(answer, errors)

    def sent(self, name: str, step: int) -> Tensors:
        return self.runners[name].store.read(step, "reply/")


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    def runner(name: str) -> SiteRunner:
        plan = make_plan(SETTINGS, sites=NAMES)
        return SiteRunner(name, make_site(6, name), tmp_path / name, plan, lambda *_: None)

    return Sites({name: runner(name) for name in NAMES})


@pytest.fixture
def keys(sites: Sites) -> Tensors:
    """Return the keys of all sites, as an honest server relays them."""
    for name in NAMES:
        assert sites.ask(name, 1, KEYS, ABOUT, {}).refused is None
    return {f"{PUBLIC}/{name}": sites.sent(name, 1)[PUBLIC] for name in NAMES}


def model(seed: int = 7) -> Tensors:
    tensors = make_task().initial(seed)
    return {f"model/{name}": tensor for name, tensor in tensors.items() if "running" not in name and "num_" not in name}


@pytest.fixture
def shared(sites: Sites, keys: Tensors) -> Tensors:
    """Return the shares that the other sites encrypted for site-1, after an honest second operation."""
    for name in NAMES:
        assert sites.ask(name, 2, SHARES, ABOUT, keys).refused is None
    return {f"{SEALED}/{name}": by_site(sites.sent(name, 2), SEALED)["site-1"] for name in NAMES[1:]}


MASKING = replace(ABOUT, peers=NAMES, op="fit")
SENT = replace(MASKING, masked=NAMES, op="")


def confirmed(sites: Sites, keys: Tensors, about: AggregationMeta = SENT, step: int = 4) -> Tensors:
    """Return the confirmations of the participants that sent numbers."""
    held = {}
    for name in about.masked:
        assert sites.ask(name, step, CONFIRM, about, keys).refused is None
        held[f"{CONFIRMED}/{name}"] = sites.sent(name, step)[CONFIRMED]
    return held


def test_no_mask_covers_two_payloads(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    """Repeat an aggregation with another model: the difference of the two masked vectors would have no mask."""
    assert sites.ask("site-1", 3, MASKED, MASKING, model() | keys).refused is None
    first = sites.sent("site-1", 3)
    for step in (4, 5, 3):  # then step 3 is forgotten, and asked for anew from the state before
        with refused(RefusedError, "repeated_aggregation", round=1, use="model"):
            sites.demand("site-1", step, MASKED, MASKING, model(seed=8) | keys, keep=(2,))
    assert sites.ask("site-1", 6, MASKED, MASKING, model() | keys).refused is None
    assert torch.equal(sites.sent("site-1", 6)["secure/numbers"], first["secure/numbers"])


def test_the_reply_to_another_request_of_the_same_step_is_refused(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    assert sites.ask("site-1", 3, MASKED, MASKING, model() | keys).refused is None
    with refused(StoreError, "other_run", site="site-1", step=3):
        sites.ask("site-1", 3, MASKED, MASKING, model(seed=8) | keys)


def test_one_list_of_drop_outs_is_answered(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    """Send two lists of drop-outs: both secrets of a site in only one of them would be revealed."""
    held = confirmed(sites, keys)
    assert sites.ask("site-1", 5, UNMASK, SENT, keys | shared | held).refused is None
    second = replace(SENT, masked=("site-1", "site-2", "site-3"))
    for step, op in ((6, UNMASK), (7, CONFIRM)):
        with refused(RefusedError, "repeated_aggregation", round=1, use="drop-outs"):
            sites.demand("site-1", step, op, second, keys | shared | held, keep=(2,))


def test_never_both_secrets_of_a_site(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    about = replace(SENT, masked=("site-1", "site-2", "site-3"))
    held = confirmed(sites, keys, about)
    assert sites.ask("site-1", 5, UNMASK, about, keys | shared | held).refused is None
    revealed = by_site(sites.sent("site-1", 5), REVEALED)
    assert revealed.keys() == {*NAMES}
    assert all(share.numel() == SHARE_BYTES for share in revealed.values()), "of each site one share, not two"


def test_nothing_is_revealed_unless_enough_confirm_the_same_list(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    held = confirmed(sites, keys)
    few = {name: held[name] for name in list(held)[:2]}
    other = held | {f"{CONFIRMED}/site-5": held[f"{CONFIRMED}/site-4"]}
    strange = held | {f"{CONFIRMED}/site-6": held[f"{CONFIRMED}/site-4"]}
    for step, votes, code, fields in (
        (5, few, "too_few_confirmations", {"round": 1, "found": 2, "minimum": 3}),
        (6, other, "inconsistent_participants", {"site": "site-5", "round": 1}),
        (7, strange, "too_few_confirmations", {"minimum": 3}),
    ):
        with refused(RefusedError, code, **fields):
            sites.demand("site-1", step, UNMASK, SENT, keys | shared | votes, keep=(2,))
        assert not sites.sent("site-1", step)


def test_a_model_is_trained_in_one_round(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    """Send the model of another round: its updates would be summed twice, perhaps over other participants."""
    assert sites.ask("site-1", 3, MASKED, MASKING, model() | keys).refused is None
    again = {}
    for name in NAMES:
        assert sites.ask(name, 4, KEYS, ABOUT, {}, round_=2).refused is None
        again[f"{PUBLIC}/{name}"] = sites.sent(name, 4)[PUBLIC]
    with refused(RefusedError, "repeated_model", round=2, earlier=1):
        sites.demand("site-1", 5, MASKED, MASKING, model() | again, round_=2)
    assert sites.ask("site-1", 6, MASKED, MASKING, model(seed=8) | again, round_=2).refused is None


def test_keys_of_others_can_not_be_exchanged_later(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    own = keys | {f"{PUBLIC}/site-3": keys[f"{PUBLIC}/site-2"]}
    with refused(RefusedError, "repeated_aggregation", round=1, use="keys of others"):
        sites.demand("site-1", 3, MASKED, MASKING, model() | own)


def test_participants_are_sites_of_the_run(sites: Sites) -> None:
    with refused(RefusedError, "unknown_participants", sites=[*NAMES[:4], "site-9"]):
        sites.demand("site-1", 1, KEYS, AggregationMeta((*NAMES[:4], "site-9")), {})


CROWDS: dict[str, tuple[str, AggregationMeta, str | None]] = {
    "two sites alone": (KEYS, AggregationMeta(NAMES[:2]), "participants"),
    "six, of whom two threes could be summed": (KEYS, AggregationMeta((*NAMES, "site-6")), "participants"),
    "without the site": (KEYS, AggregationMeta(NAMES[1:]), "participants"),
    "few peers": (MASKED, replace(MASKING, peers=NAMES[:2]), "shares"),
    "few that sent numbers": (CONFIRM, replace(MASKING, masked=NAMES[:2]), "numbers"),
    "numbers of nobody's peer": (
        CONFIRM,
        replace(MASKING, peers=NAMES[:4], masked=("site-1", "site-2", "site-5")),
        None,
    ),
}
"""Maps each case to an operation, its metadata, and the group with a wrong size; None for unknown senders."""


@pytest.mark.parametrize("case", CROWDS)
def test_crowds_that_hide_too_little_are_refused(case: str, sites: Sites, keys: Tensors, shared: Tensors) -> None:
    op, about, what = CROWDS[case]
    tensors = {KEYS: {}, MASKED: model() | keys, CONFIRM: keys}[op]
    crowd = {"what": what, "minimum": 3, "maximum": 5}
    code, fields = ("unknown_senders", {}) if what is None else ("wrong_participant_count", crowd)
    with refused(RefusedError, code, **fields):
        sites.demand("site-1", 3, op, about, tensors)


def test_fewer_keys_than_the_threshold_are_refused(sites: Sites, keys: Tensors) -> None:
    few = {name: key for name, key in keys.items() if name[-1] in "12"}
    with refused(RefusedError, "wrong_participant_count", what="keys", found=2, minimum=3, maximum=5):
        sites.demand("site-1", 2, SHARES, ABOUT, few)


def test_a_share_that_was_sealed_for_another_site_is_refused(sites: Sites, keys: Tensors, shared: Tensors) -> None:
    other = shared | {f"{SEALED}/site-2": by_site(sites.sent("site-2", 2), SEALED)["site-3"]}
    held = confirmed(sites, keys)
    with refused(RefusedError, "undecryptable_share"):
        sites.demand("site-1", 5, UNMASK, SENT, keys | other | held)


def test_nothing_leaves_in_the_clear(sites: Sites) -> None:
    with recorded_refusals() as errors:
        answer = sites.runners["site-1"].step(method, Request("site-1", "fit", model()), 1, 1, wire.digest(model()))
    with refused(RefusedError, "unmasked_reply", op="fit"):
        raise_refusal(answer, errors)
    assert not sites.sent("site-1", 1)


def test_requests_of_another_form_are_refused(sites: Sites) -> None:
    request = Request("site-1", KEYS, {}, {"secure_aggregation": {"sites": []}})
    with recorded_refusals() as errors:
        answer = sites.runners["site-1"].step(method, request, 1, 1, wire.digest({}))
    with refused(RefusedError, "invalid_request", op=KEYS):
        raise_refusal(answer, errors)
