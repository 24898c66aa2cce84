"""The student of a federation's clusters: weighing its teachers, training it, and showing what they look at."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from medfl.contract import Findings, Model, Server
from medfl.data.pooled import labels_of
from medfl.toolkit.local_training import cpu_state
from medfl.training.predict import logits
from medfl.types import Tensors
from medfl.utils.rng import make_generator
from medfl.utils.seeds import seed_of
from medfl_methods.pfedcdp.explanations import Explained, explain
from medfl_methods.pfedcdp.refinement import Refinement, Views, as_weights, refine, teacher_values
from medfl_methods.pfedcdp.server_classifier import weighing_rows

logger = logging.getLogger(__name__)


def make_student(server: Server, how: Refinement, teachers: Mapping[str, nn.Module]) -> tuple[Tensors, Findings]:
    """Train the student on the server's public data.

    Args:
        server: Has the public data.
        how: How it learns.
        teachers: Network's name to the cluster's model.

    Returns:
        The student's tensors, and what was found out about its teachers: ``teachers`` (each one's Shapley value and
        weight), ``groups`` (the balanced accuracy of each group of teachers), ``losses`` of the last epoch, and the
        tensors of `medfl_methods.pfedcdp.explanations.Explained`.
    """
    assert server.public is not None
    task, public, settings, names = server.task, server.public, server.settings, list(teachers)
    rows = weighing_rows(server)
    logits_by_teacher = [logits(teacher, public, settings, task.device)[rows] for teacher in teachers.values()]
    values, worth = [0.0] * len(names), dict[frozenset[int], float]()
    if len(rows):
        values, worth = teacher_values(logits_by_teacher, labels_of(public)[rows], task.objective.classes)
    weights = as_weights(values) if how.teachers == "shapley" else [1 / len(names)] * len(names)
    shown = explained(server, how, teachers)
    network = how.student or task.network
    student = task.load(task.initial(settings.seed, network, "student"), network)
    scale = shown.mean_size if how.teachers == "literal" and shown is not None else 1.0
    models = list(teachers.values())

    def after_epoch(epoch: int) -> None:
        if server.score_epoch is not None:
            server.score_epoch(Model(network, cpu_state(student)), epoch)

    rng, views = server.rng("student"), views_of(server)
    losses = refine(
        student, models, weights, public, how, settings, rng, task.device, views, scale, after_epoch=after_epoch
    )
    meta = {
        "teachers": {
            name: {"value": value, "weight": weight} for name, value, weight in zip(names, values, weights, strict=True)
        },
        "groups": {"+".join(names[player] for player in sorted(who)): value for who, value in worth.items()},
        "weighed_on": len(rows),
        "how": how.teachers,
        "losses": losses,
    }
    return cpu_state(student), Findings(meta, {} if shown is None else shown.tensors())


def explained(server: Server, how: Refinement, teachers: Mapping[str, nn.Module]) -> Explained | None:
    """SHAP values of the teachers on public images, where they are asked for."""
    per_class = how.explain or (1 if how.teachers == "literal" else 0)
    if not per_class:
        return None
    assert server.public is not None
    rng = make_generator(server.settings.seed, server.name, "explained")
    return explain(teachers, server.public, per_class, rng, server.task.device)


def views_of(server: Server) -> Views | None:
    """Random views of public images, each from a stream of its own; None where the task changes no images.

    A view depends on (run seed, round, epoch, its number, the image's row) and on nothing else.
    """
    changes = server.task.views or server.task.augmentation
    if changes is None or not changes.facts:  # a bundle's list of transforms may be empty
        return None

    def view(images: torch.Tensor, rows: torch.Tensor, epoch: int, number: int) -> torch.Tensor:
        key = (server.settings.seed, server.name, server.round, f"view {number}", epoch)
        return changes.seeded(images, None, [seed_of(*key, row) for row in rows.tolist()])[0]

    return view


def warn_of_equal_views(server: Server, how: Refinement) -> None:
    """Say so where the contrastive loss would compare each image with itself."""
    if how.losses != "kd" and views_of(server) is None:
        logger.warning(
            "Nothing changes images at random here, so the two views of an image that the student's contrastive loss "
            "compares are the same image. Give the bundle's task `views` (or `augmentation`), or set refine.losses to "
            "'kd'."
        )
