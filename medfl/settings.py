"""The settings of a run, validated once; an unknown key is an error that names the nearest known one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator

from medfl.errors import SettingsError, did_you_mean


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Privacy(Strict):
    """Differential privacy of what leaves a site, applied by the site itself.

    Attributes:
        unit: Whose data are hidden. ``site``: each update is clipped and noised as it leaves. ``sample``: each image
            of a site, by DP-SGD in its training (Abadi et al., CCS 2016); a patient with several images is hidden less.
        adjacency: Neighbouring data: one unit added or removed, or replaced (twice the sensitivity).
        epsilon: Budget over all releases of the run, > 0.
        delta: Probability that the guarantee fails, in (0, 1) and below one over the number of units.
        clip: L2 bound, over all tensors together, > 0: of an update, or of the gradient of one image.
        accountant: ``gaussian`` composes Gaussian releases exactly, for the unit ``site``; ``prv`` composes numerically
            what is drawn at random and noised (Gopi, Lee, Wutschitz, NeurIPS 2021), for ``sample``.
        ledger: Folder in which each site keeps account of what was released of its data, over all runs. With None, as
            always, the run's folder has an account of this run alone. Like `total_epsilon` it is the site's affair and
            no part of what makes two runs the same run.
        total_epsilon: Budget over all runs in the ledger, >= `epsilon`; None only keeps account.
    """

    unit: Literal["site", "sample"] = "site"
    adjacency: Literal["add_remove", "replace"] = "replace"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(gt=0, allow_inf_nan=False)
    accountant: Literal["gaussian", "prv"] = "gaussian"
    ledger: Path | None = Field(None, exclude=True)
    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _accountant_of_unit(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("unit") == "sample":
            return {"accountant": "prv"} | values
        return values

    @field_validator("ledger")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.resolve()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fitting = {"site": "gaussian", "sample": "prv"}[self.unit]
        if self.accountant != fitting:
            raise ValueError(f"unit '{self.unit}' is accounted by '{fitting}', got accountant '{self.accountant}'")
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', a folder that they share")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than this run's epsilon {self.epsilon:g}")
        return self


class Compression(Strict):
    """Quantisation of updates: each tensor between its minimum and maximum in ``bits`` bits."""

    bits: Literal[4, 8, 16]


class Settings(Strict):
    """What decides the numbers of a run, beside method, task and data.

    Attributes:
        rounds: Number of rounds, >= 1. It may be raised later, and the run continues.
        seed: Seed of all streams.
        epochs: Passes over a site's training data in a round, >= 0.
        steps: Batches a site trains in a round, >= 1. Where given, it stands in place of `epochs`.
        batch_size: Images in a batch, >= 1.
        lr_decay: Factor of the sites' learning rate from each round to the next, in (0, 1]; 1 keeps it.
        fraction: Share of the sites that take part in a round, in (0, 1]; at least one does.
        norm_sync: What of the normalisation layers is shared (rule G-2): ``all``; ``params`` without the running
            statistics; ``none``; ``frozen`` is ``all`` with the layers in evaluation mode during training.
        min_replies: Replies without which a round fails, >= 1.
        evaluate_every: Rounds between two evaluations, >= 1; the last round is always evaluated.
        best_round: Whether sites take home the models of the evaluated round with the best validation score, by the
            first metric as a mean over the sites, in place of those of the last round. The first of equals is taken.
        patience: Evaluations in a row without a better validation score after which the run ends, >= 1; None runs all
            rounds. A round is scored while the next one trains, so that one is over as well. More rounds don't continue
            a run that has ended so.
        keep_rounds: Rounds after which the server's model is kept, in ``kept/round-N.safetensors`` of the run folder,
            for attacks later: a file as large as the model for each of them. It changes no number of a run, and may be
            changed when that goes on.
        moments: When models are scored: ``aggregated`` after a round, ``trained`` also right after local training,
            ``epochs`` also a model that the server trains, on its test sets after each of its epochs.
        global_test: After the last round, score every site's model on every site's test data (core op ``exchange``).
        shared_test: Score every site's personal model on the server's test set, too.
        balance: What is done about unlike class sizes at a site: ``none``; ``loss`` weighs each class of the task's
            loss by the inverse of its share of the site's training images; ``sampling`` draws the images of each class
            equally often, with replacement.
        precision: ``fp32``, or ``bf16`` for autocast.
        networks: Site to name of its network, where it is not the task's default.
        norm_bound: Refuse a reply whose L2 norm is above this; None allows any finite one.
        describe: What a site tells about itself at the start.
        privacy: Differential privacy of updates, or None.
        compression: Quantisation of updates, or None.
    """

    rounds: int = Field(ge=1)
    seed: int = Field(0, ge=0, lt=2**31)
    epochs: int = Field(1, ge=0)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    lr_decay: float = Field(1.0, gt=0, le=1)
    fraction: float = Field(1.0, gt=0, le=1)
    norm_sync: Literal["all", "params", "none", "frozen"] = "all"
    min_replies: int = Field(1, ge=1)
    evaluate_every: int = Field(1, ge=1)
    best_round: bool = False
    patience: int | None = Field(None, ge=1)
    keep_rounds: tuple[PositiveInt, ...] = ()
    moments: tuple[Literal["aggregated", "trained", "epochs"], ...] = ("aggregated",)
    global_test: bool = False
    shared_test: bool = False
    balance: Literal["none", "loss", "sampling"] = "none"
    precision: Literal["fp32", "bf16"] = "fp32"
    networks: dict[str, str] = {}
    norm_bound: float | None = Field(None, gt=0)
    describe: tuple[Literal["size", "label_counts"], ...] = ("size",)
    privacy: Privacy | None = None
    compression: Compression | None = None

    @property
    def validates(self) -> bool:
        """Whether the run needs validation scores to choose a round or to end."""
        return self.best_round or self.patience is not None

    def due(self, round_: int) -> bool:
        """Whether models are evaluated after a round."""
        return round_ % self.evaluate_every == 0 or round_ >= self.rounds


class Execution(Strict):
    """Where and how a run computes. Changing these may change the last bits, never the meaning.

    Attributes:
        workers: Processes that train sites, >= 1; 1 works in this process. Several compute on the CPU.
        threads: Threads of each process, >= 1.
        device: ``auto`` (a GPU if there is one and one worker, or else the CPU), ``cpu`` or ``cuda:N``.
    """

    workers: int = Field(1, ge=1)
    threads: int = Field(1, ge=1)
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")


S = TypeVar("S", bound=BaseModel)


def read_settings(kind: type[S], values: dict[str, Any], where: str) -> S:
    """Validate `values`, turning every problem into one readable message.

    Args:
        kind: The model to build.
        values: Keys and values as given by the user.
        where: What these settings belong to, for the message (for example ``method 'fedprox'``).

    Raises:
        SettingsError: With all problems at once; unknown keys come with the nearest known one.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [_explain(kind, problem) for problem in error.errors()]
        raise SettingsError(f"Settings of {where} are not valid:\n  " + "\n  ".join(lines)) from None


def _explain(kind: type[BaseModel], problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"]) or "(all)"
    if problem["type"] == "extra_forbidden":
        *within, key = problem["loc"]
        return f"unknown option '{name}'. " + did_you_mean(str(key), _options(kind, within))
    if problem["type"] == "missing":
        return f"'{name}' is required and was not given"
    return f"'{name}': {problem['msg']}; got {problem['input']!r}"


def _options(kind: type[BaseModel], within: list[str | int]) -> list[str]:
    """Names of the options of a model, or of the one that it holds under the keys `within`."""
    for key in within:
        annotation = kind.model_fields[str(key)].annotation if str(key) in kind.model_fields else None
        parts = [part for part in (annotation, *get_args(annotation)) if isinstance(part, type)]
        kind = next((part for part in parts if issubclass(part, BaseModel)), kind)
    return list(kind.model_fields)
