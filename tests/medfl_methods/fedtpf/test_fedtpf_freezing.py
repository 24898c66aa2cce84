"""FedTPF's stage 1: freezing of sites, weights of frozen sites (TP-05, TP-06), and its end (TP-07)."""

import itertools
import math
import statistics

import pytest
import torch
from fedtpf_toys import (
    SCRIPT,
    STOPS,
    Log,
    Scripted,
    federate,
    recorded,
    run,
    small_sites,
    unlike_sites,
    weighted_mean,
    without_validation,
)

from medfl.contract import Reply
from medfl.testing.cohort import make_site
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedtpf.method import FedTPF

# ---- freezing, recomputed for scripted sites

RATE = 5.0


def alpha(mode, changes):
    """Return the weight in the three readings of TP-05, from the changes since the freeze."""
    gains = [max(0.0, change) for change in changes]
    paces = [min(1.0, max(0.0, (0.05 - abs(change)) / 0.03)) for change in changes]
    exponent = {"cumulative": sum(gains), "literal": (gains or [0.0])[-1], "text": sum(paces), "none": 0.0}[mode]
    return math.exp(-RATE * exponent)


@pytest.mark.parametrize("mode", ["cumulative", "literal", "text", "none"])
def test_frozen_sites_count_with_what_they_had_and_ever_less(tmp_path, mode):
    """Recompute all weights and means from the messages. Three of four sites take part in each of 7 rounds; two freeze.

    The stored distiller of a frozen site has the weight n_k alpha_k whenever the site takes part. alpha follows
    equations 8 and 9 with the change p(t-1) - p(t-2) of the sites that take part and are active in round t (TP-05,
    A4.9).
    """
    log, sizes = Log(), {"site-1": 7, "site-2": 4, "site-3": 5, "site-4": 6}
    factory = recorded(log, Scripted, distil_rounds=7, decay=mode)
    data = {name: make_site(n, name) for name, n in sizes.items()}
    server = list(federate(factory, tmp_path, data, rounds=7, fraction=0.75))[-1]
    known, kept, changes = server.state.meta, {}, {}
    for round_ in range(1, 8):
        work = log.of("distil", round_)
        (fold,) = [entry for entry in log.folds if (entry.round, entry.stage) == (round_, "distil")]
        before, after = (select(state, "kept/distiller/") for state in (fold.before, fold.after))
        active = [name for name in work if name not in kept]
        for name, done in work.items():
            got = select(done.received, "distiller/")
            assert bool(got) == bool(select(done.sent, "distiller/")) == (name in active)
            assert not got or tensors_equal(got, before)
        gains = [SCRIPT[name][round_ - 2] - SCRIPT[name][round_ - 3] for name in active] if round_ > 2 else []
        change = statistics.fmean(gains) if gains else 0.0
        parts = {name: after_update(before, work[name].sent) for name in active}
        kept |= {name: parts[name] for name in active if round_ >= STOPS.get(name, 99)}
        for name in kept:
            changes.setdefault(name, []).append(change)
        alphas = {name: alpha(mode, changes.get(name, [])) for name in work}
        entry = known["history"][round_ - 1]
        assert entry["weights"] == pytest.approx(alphas)
        assert entry["active"] == active
        standing = {name: kept.get(name) or parts[name] for name in work}
        for key, mean in weighted_mean(standing, {name: sizes[name] * alphas[name] for name in work}).items():
            torch.testing.assert_close(after[key].double(), mean, atol=1e-6, rtol=1e-5)
    assert set(known["frozen"]) == set(STOPS)
    for name in STOPS:
        values = [entry["weights"][name] for entry in known["history"] if name in entry["weights"]]
        late = [
            entry["round"] for entry in known["history"] if name in entry["weights"] and name not in entry["active"]
        ]
        assert late
        assert mode == "none" or values[0] == 1.0
        if mode == "cumulative":
            assert values == sorted(values, reverse=True)
            assert values[-1] < 1.0


def after_update(before, sent):
    """Return the distiller of a site after its training."""
    return {key: before[key] + update for key, update in select(sent, "distiller/").items()}


# ---- freezing in a run

EASY = {"accuracy": 0.0, "tolerance": 0.0, "cosine": 2.0, "window": 2, "fluctuation": 2.0, "distil_rounds": 4}
"""Each site freezes after two epochs."""


@pytest.fixture(scope="module")
def freezing(tmp_path_factory):
    """Run stage 1 so that site 1 freezes in round 2 and site 2, unavailable in round 1, in round 3.

    Site 3 can't freeze. A site with validation images that never replies keeps stage 1 from ending, since the required
    accuracy is 0.
    """
    log, folder = Log(), tmp_path_factory.mktemp("freezing")
    options = {"sites": unlike_sites() | {"site-9": make_site(0, "judge")}, "rounds": 5}
    options["unavailable"] = lambda site, step: site == "site-9" or (site, step) == ("site-2", 1)
    return log, run(folder, args=EASY, make_method=recorded(log, FedTPF, **EASY), **options), folder


