"""PFedCDP as a method class: cluster averaging, personal masks, distillation at the sites, and the final student.

The head, or classifier, of a network is its last part; the body is the rest. A step is one exchange of requests and
replies; a round has one or more steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from medfl.contract import (
    Capability,
    Findings,
    Model,
    Need,
    PayloadKind,
    ReducesTo,
    Replies,
    Reply,
    Request,
    Server,
    Site,
)
from medfl.errors import SettingsError
from medfl.networks.parts import SplitNetwork, body_and_head, feature_count, head_prefix, names_without_head
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import add_update, mean_update, normalised_weights, sample_sites
from medfl.toolkit.averaging import Averaging, refuse_noisy_statistics
from medfl.toolkit.fisher import Estimator, fisher, split_mask
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import distillation
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.toolkit.teacher import Teacher
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.training.loop import Batch
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.pfedcdp.explanations import import_shap
from medfl_methods.pfedcdp.refinement import Refinement
from medfl_methods.pfedcdp.server_classifier import (
    assemble_teacher,
    check_statistics,
    held_out_rows,
    initial_classifier,
    train_classifier,
)
from medfl_methods.pfedcdp.student import make_student, warn_of_identical_views

CLUSTER_PREFIX = "cluster/"
"""Prefix of the names of a cluster's tensors in the server's state; the name of the cluster's network follows."""
TEACHER_PREFIX = "teacher/"
"""Prefix of the tensor names of the server's classifier for a cluster, in messages and in the server's state."""
STUDENT_PREFIX = "student/"
"""Prefix of the student's tensor names, in messages and in the server's state."""
FINDINGS_PREFIX = "findings/"
"""Prefix of the names of tensors for the report in the server's state."""

HEAD_TRAINING = "head"
"""Label of the training phase in which only the classifier is trained."""


