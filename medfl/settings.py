"""The settings of a run, validated once; an unknown key is an error that names the nearest known one."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medfl.errors import SettingsError, did_you_mean


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Privacy(Strict):
    """Differential privacy of updates, applied by each site's own filter.

    Attributes:
        unit: Whose presence is hidden.
        adjacency: Neighbouring federations: one unit added or removed, or replaced (twice the sensitivity).
        epsilon: Budget over all releases of the run, > 0.
        delta: Probability that the guarantee fails, in (0, 1).
        clip: L2 bound of one update, over all its tensors, > 0.
        accountant: ``gaussian`` composes Gaussian releases exactly.
    """

    unit: Literal["site"] = "site"
    adjacency: Literal["add_remove", "replace"] = "replace"
    epsilon: float = Field(gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(gt=0)
    accountant: Literal["gaussian"] = "gaussian"


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
        fraction: Share of the sites that take part in a round, in (0, 1]; at least one does.
        norm_sync: What of the normalisation layers is shared (rule G-2): ``all``; ``params`` without the running
            statistics; ``none``; ``frozen`` is ``all`` with the layers in evaluation mode during training.
        min_replies: Replies without which a round fails, >= 1.
        evaluate_every: Rounds between two evaluations, >= 1; the last round is always evaluated.
        moments: When sites are scored: ``aggregated`` after a round, ``trained`` also right after local training.
        global_test: After the last round, score every site's model on every site's test data (core op ``exchange``).
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
    fraction: float = Field(1.0, gt=0, le=1)
    norm_sync: Literal["all", "params", "none", "frozen"] = "all"
    min_replies: int = Field(1, ge=1)
    evaluate_every: int = Field(1, ge=1)
    moments: tuple[Literal["aggregated", "trained"], ...] = ("aggregated",)
    global_test: bool = False
    balance: Literal["none", "loss", "sampling"] = "none"
    precision: Literal["fp32", "bf16"] = "fp32"
    networks: dict[str, str] = {}
    norm_bound: float | None = Field(None, gt=0)
    describe: tuple[Literal["size", "label_counts"], ...] = ("size",)
    privacy: Privacy | None = None
    compression: Compression | None = None


class Execution(Strict):
    """Where and how a run computes. Changing these may change the last bits, never the meaning.

    Attributes:
        workers: Processes that train sites, >= 1; 1 works in this process.
        threads: Threads of each process, >= 1.
        device: ``auto``, ``cpu`` or ``cuda:N``.
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