def test_a_frozen_site_trains_the_task_only(freezing):
    log, result, _ = freezing
    facts = result.outcome.findings.meta["sharing"]
    assert facts["frozen"] == {"site-1": 2, "site-2": 3}
    assert facts["stage1"] == {"rounds": 4, "ended": "round limit", "threshold": 0.0}
    assert [entry["active"] for entry in facts["history"]] == [
        ["site-1", "site-3"],
        ["site-1", "site-2", "site-3"],
        ["site-2", "site-3"],
        ["site-3"],
    ]
    for work in log.work:
        if work.op != "distil":
            continue
        frozen = work.round > facts["frozen"].get(work.site, 99)
        assert any(name.startswith("distiller/") for name in work.received) is not frozen
        assert any(name.startswith("distiller/") for name in work.sent) is not frozen
        assert any(tensor.abs().max() > 0 for name, tensor in work.sent.items() if name.startswith("model/"))
        assert work.meta["frozen"] == (facts["frozen"].get(work.site) == work.round)
    assert not any(name.startswith("kept/") for name in log.of("distil", 4)["site-1"].kept), "nothing to go on with"


def test_a_frozen_site_still_assesses_and_shares(freezing):
    log, result, _ = freezing
    assert {work.site for work in log.work if (work.op, work.round) == ("assess", 4)} == {"site-1", "site-2"}
    assert set(log.of("share")) == {"site-1", "site-2", "site-3"}
    assert result.outcome.findings.meta["sharing"]["items"] == {"site-1": 7, "site-2": 6, "site-3": 5}


# ---- the end of stage 1


def test_accuracy_at_all_sites_ends_the_first_stage(tmp_path):
    """It ends in round 1 of 3, without the tolerance of freezing (TP-07).

    Sites without validation images do not count.
    """
    args = {"accuracy": 0.10, "tolerance": 0.02, "distil_rounds": 3, "width": 2}
    for low, ended in ((0.10, {"rounds": 1, "ended": "accuracy"}), (0.09, {"rounds": 3, "ended": "round limit"})):

        class Judged(Scripted):
            def execute(self, site, request, low=low):
                reply = super().execute(site, request)
                if request.op == "assess":
                    reply.meta["accuracy"] = low if site.name == "site-1" else 0.9
                return reply

        data = unlike_sites()
        *_, server = federate(lambda kind=Judged: kind(**args), tmp_path / str(low), data, rounds=3)
        assert set(server.state.meta["history"][0]["accuracy"]) == {"site-1", "site-2"}
        assert Judged(**args).findings(server).meta["sharing"]["stage1"] == ended | {"threshold": pytest.approx(0.1)}
        assert Judged(**args).current_step(server).name == ("train" if low == 0.10 else "share")


def test_the_papers_preset_is_the_paper(tmp_path):
    """No clip; the stage ends at accuracy 0.90; sites freeze from 0.88; the weight follows equation 8 as printed."""
    paper = FedTPF(**FedTPF.presets["paper"])
    assert (paper.clip, paper.decay, paper.accuracy, paper.tolerance) == (None, "literal", 0.9, 0.02)
    args = FedTPF.presets["paper"] | {"distil_rounds": 3, "width": 2}
    for low, stage in ((0.90, "share"), (0.89, "distil")):

        class Judged(Scripted):
            def execute(self, site, request, low=low):
                reply = Reply(meta={"accuracy": low, "patients": 50})
                return reply if request.op == "assess" else super().execute(site, request)

        steps = federate(lambda kind=Judged: kind(**args), tmp_path / str(low), small_sites(), rounds=9)
        *_, server = itertools.islice(steps, 2)
        assert Judged(**args).current_step(server).name == stage


def test_where_no_one_can_judge_the_round_limit_ends_it(tmp_path):
    """Without any validation images no site freezes, there is no assessment, and the rest of the run is unchanged."""
    log, data = Log(), {name: without_validation(splits) for name, splits in small_sites().items()}
    factory = recorded(log, FedTPF, **(EASY | {"distil_rounds": 1, "window": 1}))
    result = run(tmp_path, make_method=factory, sites=data, rounds=2)
    facts = result.outcome.findings.meta["sharing"]
    assert (result.outcome.status, result.outcome.rounds) == ("finished", 2)
    assert [work.op for work in log.work if work.site == "site-1"] == ["distil", "share", "train"]
    assert facts["stage1"]["ended"] == "round limit"
    assert (facts["frozen"], facts["history"][0]["accuracy"]) == ({}, {})