class PFedCDP(Averaging):
    """Sites with the same network form a cluster and average their bodies; all clusters then teach one student model.

    The network assignment ``machine_clusters`` can form the clusters by the capability of the sites' machines. The
    server keeps a body and a classifier for each cluster. A site trains its whole model and afterwards its classifier
    alone; its classifier stays at the site. The server trains its classifiers on public data, before the first round
    and after each round; the paper does not say how they are trained. Only the server has the public data; no site
    receives them.

    Update rule:
        With b the body of the cluster and h the server's classifier for it, site k with its own body b_k and classifier
        h_k computes in each round

            F <- mean over images of (gradient of log p(y | x) with respect to b_k)^2
            M <- 1 for the fraction personal_share of coordinates with the largest F, else 0
            v <- M b_k + (1 - M) b                     (in the site's first round: v <- b)
            (b_k, h_k) <- minimise L from (v, h_k), then over h_k alone
            L = (1 - lam) CE + lam tau^2 KL(teacher || model),  teacher = (b, h)

        For each cluster, the server computes

            b <- b + mean over the cluster's participants of (b_k - b)
            h <- minimise CE on public data with b frozen

        After the last round the teachers of all clusters, with weights w_c that sum to 1, teach one student on public
        data:

            minimise (1 - alpha) SCL + alpha tau^2 KL(sum_c w_c teacher_c || student)
            then minimise CE over the student's head alone

        Here alpha and tau are settings of `refine`, and the sum is over logits. SCL is the supervised contrastive loss
        of two random views of each image, from the task's ``views`` or its ``augmentation``. The student is the run's
        global model.

    When to use it: Use it if the sites' machines differ in capability and the server has public images of the same
    task. Compare it with `local` and, with a single network, with `fedavg`. Site-level privacy hides a site's single
    update among few others, so expect little more than chance; the report prints the privacy statement.

    Limits: The sites of the released code use the whole received body and a teacher with a random classifier:
    ``personal_share = 0``, ``head_share = 0``, ``server_classifier = random``. There is no preset for that code,
    because its versions contradict each other, it scores other models, and its student has terms and faults that this
    implementation does not have.

    Limit cases: With ``head_share = 1`` the bodies are never trained, as in the paper's algorithm 1 read literally, so
    they keep their initial values. This method is `local` with the settings below only if all sites take part.

    Attributes:
        lam: Weight of the distillation from the teacher in the sites' loss, in [0, 1]; the task's loss has 1 - lam.
        tau: Temperature of the distillation at the sites, > 0.
        personal_share: Fraction of the body's coordinates that stay personal, in [0, 1].
        fisher_samples: Number of training images for the estimate of the Fisher information, redrawn in each round, >=
            1.
        estimator: Estimate of the Fisher information: ``per_sample`` squares the gradient of each image; ``per_batch``
            squares the gradient of each batch, as the released code does.
        head_share: Fraction of a round's epochs (or steps) in which only the classifier is trained, in [0, 1]. If it is
            below 1, at least one epoch or step trains the whole model.
        server_classifier: Server's classifier: ``proxy`` trains it on public data; ``average`` adds the mean change of
            the sites' classifiers, which then leave the sites; ``random`` keeps its initial values, as the released
            code does; ``none`` means no classifier, which requires ``lam = 0`` and ``refine = null``.
        server_epochs: Epochs on the public data each time the server's classifier is trained, >= 1.
        refine: Settings of the student's training; None trains no student.

    Source: Shadin, Zhang, Wang, Pan: Heterogeneity-aware private personalized federated learning for medical imaging
    via contrastive distillation, algorithms 1 and 2, equations 3 to 19; clip, noise and bits are settings of the run.
    """

    name = "pfedcdp"
    family = "averaging"
    paper = "Shadin, Zhang, Wang, Pan"
    summary = "clusters of different networks share Fisher-masked bodies; their models teach one student"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    needs: ClassVar[frozenset[Need]] = frozenset(
        {"class_logits", "linear_head", "public_data", "soft_targets", "trainable_body"}
    )
    """Properties that the task, its data and its networks must have for this method."""
    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", TEACHER_PREFIX: "update"}
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {"refine": {"teachers": "literal"}},
        "medfl": {},
    }
    preset_settings: ClassVar[Mapping[str, Meta]] = {
        "paper": {
            "rounds": 20,
            "epochs": 20,
            "privacy": {"unit": "site", "adjacency": "add_remove", "epsilon": 5.0, "clip": 2.5},
            "compression": {"bits": 8},
        }
    }
    """Settings of the run, beside the method's own, that each preset sets."""
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo(
            "local",
            {"personal_share": 1.0, "head_share": 0.0, "lam": 0.0, "refine": None},
            only_without_norms=True,
        ),
    )

    lam: float = Field(0.3, ge=0, le=1)
    tau: float = Field(3.0, gt=0, allow_inf_nan=False)
    personal_share: float = Field(0.2, ge=0, le=1)
    fisher_samples: int = Field(1000, ge=1)
    estimator: Estimator = "per_sample"
    head_share: float = Field(0.5, ge=0, le=1)
    server_classifier: Literal["proxy", "average", "random", "none"] = "proxy"
    server_epochs: int = Field(5, ge=1)
    refine: Refinement | None = Refinement()

    @model_validator(mode="after")
    def _check_teacher(self) -> PFedCDP:
        """Raise if distillation or a student is configured without a server classifier."""
        if self.server_classifier == "none" and (self.lam > 0 or self.refine is not None):
            raise ValueError("without a server classifier there is no teacher: expected lam = 0 and refine = null")
        return self

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the body's tensors, which sites and server exchange.

        Args:
            model: Network.
            norm_sync: The run's setting for normalisation layers, which decides which of their tensors are exchanged.
        """
        return names_without_head(model, super().shared_names(model, norm_sync))

    # ---- the server

    def setup(self, server: Server) -> None:
        """Initialise the body and the server's classifier of each cluster, and check the settings of the student.

        Raises:
            SettingsError: If a needed package is missing, the student's network has no linear head, public images are
                too few for Shapley values, or batch-norm statistics stay at the sites.
        """
        if self.refine is not None:
            warn_of_identical_views(server, self.refine)
            if self.refine.explain or self.refine.teachers == "literal":
                import_shap()
            feature_count(server.task.build(self.student(server)), self.student(server))
            if self.refine.teachers == "shapley" and not len(held_out_rows(server)):
                raise SettingsError(
                    "too_few_images",
                    "Shapley values need public images that no classifier was trained on: expected public data with at "
                    "least two images of a class, got no such class. Add images, or set refine.teachers to 'equal'.",
                    setting="refine.teachers",
                    minimum=2,
                )
        self.initialise_clusters(server)

    def initialise_clusters(self, server: Server) -> None:
        """Initialise body and classifier of each cluster that the server's state does not contain yet.

        At the start these are all clusters; later it is the cluster of a site that joins with a new network.
        """
        for network in cluster_networks(server):
            if select(server.state.tensors, f"{CLUSTER_PREFIX}{network}/"):
                continue
            classifier = initial_classifier(server.task, network, self.server_classifier, server.settings.seed)
            tensors = server.task.initial(server.settings.seed, network)
            model = server.task.load(tensors, network)
            names = self.shared_names(model, server.settings.norm_sync)
            if policy_of(server.settings).is_private:
                refuse_noisy_statistics(model, names)
            if self.server_classifier != "none":
                check_statistics(model, network, names)
            server.state.tensors |= prefixed(
                {name: tensors[name] for name in names}, f"{CLUSTER_PREFIX}{network}/{MODEL_PREFIX}"
            )
            server.state.tensors |= prefixed(classifier, f"{CLUSTER_PREFIX}{network}/{TEACHER_PREFIX}")
            self.update_classifier(server, network)

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return all steps that a round can have.

        They are ``fit``, in which participants train, and ``refine``, in which the server trains the student.
        """
        return (
            RoundStep("fit", self.requests, self.train, self.aggregate_updates, updates=(MODEL_PREFIX,)),
            RoundStep("refine", aggregate=self.make_student),
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the steps of this round that follow the finished steps `done`.

        They are ``fit`` and, in the last round, ``refine``.
        """
        names = ("fit", "refine") if self.refines(server) else ("fit",)
        return [ScheduledStep(name) for name in names[len(done) :]]

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train for this round's participants.

        Each contains the body of the site's cluster and the server's classifier for it.
        """
        self.initialise_clusters(server)
        chosen = sample_sites(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        lent = {
            network: select(server.state.tensors, f"{CLUSTER_PREFIX}{network}/") for network in cluster_networks(server)
        }
        return [Request(name, "fit", lent[server.network_of(name)]) for name in chosen]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Add the mean update of each cluster's sites to its body, and train the server's classifier for the body.

        If the run had ended and was extended, delete the student and the report data of the earlier end.
        """
        state = server.state
        for name in [name for name in state.tensors if name.startswith((STUDENT_PREFIX, FINDINGS_PREFIX))]:
            del state.tensors[name]  # left over if the run had ended and was extended
        for network in cluster_networks(server):
            metas = {name: meta for name, meta in replies.meta.items() if server.network_of(name) == network}
            if metas:
                weights = normalised_weights({name: self.weight(meta) for name, meta in metas.items()}, metas)
                for name, update in mean_update(replies, weights, "").items():
                    key = f"{CLUSTER_PREFIX}{network}/{name}"
                    state.tensors[key] = add_update(state.tensors[key], update)
                self.update_classifier(server, network)

    def refines(self, server: Server) -> bool:
        """Return whether the student is trained in this round."""
        return self.refine is not None and server.round >= server.settings.rounds

    def update_classifier(self, server: Server, network: str) -> None:
        """Train the server's classifier of a cluster on public data with the body frozen.

        Do nothing unless `server_classifier` is ``proxy``.
        """
        if self.server_classifier == "proxy":
            learned = train_classifier(server, network, self.teacher(server, network), self.server_epochs)
            server.state.tensors |= prefixed(learned, f"{CLUSTER_PREFIX}{network}/{TEACHER_PREFIX}")

    def make_student(self, server: Server, replies: Replies) -> None:
        """Train the student on public data, and store it with the report data in the server's state."""
        assert self.refine is not None
        teachers = {network: self.teacher(server, network) for network in cluster_networks(server)}
        student, findings = make_student(server, self.refine, teachers)
        server.state.tensors |= prefixed(student, STUDENT_PREFIX) | prefixed(findings.tensors, FINDINGS_PREFIX)
        server.state.meta["findings"] = findings.meta

    def teacher(self, participant: Server | Site, network: str, lent: Tensors | None = None) -> SplitNetwork:
        """Return the teacher network of a cluster: the cluster's body with the server's classifier.

        Args:
            participant: Server or site that needs the teacher.
            network: Name of the cluster's network.
            lent: Tensors of body and classifier that a site received from the server; None uses the server's state.
        """
        lent = select(participant.state.tensors, f"{CLUSTER_PREFIX}{network}/") if lent is None else lent
        body, classifier = select(lent, MODEL_PREFIX), select(lent, TEACHER_PREFIX)
        return assemble_teacher(
            participant.task, network, self.server_classifier, body, classifier, participant.settings.seed
        )

    def student(self, participant: Server | Site) -> str:
        """Return the name of the student's network."""
        return (self.refine and self.refine.student) or participant.task.network

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that the server sends to all sites for evaluation: the student's, once it exists."""
        return {name: tensor for name, tensor in server.state.tensors.items() if name.startswith(STUDENT_PREFIX)}

    def findings(self, server: Server) -> Findings:
        """Return the report data on the teachers: Shapley values, weights and SHAP values."""
        return Findings(server.state.meta.get("findings", {}), select(server.state.tensors, FINDINGS_PREFIX))

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Execute the step ``fit``: train and store a site's model, and return the update of the body.

        With ``server_classifier = average`` the reply also contains the change of the classifier.
        """
        reply = super().train(site, request)
        site.state.tensors = reply.trained["personal"].tensors
        if self.server_classifier == "average":
            reply.tensors |= self.classifier_update(site, site.state.tensors, select(request.tensors, TEACHER_PREFIX))
        return reply

    def trainings(self, site: Site) -> Sequence[Training]:
        """Return the training phases of a site in a round.

        The first phase trains the whole model. The second, if `head_share` gives it any epochs or steps, trains the
        classifier alone with frozen batch norm.
        """
        head, rest = TrainingBudget.of(site.settings).split(self.head_share)
        whole = Training(budget=rest)
        return (whole, Training(HEAD_TRAINING, head, frozen_norms=True)) if head.total else (whole,)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """Prepare objects that all training phases share: the key ``teacher`` with this round's teacher if lam > 0.

        Args:
            site: Site that trains.
            sent: Tensors of the request.
        """
        return {"teacher": Teacher(self.teacher(site, site.network, sent), site)} if self.lam else {}

    def start(self, site: Site, received: Tensors) -> Tensors:
        """Return the tensors with which a site starts to train in this round.

        They are the site's own model, whose body has the received values in the coordinates that are not personal.

        Args:
            site: Site with its stored model and its training images.
            received: Body of the cluster.
        """
        own = site.state.tensors
        if not own:
            return site.task.initial(site.settings.seed, site.network) | received
        model = site.task.load(own, site.network)
        names = [name for name, _ in model.named_parameters() if name in received]
        rows = torch.randperm(len(site.train), generator=site.rng("fisher"))[: self.fisher_samples]
        if self.personal_share in (0.0, 1.0):  # the mask does not depend on the information
            information = {name: torch.zeros_like(own[name]) for name in names}
        else:
            images, labels = (part.to(site.task.device) for part in site.train.batch(rows))
            information = fisher(model, names, images, labels, self.estimator, site.settings.batch_size)
        personal, _ = split_mask(information, self.personal_share)
        mixed = {name: torch.where(personal[name].cpu(), own[name], received[name]) for name in names}
        return own | received | mixed

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training phase: freeze the body in the phase that trains only the classifier."""
        if fit.training.label == HEAD_TRAINING:
            body_and_head(fit.model)[0].requires_grad_(False)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch: (1 - lam) times the task's loss plus lam times the distillation loss."""
        if "teacher" not in fit.extra:
            return fit.task_loss(batch)
        logits = fit.model(batch.images)
        taught = distillation(logits.float(), fit.extra["teacher"](batch), self.tau).mean()
        return (1 - self.lam) * fit.site.task.loss(logits, batch.targets) + self.lam * taught

    def classifier_update(self, site: Site, own: Tensors, received: Tensors) -> Tensors:
        """Return the difference between the site's classifier and the server's, named for a message.

        Args:
            site: Site with the network.
            own: Tensors of the site's model.
            received: Tensors of the server's classifier.
        """
        path = head_prefix(site.task.build(site.network), site.network)
        return prefixed({name: tensor - received[name] for name, tensor in select(own, path).items()}, TEACHER_PREFIX)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant that are evaluated and exported, by kind.

        ``personal``: the model of a site. ``global``: the student, once it exists.
        """
        published = participant.state.tensors if isinstance(participant, Server) else participant.published
        student = select(published, STUDENT_PREFIX)
        models = {"global": Model(self.student(participant), student)} if student else {}
        if isinstance(participant, Site):
            own = participant.state.tensors or participant.task.initial(participant.settings.seed, participant.network)
            models["personal"] = Model(participant.network, own)
        return models


def cluster_networks(server: Server) -> list[str]:
    """Return the names of the networks of sites with training data, sorted. Each network has one cluster."""
    return sorted({server.network_of(name) for name in server.trainable()})
