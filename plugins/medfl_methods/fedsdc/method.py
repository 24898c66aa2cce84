"""FedSDC as a method class: assignment of heads to sites, training, evaluation of heads, and the voting model.

The head of a network is its classifier; the body is the rest. A step is one exchange of requests and replies; a round
has one or more steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from medfl.contract import Findings, Model, Need, Participant, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.errors import RefusedError, SettingsError
from medfl.networks.heads import Activation, HeadKind, draw_head_widths, head_kind, initialise_xavier, make_head
from medfl.networks.parts import body_and_head, feature_count, head_prefix, names_without_head
from medfl.privacy.policy import policy_of
from medfl.settings import participant_count
from medfl.task import Task
from medfl.toolkit.aggregation import add_update, check_updates, sample_sites
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.participant_state import model_tensors
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.toolkit.server_optimizer import momentum_step
from medfl.types import MODEL_PREFIX, Meta, Tensors
from medfl.utils.metadata import Count, MetaField
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsdc.head_evaluation import (
    HeadEvaluation,
    count_ensemble_heads,
    evaluate_heads,
    head_probabilities,
    rank_heads,
    sum_counts,
)
from medfl_methods.fedsdc.head_pool import (
    HEADS_PREFIX,
    ensemble_head_config,
    group_by_head,
    hidden_width,
    pool_heads,
    published_tensors,
    single_head_config,
    slot_prefix,
    with_new_head,
)

HEAD_PREFIX = "head/"
"""Prefix of the tensor names of the trained head in a site's reply."""


