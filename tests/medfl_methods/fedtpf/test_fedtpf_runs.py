"""Whole runs of FedTPF: transferred and private tensors, order of the steps, interruptions."""

import pytest
import torch
from fedtpf_toys import (
    Log,
    Scripted,
    recorded,
    rows,
    run,
    shared_at,
    state_of,
    unlike_sites,
    weighted_mean,
)
from refusals import refused

from medfl.errors import ContractError
from medfl.testing.cohort import SmallNet, bits, make_site, make_task
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedfed.distiller import Distiller
from medfl_methods.fedfed.generators import build_generator
from medfl_methods.fedtpf.method import FedTPF

ROUNDS = {"rounds": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run two rounds of each stage with all features of FedTPF; return log, result and folder."""
    log, folder = Log(), tmp_path_factory.mktemp("whole")
    factory = recorded(log, FedTPF, distil_rounds=2, clip=None)
    return log, run(folder, args=ARGS, make_method=factory, sites=unlike_sites(), **ROUNDS), folder


ARGS = {"distil_rounds": 2, "clip": None}

# ---- transferred tensors


def test_only_declared_parts_leave_the_server_and_the_sites(whole):
    """Critic, prototypes and optimisers stay at the sites (A4.2), and no tensor name hides one of them."""
    log, _, _ = whole
    task = make_task()
    model = {f"model/{name}" for name in task.initial(7)}
    whole_distiller = Distiller(build_generator("vae", (1, 6, 6), 24, 2), SmallNet(), task.scale)
    part = {f"distiller/{name}" for name in whole_distiller.state_dict()}
    shared = {"shared/images/0", "shared/labels"}
    brought = {"distil": [model | part], "assess": [part], "share": [part], "train": [model, model | shared]}
    sent = {"distil": model | part, "assess": set(), "share": shared, "train": model}
    facts = {"distil": {"size", "frozen"}, "assess": {"accuracy", "patients"}, "train": {"size"}}
    facts["share"] = {"size", "generator_error", "mean_image_error"}
    for work in log.work:
        assert set(work.received) in brought[work.op], work.op
        assert (set(work.sent), set(work.meta), work.peer_messages) == (sent[work.op], facts[work.op], 0)
        assert work.request_meta == ({"holds": True} if work.op == "train" and set(work.received) == model else {})
    assert {work.op for work in log.work} == set(brought)
    critics = [work for work in log.work if any("critic" in name for name in work.kept)]
    assert {work.site for work in critics} == {"site-1", "site-2", "site-3"}, "and there are some to hide"
    assert all(any("optimizer" in name for name in work.kept) for work in log.work if work.op == "distil")


class Leaking(FedTPF):
    """FedTPF that also sends its critic."""

    def distil(self, site, request):
        reply = super().distil(site, request)
        kept = select(site.state.tensors, "kept/")
        reply.tensors |= {name: tensor for name, tensor in kept.items() if name.startswith("critic/model")}
        return reply


def test_a_reply_with_a_critic_is_refused(tmp_path):
    with refused(ContractError, "undeclared_tensor", sender="Site 'site-1'") as caught:
        run(tmp_path, make_method=lambda: Leaking(width=2), rounds=1)
    assert caught.value.fields["tensor"].startswith("critic/model")


def test_stages_are_the_servers(whole):
    """The server schedules two rounds of distilling and assessing, one sharing step, then training."""
    log, result, folder = whole
    stages = [(fold.round, fold.stage, fold.following) for fold in log.folds]
    first = [(1, "distil", "assess"), (1, "assess", "distil"), (2, "distil", "assess"), (2, "assess", "share")]
    assert stages == [*first, (3, "share", "train"), (3, "train", "train"), (4, "train", "train")]
    assert "done" not in state_of(folder).meta, "no round is under way"
    assert {work.site for work in log.work if work.op == "assess"} == {"site-1", "site-2"}
    facts = result.outcome.findings.meta["sharing"]
    assert facts["stage1"] == {"rounds": 2, "ended": "round limit", "threshold": 0.9}
    assert (result.outcome.status, result.outcome.rounds) == ("finished", 4)
    assert facts["items"] == {"site-1": 7, "site-2": 6, "site-3": 5}
    assert "no differential privacy" in facts["statement"][0]
    assert [entry["round"] for entry in facts["history"]] == [1, 2]
    assert facts["history"][1]["weights"] == {f"site-{number}": 1.0 for number in (1, 2, 3)}


def test_the_common_generator_is_the_mean_by_images(whole):
    """The task's network is such a mean, too, in both stages, each from its own updates."""
    log, _, _ = whole
    sizes = {"site-1": 7, "site-2": 6, "site-3": 5}
    for fold in log.folds:
        work = log.of(fold.stage, fold.round)
        prefixes = {"distil": ("model/", "distiller/"), "train": ("model/",)}.get(fold.stage, ())
        moved = set()
        for prefix in prefixes:
            means = weighted_mean({name: select(done.sent, prefix) for name, done in work.items()}, sizes)
            own = "kept/distiller/" if prefix == "distiller/" else ""
            for key, mean in means.items():
                expected = fold.before[own + key].double() + mean
                torch.testing.assert_close(fold.after[own + key].double(), expected, atol=1e-7, rtol=1e-6)
                moved.add(own + key)
        same = {name: tensor for name, tensor in fold.before.items() if name not in moved and "num_b" not in name}
        assert all(torch.equal(fold.after[name], tensor) for name, tensor in same.items()), fold.stage
        assert not prefixes or any(not torch.equal(fold.after[name], fold.before[name]) for name in moved)


def test_accuracies_are_those_of_the_common_model_on_validation_images(whole):
    """p of A4.3 step 7, with z = mu and without noise, by hand, in both rounds."""
    log, result, _ = whole
    task, data = make_task(), unlike_sites()
    history = result.outcome.findings.meta["sharing"]["history"]
    for fold, entry in zip([entry_ for entry_ in log.folds if entry_.stage == "distil"], history, strict=True):
        model = Distiller(build_generator("vae", (1, 6, 6), 24, 2), SmallNet(), task.scale)
        model.load_state_dict(select(fold.after, "kept/distiller/"))
        model.eval()
        for name, accuracy in entry["accuracy"].items():
            x = data[name].val.images * 0.5 + 0.5
            logits = model.classifier((x - model.generator(x).images) / 0.5)
            assert accuracy == pytest.approx(float((logits.argmax(1) == data[name].val.class_labels).double().mean()))


# ---- interruptions


def test_a_run_that_loses_all_sites_in_the_share_step_continues(whole, tmp_path):
    """Nothing is shared while no site replies, and the run says so. It ends bit by bit like an uninterrupted run."""
    _, unbroken, folder = whole
    factory = recorded(Log(), FedTPF, **ARGS)
    ended = run(
        tmp_path,
        args=ARGS,
        make_method=factory,
        sites=unlike_sites(),
        unavailable=lambda site, step: step == 5,
        **ROUNDS,
    )
    assert (ended.outcome.status, ended.outcome.rounds) == ("incomplete", 2)
    log = Log()
    again = run(tmp_path, args=ARGS, make_method=recorded(log, FedTPF, **ARGS), sites=unlike_sites(), **ROUNDS)
    assert {work.op for work in log.work} == {"share", "train"}, "nothing is distilled twice"
    assert tensors_equal(shared_at(tmp_path), shared_at(folder)), "with the same noise"
    assert tensors_equal(state_of(tmp_path).tensors, state_of(folder).tensors)
    assert state_of(tmp_path).meta == state_of(folder).meta
    expected, again_bits = bits(unbroken), bits(again)
    assert all(tensors_equal(again_bits[key], tensors) for key, tensors in expected.items())


# ---- participation


def test_a_late_site_gets_the_shared_set_then_and_no_one_twice(tmp_path):
    """One of four sites takes part in each round. A site receives the set with its first training request."""
    log, data = Log(), {f"site-{n}": make_site(4, str(n)) for n in (1, 2, 3, 4)}
    run(tmp_path, make_method=recorded(log, Scripted), sites=data, rounds=12, fraction=0.25)
    training = {name: [work for work in log.work if (work.site, work.op) == (name, "train")] for name in data}
    assert max(works[0].round for works in training.values() if works) >= 5
    assert max(len(works) for works in training.values()) >= 3
    down = rows(tmp_path, "bytes_down")
    size = 16 * (36 * 2 + 8)  # 16 images in half precision, and labels
    model = sum(tensor.numel() * tensor.element_size() for tensor in make_task().initial(7).values())
    for name, works in training.items():
        brought = ["shared/images/0" in work.received for work in works]
        assert brought == [True] * (len(works) > 0) + [False] * (len(works) - 1)
        for work, first in zip(works, brought, strict=True):
            assert down[work.round, name][-1] == model + size * first
        assert (shared_at(tmp_path, name) is not None) == bool(works)


def test_a_site_that_is_unavailable_when_all_share(tmp_path):
    """The images of the unavailable site are not in the set, and it trains on the others' images."""
    log = Log()
    away = {"unavailable": lambda site, step: (site, step) == ("site-1", 3)}
    result = run(tmp_path, make_method=recorded(log, Scripted), rounds=3, **away)
    facts = result.outcome.findings.meta["sharing"]
    assert (result.outcome.status, facts["items"]) == ("finished", {"site-2": 6})
    assert shared_at(tmp_path)["images/0"].shape[0] == sum(facts["classes"]) == 6
    assert tensors_equal(shared_at(tmp_path, "site-1"), shared_at(tmp_path))
