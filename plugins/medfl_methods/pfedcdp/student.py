"""Student of PFedCDP at the server: weights of its teachers, its training, and explanations of the teachers."""

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
from medfl_methods.pfedcdp.explanations import Explanations, explain_models
from medfl_methods.pfedcdp.refinement import Refinement, Views, normalise_values, teacher_shapley_values, train_student
from medfl_methods.pfedcdp.server_classifier import held_out_rows

logger = logging.getLogger(__name__)


def make_student(server: Server, options: Refinement, teachers: Mapping[str, nn.Module]) -> tuple[Tensors, Findings]:
    """Train the student on the server's public data.

    Args:
        server: Server with the public data.
        options: Settings of the student's training.
        teachers: Mapping from the name of each network to the model of its cluster.

    Returns:
        The student's tensors, and findings (report data: metadata and tensors) on its teachers. The metadata have the
        keys ``teachers`` (Shapley value and weight of each teacher), ``groups`` (balanced accuracy of each group of
        teachers), ``weighed_on`` (number of images behind these), ``how`` (rule of the weights) and ``losses`` (losses
        of the last epoch). The tensors are SHAP values, see `medfl_methods.pfedcdp.explanations.Explanations`.
    """
    assert server.public is not None
    task, public, settings, names = server.task, server.public, server.settings, list(teachers)
    rows = held_out_rows(server)
    logits_by_teacher = [logits(teacher, public, settings, task.device)[rows] for teacher in teachers.values()]
    values, accuracy_by_group = [0.0] * len(names), dict[frozenset[int], float]()
    if len(rows):
        values, accuracy_by_group = teacher_shapley_values(
            logits_by_teacher, labels_of(public)[rows], task.objective.classes
        )
    weights = normalise_values(values) if options.teachers == "shapley" else [1 / len(names)] * len(names)
    explanations = explain_teachers(server, options, teachers)
    network = options.student or task.network
    student = task.load(task.initial(settings.seed, network, "student"), network)
    scale = explanations.mean_size if options.teachers == "literal" and explanations is not None else 1.0
    models = list(teachers.values())

    def after_epoch(epoch: int) -> None:
        if server.score_epoch is not None:
            server.score_epoch(Model(network, cpu_state(student)), epoch)

    rng, views = server.rng("student"), random_views(server)
    losses = train_student(
        student, models, weights, public, options, settings, rng, task.device, views, scale, after_epoch=after_epoch
    )
    meta = {
        "teachers": {
            name: {"value": value, "weight": weight} for name, value, weight in zip(names, values, weights, strict=True)
        },
        "groups": {
            "+".join(names[player] for player in sorted(group)): value for group, value in accuracy_by_group.items()
        },
        "weighed_on": len(rows),
        "how": options.teachers,
        "losses": losses,
    }
    return cpu_state(student), Findings(meta, {} if explanations is None else explanations.tensors())


def explain_teachers(server: Server, options: Refinement, teachers: Mapping[str, nn.Module]) -> Explanations | None:
    """Return SHAP values (pixel contributions) of the teachers on public images; None if the settings want none."""
    per_class = options.explain or (1 if options.teachers == "literal" else 0)
    if not per_class:
        return None
    assert server.public is not None
    rng = make_generator(server.settings.seed, server.name, "explained")
    return explain_models(teachers, server.public, per_class, rng, server.task.device)


def random_views(server: Server) -> Views | None:
    """Return a function that draws random views of public images; None if the task has no random transforms.

    Each view has its own random stream, which depends only on the run's seed, the round, the epoch, the number of the
    view and the row of the image.
    """
    changes = server.task.views or server.task.augmentation
    if changes is None or not changes.facts:  # the bundle's list of transforms may be empty
        return None

    def view(images: torch.Tensor, rows: torch.Tensor, epoch: int, number: int) -> torch.Tensor:
        key = (server.settings.seed, server.name, server.round, f"view {number}", epoch)
        return changes.seeded(images, None, [seed_of(*key, row) for row in rows.tolist()])[0]

    return view


def warn_of_identical_views(server: Server, options: Refinement) -> None:
    """Log a warning if the contrastive loss would compare each image with itself."""
    if options.losses != "kd" and random_views(server) is None:
        logger.warning(
            "The task has no random transforms, so the two views of an image in the student's contrastive loss are "
            "identical. Add `views` (or `augmentation`) to the bundle's task, or set refine.losses to 'kd'."
        )