class FedSDC(Averaging):
    """Sites train a shared body, each with one head of a pool of different heads; the heads then vote.

    With ``gamma`` below 1 (FedSDC+) only the best ceil(gamma H) of the H heads vote, ranked by their accuracy on the
    union of the sites' validation images. With one participant in a round, ``beta = 0`` and ``diversity = false``, the
    training equals `fedavg` with this participant. With ``beta = 0``, ``diversity = false`` and ``shuffle = false`` it
    equals `fedper`.

    Update rule:
        The pool has as many heads as sites take part in a round, and the server reassigns them to the sites in each
        round. A site trains the body with its assigned head on the task's loss, and returns the updates of both. The
        server updates the body w with momentum and adds each head's update to that head:

            v <- beta v + mean update
            w <- w + v
            head_j <- head_j + update from the site that trained head j

        where v is the momentum, of the shape of w. The heads vote on the shared body; the sum of their probabilities
        decides between tied classes. This voting model is the run's global model and the model that every site exports.
        At the end, sites with validation images count how often each head is right, how often each two heads agree, and
        how often the best heads together are right. A run with a privacy setting skips this evaluation.

    When to use it: Use it if the classes are distributed differently over sites, so that one classifier would be pulled
    in opposite directions. It needs a body that suits all heads, and has no advantage if the sites are similar.

    Attributes:
        beta: Momentum of the body at the server, in [0, 1). With 0 the server aggregates the body as in FedAvg.
        diversity: Whether heads have two linear layers, with a different hidden width for each head. Otherwise all
            heads have the form of the network's own head and start from its initial tensors.
        shuffle: Whether heads are reassigned in each round; otherwise each site with training images keeps its own
            head.
        rho: Smallest and largest hidden width of the heads, as a fraction of the body's number of features, in (0, 1].
        dropout: Dropout rate between the two layers of a head, in [0, 1).
        head_activation: Activation between the two layers of a head: ``none``, as in the paper, or ``relu``.
        gamma: Fraction of the heads that form the ensemble, in (0, 1]; their number is rounded up.
        ensemble: Combination of the heads: ``vote``; ``prob_mean``, the largest mean probability; or ``single_best``,
            only the best head.
        select_on: Images on which heads are ranked if not all of them vote: ``validation`` or ``training``.
        heads: Expected number of heads. The run is refused if it differs from the number of participants in a round;
            None omits this check.

    Source: Gao, Lan, Liu, Wang, Fan: Shuffle-Diversity Collaborative Federated Learning for Imbalanced Medical Image
    Analysis, MICCAI 2025, algorithm 1 and equations 3 to 7; its released code for widths and dropout.
    """

    name = "fedsdc"
    family = "averaging"
    paper = "Gao et al., MICCAI 2025"
    summary = "one shared body and different heads that vote; the server reassigns the heads in each round"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})
    """Properties that the task, its data and its networks must have for this method."""
    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL_PREFIX: "update", HEAD_PREFIX: "update"}
    """Tensors in a site's reply: mapping from each name prefix to the kind of payload, such as an update."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "evaluation": MetaField("private", HeadEvaluation, after=("evaluate",)),
    }
    """Metadata in a site's reply: mapping from each key to its type and to whether the value is private."""
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {},
        "code": {"gamma": 0.3, "select_on": "training"},  # the released code ranks heads by balanced accuracy
        "medfl": {},
    }

    beta: float = Field(0.5, ge=0, lt=1)
    diversity: bool = True
    shuffle: bool = True
    rho: tuple[float, float] = (0.4, 1.0)
    dropout: float = Field(0.2, ge=0, lt=1)
    head_activation: Activation = "none"
    gamma: float = Field(1.0, gt=0, le=1)
    ensemble: Literal["vote", "prob_mean", "single_best"] = "vote"
    select_on: Literal["validation", "training"] = "validation"
    heads: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_rho(self) -> FedSDC:
        """Raise if `rho` is not an increasing range in (0, 1]."""
        if not 0 < self.rho[0] <= self.rho[1] <= 1:
            raise ValueError(
                f"expected rho = [smallest, largest] with 0 < smallest <= largest <= 1, got {list(self.rho)}"
            )
        return self

    # ---- the server

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the body's tensors, which all sites share.

        Args:
            model: Network.
            norm_sync: The run's setting for normalisation layers, which decides which of their tensors are shared.
        """
        return names_without_head(model, super().shared_names(model, norm_sync))

    def setup(self, server: Server) -> None:
        """Initialise the body and the pool of heads in the server's state.

        Raises:
            SettingsError: If `heads` has a wrong value, or heads cannot be ranked with these settings.
        """
        super().setup(server)
        count = participant_count(len(server.trainable()), server.settings.fraction if self.shuffle else 1.0)
        if self.heads not in (None, count):
            raise SettingsError(
                "setting_out_of_range",
                f"FedSDC has as many heads as sites take part in a round: expected heads = {count}, got {self.heads}. "
                "Omit 'heads', or change the number of sites or 'fraction'.",
                setting="heads",
                expected=count,
                found=self.heads,
            )
        if self.selects_heads:
            self.check_head_selection(server)
        for slot, head in enumerate(self.initial_heads(server, count)):
            server.state.tensors |= prefixed(head, slot_prefix(slot))

    def initial_heads(self, server: Server, count: int) -> list[Tensors]:
        """Return the initial tensors of `count` heads.

        They depend on the seed, the network and the position in the pool.
        """
        task, network, seed = server.task, server.task.network, server.settings.seed
        model, heads = task.build(network), list[Tensors]()
        features = feature_count(model, network)
        if not self.diversity:
            head_kind(body_and_head(model)[1])
            return [select(task.initial(seed, network), head_prefix(model, network))] * count
        for slot, width in enumerate(draw_head_widths(count, features, *self.rho, server.rng("widths"))):
            with seeded_generators(seed, "initial head", network, str(slot)):
                head = initialise_xavier(make_head(features, width, task.objective.outputs))
            heads.append({name: tensor.detach().clone() for name, tensor in head.state_dict().items()})
        return heads

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return all steps that a round can have.

        They are ``fit``, in which participants train, and ``evaluate``, in which sites evaluate all heads.
        """
        return (
            RoundStep("fit", self.requests, self.train, self.aggregate_updates),
            RoundStep(
                "evaluate",
                self.evaluation_requests,
                self.evaluate_pool,
                self.aggregate_evaluations,
                quorum=int(self.selects_heads),
            ),
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the steps of this round that follow the finished steps `done`.

        A round has one step ``fit`` and zero to two steps ``evaluate``.
        """
        return [
            ScheduledStep("fit"),
            *(ScheduledStep("evaluate", turn) for turn in range(self.evaluation_count(server))),
        ][len(done) :]

    def requests(self, server: Server) -> list[Request]:
        """Return the requests to train for this round's participants, each with the body and the assigned head."""
        path = MODEL_PREFIX + head_prefix(server.task.build(), server.task.network)
        body, heads, assigned = (
            prefixed(model_tensors(server), MODEL_PREFIX),
            pool_heads(server),
            self.assign_heads(server).items(),
        )
        return [Request(name, "fit", body | prefixed(heads[slot], path), {"head": path}) for name, slot in assigned]

    def evaluation_requests(self, server: Server) -> list[Request]:
        """Return the requests to evaluate all heads, for the sites that have images for it."""
        slots = range(len(pool_heads(server)))
        tensors, meta = (
            published_tensors(server, slots),
            {"ranking": server.state.meta.get("ranking"), "heads": len(slots)},
        )
        return [Request(name, "evaluate", tensors, meta) for name in self.evaluating_sites(server)]

    def assign_heads(self, server: Server) -> dict[str, int]:
        """Return this round's assignment: a mapping from participant to the number of the head that it trains."""
        sites = server.trainable()
        chosen = sample_sites(sites, server.settings.fraction, server.shared_rng("participation"))
        if not self.shuffle:
            return {name: sites.index(name) for name in chosen}
        return dict(zip(chosen, torch.randperm(len(chosen), generator=server.rng("heads")).tolist(), strict=True))

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Raise if a reply has unexpected tensors.

        Only a reply to ``fit`` contains updates, of the body and of the assigned head.

        Raises:
            RefusedError: If the tensors do not fit the request.
        """
        path = request.meta.get("head", HEAD_PREFIX)
        heads = prefixed(select(tensors, HEAD_PREFIX), path)
        if bool(heads) != (request.op == "fit"):
            raise RefusedError(
                "unexpected_tensors",
                "Expected the update of a head in replies to 'fit' only and in each of them, got a reply to "
                f"'{request.op}'.",
                op=request.op,
            )
        body = {name: tensor for name, tensor in tensors.items() if not name.startswith((path, HEAD_PREFIX))}
        check_updates(body | heads, request.tensors, self.sends, self.sends if request.op == "fit" else ())

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Update the body (with momentum) and each returned head at the server, and record unavailable sites."""
        self.average(server, replies)
        heads, assigned = pool_heads(server), self.assign_heads(server)
        for name, tensors in replies:
            change, slot = select(tensors, HEAD_PREFIX), assigned[name]
            new = {part: add_update(tensor, change[part].double()) for part, tensor in heads[slot].items()}
            server.state.tensors |= prefixed(new, slot_prefix(slot))
        if replies.missing:
            server.state.meta.setdefault("unavailable", {})[str(server.round)] = list(replies.missing)

    def aggregate_evaluations(self, server: Server, replies: Replies) -> None:
        """Store the results of a step ``evaluate`` in the server's state.

        They are the ranking of the heads and, after the second evaluation, how often the best heads together were
        right.
        """
        if len(replies):
            counts, first = (
                sum_counts(reply["evaluation"] for reply in replies.meta.values()),
                self.current_step(server).turn == 0,
            )
            server.state.meta |= {"ranking": rank_heads(counts["right"])} if first else {"evaluation": counts}

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the server's new body after a step with momentum.

        Args:
            server: Server with the momentum in its state.
            old: Tensors of the body before the step.
            mean: Mean update of the body.
        """
        return momentum_step(server, old, mean, server.state.meta["parameters"], self.beta)

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that the server sends to all sites for evaluation: the body and the ensemble's heads."""
        return published_tensors(server, self.ensemble_heads(server))

    # ---- the ensemble

    @property
    def selects_heads(self) -> bool:
        """True if only some heads form the ensemble."""
        return self.gamma < 1 or self.ensemble == "single_best"

    def evaluating_sites(self, server: Server) -> list[str]:
        """Return the names of the sites that evaluate heads."""
        if self.select_on == "training":
            return server.trainable()
        return [name for name in server.sites if server.site_info.get(name, {}).get("validates")]

    def evaluation_count(self, server: Server) -> int:
        """Return how often heads are evaluated in this round.

        They are evaluated once to rank them and, in the last round, again for the votes by rank.
        """
        discloses_counts = policy_of(server.settings).discloses_metadata("private")
        if (
            not discloses_counts
            or not self.evaluating_sites(server)
            or not server.settings.is_evaluated_after(server.round)
        ):
            return 0
        return 2 if server.round >= server.settings.rounds else int(self.selects_heads)

    def check_head_selection(self, server: Server) -> None:
        """Raise if the settings select heads, but no site may evaluate heads or no site has images for it."""
        if not policy_of(server.settings).discloses_metadata("private"):
            raise SettingsError(
                "incompatible_settings",
                "FedSDC ranks heads by counts from the sites (gamma below 1, or ensemble 'single_best'), which they do "
                "not send under a privacy setting. Set gamma to 1 and ensemble to 'vote' or 'prob_mean'.",
                settings=("gamma", "ensemble", "privacy"),
                method="fedsdc",
            )
        if not self.evaluating_sites(server):
            raise SettingsError(
                "no_images",
                "FedSDC ranks heads on validation images (gamma below 1, or ensemble 'single_best'), but no site has "
                "any. Partition with --val-fraction 0.1, or set select_on to 'training'.",
                method="fedsdc",
                split="val",
            )

    def ensemble_heads(self, server: Server) -> list[int]:
        """Return the numbers of the heads that form the ensemble; all heads before the first ranking."""
        count, ranking = len(pool_heads(server)), server.state.meta.get("ranking")
        if not self.selects_heads or ranking is None:
            return list(range(count))
        return sorted(ranking[: 1 if self.ensemble == "single_best" else count_ensemble_heads(self.gamma, count)])

    def findings(self, server: Server) -> Findings:
        """Return the findings (report data) of a run.

        They are the number of the head of each site in each round (-1: none), and the evaluation of the heads.
        """
        held = torch.full((server.rounds_done, len(server.sites)), -1, dtype=torch.int16)
        for round_ in range(1, server.rounds_done + 1):
            unavailable = server.state.meta.get("unavailable", {}).get(str(round_), [])
            for name, slot in self.assign_heads(replace(server, round=round_)).items():
                held[round_ - 1, server.sites.index(name)] = -1 if name in unavailable else slot
        heads: Meta = {name: server.state.meta[name] for name in ("evaluation", "ranking") if name in server.state.meta}
        heads |= {
            "widths": [hidden_width(head) for head in pool_heads(server)],
            "ensemble_heads": self.ensemble_heads(server),
        }
        return Findings({"heads": heads | {"sites": server.sites, "evaluated_on": self.select_on}}, {"held": held})

    # ---- a site

    def evaluate_pool(self, site: Site, request: Request) -> Reply:
        """Execute the step ``evaluate``: evaluate all heads on the site's images, and return the counts.

        They are the counts of images, correct predictions and agreements from `evaluate_heads`.
        """
        data = site.val if self.select_on == "validation" else site.train
        assert data is not None
        voting_model = self.voting_model(site, request.tensors, site.task.build())
        predicted = head_probabilities(self.predictor(site.task, [voting_model]), data, site)
        return Reply(
            meta={
                "evaluation": evaluate_heads(
                    predicted, labels_of(data), request.meta["ranking"], self.ensemble != "prob_mean"
                )
            }
        )

    def train(self, site: Site, request: Request) -> Reply:
        """Execute the step ``fit``: train the body and the assigned head at a site, and return the updates of both."""
        with torch.random.fork_rng(devices=[]):  # building networks must not change the random stream of the training
            model = site.task.build(site.network)
            path, features = MODEL_PREFIX + head_prefix(model, site.network), feature_count(model, site.network)
            head = single_head_config(
                self.head_kind(model, select(request.tensors, path)), features, site.task.objective.outputs
            )
        reply = super().train(replace(site, task=with_new_head(site.task, site.network, head)), request)
        changes = select(reply.tensors, path)
        body = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith(path)}
        trained = {kind: Model(site.network, model.tensors, {"head": head}) for kind, model in reply.trained.items()}
        return replace(reply, tensors=body | prefixed(changes, HEAD_PREFIX), trained=trained)

    def head_kind(self, model: nn.Module, head: Tensors) -> HeadKind:
        """Return the kind (hidden width, dropout rate, activation) of a head with these tensors.

        Args:
            model: Network of the architecture that the head belongs to.
            head: Tensors of the head.
        """
        if not self.diversity:
            return head_kind(body_and_head(model)[1])
        return HeadKind(hidden_width(head), self.dropout, self.head_activation)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant that are evaluated and exported, by kind.

        The body with the heads of the ensemble is the ``global`` model. If normalisation layers stay at the sites, the
        server has no complete model, and the model of a site is personal.
        """
        model = participant.task.build()
        if isinstance(participant, Server):
            return (
                {"global": self.voting_model(participant, self.publish(participant), model)}
                if self.shares_whole_body(participant, model)
                else {}
            )
        kind = "global" if self.shares_whole_body(participant, model) else "personal"
        return {kind: self.voting_model(participant, participant.published, model)}

    def voting_model(self, participant: Server | Site, published: Tensors, model: nn.Module) -> Model:
        """Combine a body with the heads that were published with it to one model, whose heads vote.

        Args:
            participant: Server or site.
            published: Tensors of body and heads, as `publish` returns them.
            model: Network of the same architecture.
        """
        network = participant.task.network
        body, heads = select(published, MODEL_PREFIX), group_by_head(select(published, HEADS_PREFIX))
        if isinstance(participant, Site) and not self.shares_whole_body(participant, model):
            body = self.full_state(participant, body)
        path = head_prefix(model, network)
        tensors = {name: tensor for name, tensor in body.items() if not name.startswith(path)}
        for number, head in enumerate(heads):
            tensors |= prefixed(head, f"{path}heads.{number}.")
        kinds, features = [self.head_kind(model, head) for head in heads], feature_count(model, network)
        together: Literal["vote", "prob_mean"] = "prob_mean" if self.ensemble == "prob_mean" else "vote"
        return Model(
            network,
            tensors,
            {"head": ensemble_head_config(kinds, features, participant.task.objective.outputs, together)},
        )

    def shares_whole_body(self, participant: Participant, model: nn.Module) -> bool:
        """Return whether the sites share the whole body of a network like `model`, with normalisation layers."""
        return self.shared_names(model, participant.settings.norm_sync) == self.shared_names(model, "all")

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the configuration with which a bundle builds the network of a model, with the model's heads.

        Args:
            model: Model with heads, from `voting_model`.
            network_def: Configuration of the task's network.
        """
        head = model.meta["head"]
        return {"_target_": "medfl.networks.parts.replace_head", "network": network_def, "head": head}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return a network that predicts with a model: the task's network with the model's heads."""
        return super().predictor(with_new_head(task, models[0].network, models[0].meta["head"]), models)
