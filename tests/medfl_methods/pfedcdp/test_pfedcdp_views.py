"""Views of PFedCDP's student, and its scores after each epoch of its training."""

import dataclasses
import itertools

import torch
from monai.transforms import Compose, RandFlipd, RandShiftIntensityd
from pfedcdp_toys import SHORT, run

from medfl.contract import Server, State
from medfl.engine.runs.records import read_metrics
from medfl.settings import Settings
from medfl.testing.cohort import SmallNet, make_data, make_task
from medfl.training.augment import Augmentation
from medfl.utils.wire import tensors_equal
from medfl_methods.pfedcdp.refinement import Refinement, train_student
from medfl_methods.pfedcdp.student import random_views

PUBLIC = make_data(60, "public")

SHIFTS = Augmentation(Compose([RandShiftIntensityd(keys=["image"], offsets=0.5, prob=1.0)]))


def view_of(seed=7, round_=1, **changes):
    task = dataclasses.replace(make_task(), **(changes or {"views": SHIFTS}))
    return random_views(Server("server", round_, State(), task, Settings(rounds=2, seed=seed), public=PUBLIC))


def views_in(**how):
    """Return both views of all public images in two epochs."""
    view, rows = view_of(**how), torch.arange(len(PUBLIC))
    return [view(PUBLIC.images, rows, epoch, number) for epoch in (1, 2) for number in (0, 1)]


def test_the_views_of_an_image_differ_from_each_other_and_from_the_image():
    """Views are redrawn in each epoch. If a class has one image, they are the contrastive loss's only positives."""
    for first, other in itertools.combinations([PUBLIC.images, *views_in()], 2):
        assert bool((first != other).flatten(1).any(dim=1).all())


def test_a_view_depends_on_seed_round_epoch_number_and_row_alone():
    first, *_ = views_in()
    rows = torch.tensor([40, 3])
    torch.manual_seed(99)
    assert torch.equal(view_of()(PUBLIC.images[rows], rows, 1, 0), first[rows])
    for other in (views_in(seed=8)[0], views_in(round_=2)[0]):
        assert bool((first != other).flatten(1).any(dim=1).all())


def test_views_of_a_task_win_over_its_augmentation_which_sites_train_on():
    flips = Augmentation(Compose([RandFlipd(keys=["image"], prob=1.0, spatial_axis=0)]))
    assert torch.equal(views_in(augmentation=flips)[0], PUBLIC.images.flip(2))
    assert torch.equal(views_in(augmentation=flips, views=SHIFTS)[0], views_in()[0])
    assert make_task().augment(torch.Generator()) is None
    assert dataclasses.replace(make_task(), views=SHIFTS).augment(torch.Generator()) is None


def test_without_random_changes_the_run_says_that_both_views_are_the_image(tmp_path, caplog):
    def told(name, task, **refine):
        caplog.clear()
        run(tmp_path / name, {"refine": SHORT | refine}, rounds=1, task=task)
        return "identical. Add `views`" in caplog.text

    plain = make_task()
    assert told("same", plain)
    assert told("none", dataclasses.replace(plain, views=Augmentation(Compose([])), augmentation=SHIFTS))
    assert not told("distilled", plain, losses="kd")
    assert not told("views", dataclasses.replace(plain, views=SHIFTS))


def test_the_student_is_scored_after_each_epoch_if_asked_and_stays_the_same(tmp_path):
    args = {"refine": {"epochs": 2, "probe_epochs": 1}}
    task = dataclasses.replace(make_task(), views=SHIFTS)
    plain = run(tmp_path / "plain", args, rounds=2, task=task)
    watched = run(tmp_path / "watched", args, rounds=2, task=task, moments=["aggregated", "epochs"])
    left, right = (result.outcome.models["global"].tensors for result in (plain, watched))
    assert tensors_equal(left, right)
    rows, usual = (read_metrics(tmp_path / name / "metrics.csv") for name in ("watched", "plain"))
    way = rows[rows["moment"].str.startswith("epoch ")]
    assert list(way["moment"].unique()) == ["epoch 1", "epoch 2", "epoch 3"]
    assert set(map(tuple, way[["round", "site", "model", "split"]].values)) == {(2, "global", "global", "test")}
    last = rows[(rows["site"] == "global") & (rows["moment"] == "aggregated") & (rows["round"] == 2)]
    scores = dict(zip(way["metric"], way["value"]))  # the last epoch's
    assert scores == dict(zip(last["metric"], last["value"]))
    assert not usual["moment"].str.startswith("epoch ").any()


def test_an_observer_sees_each_epoch_and_the_probes_epochs_and_changes_nothing():
    torch.manual_seed(0)
    student, seen = SmallNet(), []

    def look(epoch):
        seen.append((epoch, student.head.weight.clone(), student.body[0].weight.clone()))

    refinement = Refinement(epochs=3, probe_epochs=2, batch_size=20, losses="scl")
    train_student(
        student, [SmallNet()], [1.0], PUBLIC, refinement, Settings(rounds=1), torch.Generator(), after_epoch=look
    )
    assert [epoch for epoch, *_ in seen] == [1, 2, 3, 4, 5]
    heads, bodies = [head for _, head, _ in seen], [body for *_, body in seen]
    assert all(torch.equal(heads[0], head) for head in heads[:3])
    assert not torch.equal(heads[3], heads[4])
    assert not torch.equal(bodies[1], bodies[2])
    assert torch.equal(bodies[2], bodies[4])
    assert torch.equal(student.head.weight, heads[4])
