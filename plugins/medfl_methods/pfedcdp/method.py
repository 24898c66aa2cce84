"""PFedCDP."""

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
from medfl.networks.parts import Split, body_and_head, features_of, head_path, without_head
from medfl.privacy.policy import policy_of
from medfl.toolkit.aggregation import add_update, mean_update, normalised, sample
from medfl.toolkit.averaging import Averaging, refuse_noisy_statistics
from medfl.toolkit.fisher import Estimator, fisher, split_mask
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import distillation
from medfl.toolkit.rounds import Due, Step
from medfl.toolkit.teacher import Teacher
from medfl.toolkit.trainings import Budget, Training
from medfl.training.loop import Batch
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.wire import prefixed, select
from medfl_methods.pfedcdp.explanations import check_installed
from medfl_methods.pfedcdp.refinement import Refinement
from medfl_methods.pfedcdp.server_classifier import assemble, check_statistics, first, learn, weighing_rows
from medfl_methods.pfedcdp.student import make_student, warn_of_equal_views

CLUSTER = "cluster/"
TEACHER = "teacher/"
STUDENT = "student/"
FINDINGS = "findings/"

HEAD = "head"
"""The label of the training of the classifier alone."""


class PFedCDP(Averaging):
    """Clusters of sites with one network each average their bodies; classifiers stay at home; one student of all.

    Sites of one network are a cluster; the network assignment ``machine_clusters`` forms clusters by the sites'
    machines. In each round a site gets its cluster's body and the server's classifier for it. It keeps, of its own
    body, the share of coordinates with the largest Fisher information on its images, and takes the others from the
    cluster; the first time it takes all. Then it trains: first all of its model, then its classifier alone. Both
    minimise (1 - lam) CE + lam tau^2 KL(teacher || model), where the teacher is the cluster's body with the server's
    classifier. The body's change, from what was received, goes to the server, which adds each cluster's mean. After the
    last round the clusters' models teach one student on public data (`medfl_methods.pfedcdp.refinement`), which is the
    run's global model. Its contrastive loss compares two random views of each image: the task's ``views``, or its
    ``augmentation``.

    The server's classifier is trained on public data, before the first round and after each, with the cluster's body as
    it is; the paper doesn't say how it comes about. Public data are the server's: no site sees them.

    With ``head_share = 1`` the body is never trained (the paper's algorithm 1, read literally): the clusters' bodies
    keep their initial values for ever. With ``personal_share = 1``, ``head_share = 0`` and ``lam = 0`` this is `local`
    as long as all sites take part and networks have no batch norm.

    Sites of the released code take over all of the received body and hear a teacher whose classifier is random:
    ``personal_share = 0``, ``head_share = 0``, ``server_classifier = random``. There is no preset of that code: its
    versions contradict each other, it scores other models, and its student has terms and faults that are not here.

    When to use it: Where sites have machines of unlike strength and the server has public images of the same task.
    Compare it with `local` and, at one network, with `fedavg`. Under site-level privacy a site's single update is to be
    hidden among few others, so expect little more than chance; the report prints what is promised.

    Attributes:
        lam: Weight of the distillation from the server's model, in [0, 1].
        tau: Its temperature, > 0.
        personal_share: Share of the body's coordinates that stay personal, in [0, 1].
        fisher_samples: Training images, drawn anew each round, from which Fisher information is estimated, >= 1.
        estimator: ``per_sample`` squares each image's gradient; ``per_batch`` that of each batch, as the released code.
        head_share: Share of a round's epochs (or steps) in which the classifier alone is trained, in [0, 1]; below 1 at
            least one is left for the whole model.
        server_classifier: ``proxy`` trains it on public data; ``average`` adds the mean change of the sites' own
            classifiers, which then leave the sites; ``random`` leaves it as it began, as the released code; ``none``
            has none, which needs ``lam = 0`` and no refinement.
        server_epochs: Passes over the public data each time that the server's classifier is trained, >= 1.
        refine: How the student is made; None makes none.

    Source: Shadin, Zhang, Wang, Pan: Heterogeneity-aware private personalized federated learning for medical imaging
    via contrastive distillation, algorithms 1 and 2, equations 3 to 19; clip, noise and bits are settings of the run.
    """

    name = "pfedcdp"
    family = "averaging"
    paper = "Shadin, Zhang, Wang, Pan"
    summary = "clusters of unlike networks share Fisher-masked bodies; their models teach one student"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head", "public_data", "soft_targets"})
    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", TEACHER: "update"}
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
    def _has_a_teacher(self) -> PFedCDP:
        if self.server_classifier == "none" and (self.lam > 0 or self.refine is not None):
            raise ValueError("without a server classifier nobody teaches: expected lam = 0 and refine = null")
        return self

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """The body's tensors."""
        return without_head(model, super().shared(model, norm_sync))

    # ---- the server

    def setup(self, server: Server) -> None:
        """Each cluster's first body, and the server's classifier for it."""
        if self.refine is not None:
            warn_of_equal_views(server, self.refine)
            if self.refine.explain or self.refine.teachers == "literal":
                check_installed()
            features_of(server.task.build(self.student(server)), self.student(server))
            if self.refine.teachers == "shapley" and not len(weighing_rows(server)):
                raise SettingsError(
                    "too_few_images",
                    "Shapley values weigh teachers by public images that no classifier was trained on: expected public "
                    "data with two images of a class, got none. Give more, or set refine.teachers to 'equal'.",
                    setting="refine.teachers",
                    minimum=2,
                )
        self.begin_clusters(server)

    def begin_clusters(self, server: Server) -> None:
        """The clusters that are not there yet: all at the start, and later that of a site which brings a network."""
        for network in networks(server):
            if select(server.state.tensors, f"{CLUSTER}{network}/"):
                continue
            classifier = first(server.task, network, self.server_classifier, server.settings.seed)
            tensors = server.task.initial(server.settings.seed, network)
            model = server.task.load(tensors, network)
            names = self.shared(model, server.settings.norm_sync)
            if policy_of(server.settings).is_private:
                refuse_noisy_statistics(model, names)
            if self.server_classifier != "none":
                check_statistics(model, network, names)
            server.state.tensors |= prefixed({name: tensors[name] for name in names}, f"{CLUSTER}{network}/{MODEL}")
            server.state.tensors |= prefixed(classifier, f"{CLUSTER}{network}/{TEACHER}")
            self.teach_classifier(server, network)

    def round_steps(self) -> tuple[Step, ...]:
        """Participants train; the server alone makes the student."""
        return (
            Step("fit", self.requests, self.train, self.aggregate_updates, updates=(MODEL,)),
            Step("refine", aggregate=self.make_student),
        )

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """The student is made after the last round's training."""
        names = ("fit", "refine") if self.refines(server) else ("fit",)
        return [Due(name) for name in names[len(done) :]]

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants, each with its cluster's body and classifier."""
        self.begin_clusters(server)
        chosen = sample(server.trainable(), server.settings.fraction, server.shared_rng("participation"))
        lent = {network: select(server.state.tensors, f"{CLUSTER}{network}/") for network in networks(server)}
        return [Request(name, "fit", lent[server.network_of(name)]) for name in chosen]

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The mean update of each cluster, and the server's classifier for its new body."""
        state = server.state
        for name in [name for name in state.tensors if name.startswith((STUDENT, FINDINGS))]:
            del state.tensors[name]  # of a run that had ended and goes on
        for network in networks(server):
            metas = {name: meta for name, meta in replies.meta.items() if server.network_of(name) == network}
            if metas:
                weights = normalised({name: self.weight(meta) for name, meta in metas.items()}, metas)
                for name, update in mean_update(replies, weights, "").items():
                    key = f"{CLUSTER}{network}/{name}"
                    state.tensors[key] = add_update(state.tensors[key], update)
                self.teach_classifier(server, network)

    def refines(self, server: Server) -> bool:
        """Whether the student is made in this round."""
        return self.refine is not None and server.round >= server.settings.rounds

    def teach_classifier(self, server: Server, network: str) -> None:
        """Train the server's classifier for a cluster on public data, with the body as it is."""
        if self.server_classifier == "proxy":
            learned = learn(server, network, self.teacher(server, network), self.server_epochs)
            server.state.tensors |= prefixed(learned, f"{CLUSTER}{network}/{TEACHER}")

    def make_student(self, server: Server, replies: Replies) -> None:
        """Train the student on public data."""
        assert self.refine is not None
        teachers = {network: self.teacher(server, network) for network in networks(server)}
        student, findings = make_student(server, self.refine, teachers)
        server.state.tensors |= prefixed(student, STUDENT) | prefixed(findings.tensors, FINDINGS)
        server.state.meta["findings"] = findings.meta

    def teacher(self, participant: Server | Site, network: str, lent: Tensors | None = None) -> Split:
        """A cluster's body with the server's classifier, as the server has them or as a site got them."""
        lent = select(participant.state.tensors, f"{CLUSTER}{network}/") if lent is None else lent
        body, classifier = select(lent, MODEL), select(lent, TEACHER)
        return assemble(participant.task, network, self.server_classifier, body, classifier, participant.settings.seed)

    def student(self, participant: Server | Site) -> str:
        """Name of the student's network."""
        return (self.refine and self.refine.student) or participant.task.network

    def publish(self, server: Server) -> Tensors:
        """The student, once there is one."""
        return {name: tensor for name, tensor in server.state.tensors.items() if name.startswith(STUDENT)}

    def findings(self, server: Server) -> Findings:
        """What the teachers are worth, and what they look at."""
        return Findings(server.state.meta.get("findings", {}), select(server.state.tensors, FINDINGS))

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """As in `Averaging`, with classifiers where these are averaged; the site keeps all of its model."""
        reply = super().train(site, request)
        site.state.tensors = reply.trained["personal"].tensors
        if self.server_classifier == "average":
            reply.tensors |= self.classifier_update(site, site.state.tensors, select(request.tensors, TEACHER))
        return reply

    def trainings(self, site: Site) -> Sequence[Training]:
        """The whole model's and, if it has a share, the classifier's alone, in which batch norm stays as it is."""
        head, rest = Budget.of(site.settings).split(self.head_share)
        whole = Training(budget=rest)
        return (whole, Training(HEAD, head, frozen_norms=True)) if head.total else (whole,)

    def before_trainings(self, site: Site, sent: Tensors) -> dict[str, Any]:
        """The teacher, if there is one."""
        return {"teacher": Teacher(self.teacher(site, site.network, sent), site)} if self.lam else {}

    def start(self, site: Site, received: Tensors) -> Tensors:
        """The own model with those coordinates of the received body that are not personal."""
        own = site.state.tensors
        if not own:
            return site.task.initial(site.settings.seed, site.network) | received
        model = site.task.load(own, site.network)
        names = [name for name, _ in model.named_parameters() if name in received]
        rows = torch.randperm(len(site.train), generator=site.rng("fisher"))[: self.fisher_samples]
        if self.personal_share in (0.0, 1.0):  # nothing hangs on the information
            information = {name: torch.zeros_like(own[name]) for name in names}
        else:
            images, labels = (part.to(site.task.device) for part in site.train.batch(rows))
            information = fisher(model, names, images, labels, self.estimator, site.settings.batch_size)
        personal, _ = split_mask(information, self.personal_share)
        mixed = {name: torch.where(personal[name].cpu(), own[name], received[name]) for name in names}
        return own | received | mixed

    def before_fit(self, fit: Fit) -> None:
        """Freeze the body where the classifier is trained alone."""
        if fit.training.label == HEAD:
            body_and_head(fit.model)[0].requires_grad_(False)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """(1 - lam) times the task's loss plus lam times the distillation term."""
        if "teacher" not in fit.extra:
            return super().loss(fit, batch)
        logits = fit.model(batch.images)
        taught = distillation(logits.float(), fit.extra["teacher"](batch), self.tau).mean()
        return (1 - self.lam) * fit.site.task.loss(logits, batch.targets) + self.lam * taught

    def classifier_update(self, site: Site, own: Tensors, received: Tensors) -> Tensors:
        """The own classifier less the server's, by the classifier's own names."""
        path = head_path(site.task.build(site.network), site.network)
        return prefixed({name: tensor - received[name] for name, tensor in select(own, path).items()}, TEACHER)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """A personal model at each site; once it is there, the student as the global one."""
        published = participant.state.tensors if isinstance(participant, Server) else participant.published
        student = select(published, STUDENT)
        models = {"global": Model(self.student(participant), student)} if student else {}
        if isinstance(participant, Site):
            own = participant.state.tensors or participant.task.initial(participant.settings.seed, participant.network)
            models["personal"] = Model(participant.network, own)
        return models


def networks(server: Server) -> list[str]:
    """The networks of the sites that have training data, one for each cluster, sorted."""
    return sorted({server.network_of(name) for name in server.trainable()})
