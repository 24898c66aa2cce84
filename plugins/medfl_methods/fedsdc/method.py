"""FedSDC."""

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
from medfl.networks.heads import Activation, HeadKind, kind_of, make_head, unlike_widths, xavier
from medfl.networks.parts import body_and_head, features_of, head_path, without_head
from medfl.privacy.policy import policy_of
from medfl.settings import participants
from medfl.task import Task
from medfl.toolkit.aggregation import add_update, check_updates, sample
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.kept import shared_of
from medfl.toolkit.rounds import Due, Step
from medfl.toolkit.server_optimizer import momentum_step
from medfl.types import MODEL, Meta, Tensors
from medfl.utils.metadata import Count, MetaField
from medfl.utils.rng import pinned
from medfl.utils.wire import prefixed, select
from medfl_methods.fedsdc.heads import HEADS, grouped, headed, pool, published, several, single, slot_name, width_of
from medfl_methods.fedsdc.judgement import Judgement, judge, kept_count, opinions, rank, total

HEAD = "head/"
"""The head that a site trained, in its reply."""


class FedSDC(Averaging):
    """One body that all sites share, and many unlike heads that are dealt anew to the sites in each round.

    There are as many heads as participants in a round. A site trains the body with the head that it gets, by the task's
    loss, and sends back the changes of both. The server adds the mean change of the body with momentum, and each head's
    to that head. The heads vote on the shared body; tied classes go by the sum of probabilities. The vote is the run's
    global model, and what every site takes home. In the end sites with validation images count how often each head is
    right, each two agree, and the best ones together are right (``judged``), unless the run has a privacy setting.

    With ``gamma`` below 1 (FedSDC+) the best ceil(gamma H) of H heads vote, by their accuracy on the union of the
    sites' validation images. With one participant in a round, ``beta = 0`` and ``diversity = false`` this trains as
    `fedavg` does with that participant; with ``beta = 0``, ``diversity = false`` and ``shuffle = false`` as `fedper`.

    When to use it: Where sites hold unlike shares of the classes and one classifier would be pulled to and fro between
    them. It needs a body that serves all heads, and gains nothing where sites are alike.

    Attributes:
        beta: Momentum of the body at the server, in [0, 1). 0 makes its aggregation that of FedAvg.
        diversity: Whether heads have two linear layers, each of another width; otherwise all are like the network's
            own, and begin with its initial tensors.
        shuffle: Whether heads are dealt anew in each round; otherwise each site with training images has its own.
        rho: Smallest and largest width between the two layers, as a share of the body's features, in (0, 1].
        dropout: Between the two layers, in [0, 1).
        head_activation: ``none`` leaves the two layers linear as the paper does; ``relu`` stands between them.
        gamma: Share of the heads that answer, in (0, 1]; rounded up.
        ensemble: ``vote``; ``prob_mean`` for the largest mean probability; ``single_best`` for the best head alone.
        select_on: Where not all heads answer, what they are compared on: ``validation`` or ``training`` images.
        heads: Number of heads. It is that of the participants in a round, and any other is refused; None states none.

    Source: Gao, Lan, Liu, Wang, Fan: Shuffle-Diversity Collaborative Federated Learning for Imbalanced Medical Image
    Analysis, MICCAI 2025, algorithm 1 and equations 3 to 7; its released code for widths and dropout.
    """

    name = "fedsdc"
    family = "averaging"
    paper = "Gao et al., MICCAI 2025"
    summary = "one shared body, many unlike heads dealt anew to the sites in each round, which vote"
    supports = frozenset()

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})
    sends: ClassVar[Mapping[str, PayloadKind]] = {MODEL: "update", HEAD: "update"}
    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "judged": MetaField("private", Judgement, after=("judge",)),
    }
    presets: ClassVar[Mapping[str, Meta]] = {
        "paper": {},
        "code": {"gamma": 0.3, "select_on": "training"},  # where heads are compared by their balanced accuracy
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
    def _has_a_range(self) -> FedSDC:
        if not 0 < self.rho[0] <= self.rho[1] <= 1:
            raise ValueError(f"expected rho as 0 < smallest <= largest <= 1, got {list(self.rho)}")
        return self

    # ---- the server

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """The body's tensors."""
        return without_head(model, super().shared(model, norm_sync))

    def setup(self, server: Server) -> None:
        """The first body and the pool of heads."""
        super().setup(server)
        count = participants(len(server.trainable()), server.settings.fraction if self.shuffle else 1.0)
        if self.heads not in (None, count):
            raise SettingsError(
                "setting_out_of_range",
                f"FedSDC has as many heads as sites take part in a round: expected heads {count}, got {self.heads}. "
                "Leave 'heads' out, or change the number of sites or 'fraction'.",
                setting="heads",
                expected=count,
                found=self.heads,
            )
        if self.selects:
            self.check_choice(server)
        for slot, head in enumerate(self.first_heads(server, count)):
            server.state.tensors |= prefixed(head, slot_name(slot))

    def first_heads(self, server: Server, count: int) -> list[Tensors]:
        """The heads as they begin: functions of seed, network and place in the pool."""
        task, network, seed = server.task, server.task.network, server.settings.seed
        model, heads = task.build(network), list[Tensors]()
        features = features_of(model, network)
        if not self.diversity:
            kind_of(body_and_head(model)[1])
            return [select(task.initial(seed, network), head_path(model, network))] * count
        for slot, width in enumerate(unlike_widths(count, features, *self.rho, server.rng("widths"))):
            with pinned(seed, "initial head", network, str(slot)):
                head = xavier(make_head(features, width, task.objective.outputs))
            heads.append({name: tensor.detach().clone() for name, tensor in head.state_dict().items()})
        return heads

    def round_steps(self) -> tuple[Step, ...]:
        """Participants train with the heads dealt to them; sites judge all heads."""
        return (
            Step("fit", self.requests, self.train, self.aggregate_updates),
            Step("judge", self.judge_requests, self.judge_heads, self.note_judgement, quorum=int(self.selects)),
        )

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Heads are judged where that is due, once or twice."""
        return [Due("fit"), *(Due("judge", turn) for turn in range(self.judgements(server)))][len(done) :]

    def requests(self, server: Server) -> list[Request]:
        """To this round's participants, each with the body and a head."""
        path = MODEL + head_path(server.task.build(), server.task.network)
        body, heads, dealt = prefixed(shared_of(server), MODEL), pool(server), self.dealt(server).items()
        return [Request(name, "fit", body | prefixed(heads[slot], path), {"head": path}) for name, slot in dealt]

    def judge_requests(self, server: Server) -> list[Request]:
        """To those who compare heads, with all of them."""
        slots = range(len(pool(server)))
        tensors, meta = published(server, slots), {"ranking": server.state.meta.get("ranking"), "heads": len(slots)}
        return [Request(name, "judge", tensors, meta) for name in self.judges(server)]

    def dealt(self, server: Server) -> dict[str, int]:
        """Site to head of this round's participants."""
        sites = server.trainable()
        chosen = sample(sites, server.settings.fraction, server.shared_rng("participation"))
        if not self.shuffle:
            return {name: sites.index(name) for name in chosen}
        return dict(zip(chosen, torch.randperm(len(chosen), generator=server.rng("heads")).tolist(), strict=True))

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Updates of the body and of the head that was dealt, and nothing where heads are judged."""
        path = request.meta.get("head", HEAD)
        heads = prefixed(select(tensors, HEAD), path)
        if bool(heads) != (request.op == "fit"):
            raise RefusedError(
                "unexpected_tensors",
                f"Expected the update of a head in a reply to 'fit' and in no other, got '{request.op}'.",
                op=request.op,
            )
        body = {name: tensor for name, tensor in tensors.items() if not name.startswith((path, HEAD))}
        check_updates(body | heads, request.tensors, self.sends, self.sends if request.op == "fit" else ())

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """The body's step with momentum and each head's change."""
        self.average(server, replies)
        heads, dealt = pool(server), self.dealt(server)
        for name, tensors in replies:
            change, slot = select(tensors, HEAD), dealt[name]
            new = {part: add_update(tensor, change[part].double()) for part, tensor in heads[slot].items()}
            server.state.tensors |= prefixed(new, slot_name(slot))
        if replies.missing:
            server.state.meta.setdefault("away", {})[str(server.round)] = list(replies.missing)

    def note_judgement(self, server: Server, replies: Replies) -> None:
        """The ranking of the heads; the second time what the votes by that ranking are worth."""
        if len(replies):
            counts, first = total(reply["judged"] for reply in replies.meta.values()), self.due(server).turn == 0
            server.state.meta |= {"ranking": rank(counts["right"])} if first else {"judged": counts}

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """A step with momentum."""
        return momentum_step(server, old, mean, server.state.meta["parameters"], self.beta)

    def publish(self, server: Server) -> Tensors:
        """The body, and the heads that answer."""
        return published(server, self.kept(server))

    # ---- which heads answer

    @property
    def selects(self) -> bool:
        """Whether some heads may not answer."""
        return self.gamma < 1 or self.ensemble == "single_best"

    def judges(self, server: Server) -> list[str]:
        """The sites that compare heads."""
        if self.select_on == "training":
            return server.trainable()
        return [name for name in server.sites if server.site_info.get(name, {}).get("validates")]

    def judgements(self, server: Server) -> int:
        """How often heads are judged in this round: once to choose, and in the end again, for the votes by rank."""
        discloses_counts = policy_of(server.settings).discloses_metadata("private")
        if not discloses_counts or not self.judges(server) or not server.settings.due(server.round):
            return 0
        return 2 if server.round >= server.settings.rounds else int(self.selects)

    def check_choice(self, server: Server) -> None:
        """Refuse a choice among heads that nobody can make."""
        if not policy_of(server.settings).discloses_metadata("private"):
            raise SettingsError(
                "incompatible_settings",
                "FedSDC chooses heads by counts from the sites (gamma below 1, or ensemble 'single_best'), and these "
                "stay at home under a privacy setting. Set gamma to 1 and ensemble to 'vote' or 'prob_mean'.",
                settings=("gamma", "ensemble", "privacy"),
                method="fedsdc",
            )
        if not self.judges(server):
            raise SettingsError(
                "no_images",
                "FedSDC chooses heads on validation images (gamma below 1, or ensemble 'single_best'), and no site has "
                "any. Partition with --val-fraction 0.1, or set select_on to 'training'.",
                method="fedsdc",
                split="val",
            )

    def kept(self, server: Server) -> list[int]:
        """The heads that answer; all before they were judged."""
        count, ranking = len(pool(server)), server.state.meta.get("ranking")
        if not self.selects or ranking is None:
            return list(range(count))
        return sorted(ranking[: 1 if self.ensemble == "single_best" else kept_count(self.gamma, count)])

    def findings(self, server: Server) -> Findings:
        """Who trained which head when (-1: none), and what the sites found out about the heads in the end."""
        held = torch.full((server.rounds_done, len(server.sites)), -1, dtype=torch.int16)
        for round_ in range(1, server.rounds_done + 1):
            away = server.state.meta.get("away", {}).get(str(round_), [])
            for name, slot in self.dealt(replace(server, round=round_)).items():
                held[round_ - 1, server.sites.index(name)] = -1 if name in away else slot
        known: Meta = {name: server.state.meta[name] for name in ("judged", "ranking") if name in server.state.meta}
        known |= {"widths": [width_of(head) for head in pool(server)], "kept": self.kept(server)}
        return Findings({"heads": known | {"sites": server.sites, "judged_on": self.select_on}}, {"held": held})

    # ---- a site

    def judge_heads(self, site: Site, request: Request) -> Reply:
        """Count how often each head is right, each two agree, and the best ones together are right."""
        data = site.val if self.select_on == "validation" else site.train
        assert data is not None
        voting = self.voting(site, request.tensors, site.task.build())
        predicted = opinions(self.predictor(site.task, [voting]), data, site)
        return Reply(
            meta={"judged": judge(predicted, labels_of(data), request.meta["ranking"], self.ensemble != "prob_mean")}
        )

    def train(self, site: Site, request: Request) -> Reply:
        """Train body and head and reply with the changes of both."""
        with torch.random.fork_rng(devices=[]):  # a look at networks takes no numbers from the training's dropout
            model = site.task.build(site.network)
            path, features = MODEL + head_path(model, site.network), features_of(model, site.network)
            head = single(self.kind(model, select(request.tensors, path)), features, site.task.objective.outputs)
        reply = super().train(replace(site, task=headed(site.task, site.network, head)), request)
        changes = select(reply.tensors, path)
        body = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith(path)}
        trained = {kind: Model(site.network, model.tensors, {"head": head}) for kind, model in reply.trained.items()}
        return replace(reply, tensors=body | prefixed(changes, HEAD), trained=trained)

    def kind(self, model: nn.Module, head: Tensors) -> HeadKind:
        """How a head is made that has these tensors, in a network like `model`."""
        if not self.diversity:
            return kind_of(body_and_head(model)[1])
        return HeadKind(width_of(head), self.dropout, self.head_activation)

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The body with the heads that answer: the run's global model, but where normalisation stays at the sites."""
        model = participant.task.build()
        if isinstance(participant, Server):
            return (
                {"global": self.voting(participant, self.publish(participant), model)}
                if self.whole(participant, model)
                else {}
            )
        kind = "global" if self.whole(participant, model) else "personal"
        return {kind: self.voting(participant, participant.published, model)}

    def voting(self, participant: Server | Site, published: Tensors, model: nn.Module) -> Model:
        """A body with all the heads that are published beside it; `model` is a network like it."""
        network = participant.task.network
        body, heads = select(published, MODEL), grouped(select(published, HEADS))
        if isinstance(participant, Site) and not self.whole(participant, model):
            body = self.full_state(participant, body)
        path = head_path(model, network)
        tensors = {name: tensor for name, tensor in body.items() if not name.startswith(path)}
        for number, head in enumerate(heads):
            tensors |= prefixed(head, f"{path}heads.{number}.")
        kinds, features = [self.kind(model, head) for head in heads], features_of(model, network)
        together: Literal["vote", "prob_mean"] = "prob_mean" if self.ensemble == "prob_mean" else "vote"
        return Model(network, tensors, {"head": several(kinds, features, participant.task.objective.outputs, together)})

    def whole(self, participant: Participant, model: nn.Module) -> bool:
        """Whether all of the body is shared, in a network like `model`."""
        return self.shared(model, participant.settings.norm_sync) == self.shared(model, "all")

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the configuration of the network with the model's heads in place of its own."""
        head = model.meta["head"]
        return {"_target_": "medfl.networks.parts.with_head", "network": network_def, "head": head}

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        """Return the network with the model's heads in place of its own."""
        return super().predictor(headed(task, models[0].network, models[0].meta["head"]), models)
