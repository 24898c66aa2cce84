"""Settings of a run, validated once. An unknown key is an error that suggests the most similar known key.

To add a setting, add a field to `Settings` (settings that determine a run's numbers) or `Execution` (settings of the
machine that computes), with its bounds and a docstring below it. The field then is an option of ``medfl run``, and is
listed in ``docs/settings.md``, ``--help-settings`` and ``run.json``. A server may set it at a site only if its type has
the marker `Remote`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from medfl.errors import SettingsError
from medfl.utils.field_descriptions import Device, PluginName, WorkerDevice, explain
from medfl.utils.name_patterns import NamePattern

RANDOM_START, BUNDLE_START = "none", "bundle"
"""Values of the setting ``start``.

`RANDOM_START`: random weights, also if the bundle names weights. `BUNDLE_START`: the weights in the folder ``models``
of the run's own bundle, ``bundle`` or ``bundle:FILE``.
"""


class Remote:
    """Marker of a field that a server may set at a site, as in ``Annotated[int, Remote]``.

    Other fields are set by the site.
    """


class StrictModel(BaseModel):
    """Frozen pydantic model that refuses unknown keys; the docstring below a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    """Configuration of pydantic: frozen, without unknown keys, with docstrings as descriptions."""


class Privacy(StrictModel):
    """Differential privacy of the updates, applied at each site before an update leaves it.

    A release is one noised value that leaves the site. The ledger is the record of the privacy budget that all runs
    have spent on one site's data.
    """

    unit: Annotated[PluginName, Remote] = "site"
    """Privacy unit: the data that differential privacy protects. ``site`` protects all data of a site: its updates are
    clipped and noised before they leave. ``sample`` protects each image of a site by DP-SGD (Abadi et al., CCS 2016); a
    patient with several images has weaker protection. Plugins may add units (``medfl list privacy-mechanisms``)."""

    adjacency: Annotated[Literal["add_remove", "replace"], Remote] = "replace"
    """Definition of neighbouring data sets: one unit is added or removed (``add_remove``), or replaced by another one
    (``replace``, with twice the sensitivity)."""

    epsilon: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """Privacy budget epsilon of the whole run."""

    delta: Annotated[float, Remote] = Field(1e-5, gt=0, lt=1)
    """Probability that the guarantee fails. Choose it below 1 / (number of units)."""

    clip: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """Clipping bound: maximum L2 norm over all tensors of an update, or of the gradient of one image."""

    accountant: Annotated[PluginName | None, Remote] = None
    """Method that composes the releases of a run. None uses the accountant of the unit, which is the only one it
    supports: ``gaussian`` for ``site`` composes Gaussian releases exactly; ``prv`` for ``sample`` composes subsampled
    Gaussian releases numerically (Gopi, Lee, Wutschitz, NeurIPS 2021)."""

    ledger: Path | None = Field(None, exclude=True)
    """Folder of the privacy budget ledger, in which each site records its releases over all runs. The run folder always
    has the record of its own run. Like ``total_epsilon``, the ledger is set by the site and is not part of the run's
    identity."""

    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, exclude=True)
    """Privacy budget epsilon over all runs in the ledger, at least ``epsilon``; None records the releases without a
    limit."""

    @field_validator("ledger")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        """Return the ledger's absolute path."""
        return None if folder is None else folder.resolve()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Raise if the total budget has no ledger, or is smaller than the run's budget."""
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', their common folder")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than this run's epsilon {self.epsilon:g}")
        return self


class Compression(StrictModel):
    """Quantization of updates: each tensor is quantized with ``bits`` bits between its minimum and maximum."""

    bits: Annotated[Literal[4, 8, 16], Remote]
    """Number of bits per value."""


class Robust(StrictModel):
    """Robust aggregation rule that replaces the mean of the updates, for runs with faulty or malicious sites."""

    rule: Annotated[PluginName, Remote]
    """Name of the rule, for example ``median``; ``medfl list robust-rules`` lists all. All replies of a round have
    equal weights, because a site can claim any number of images."""

    f: Annotated[int, Remote] = Field(1, ge=0)
    """Maximum number of faulty or malicious replies in a round. It determines how many replies a rule needs, for
    example 2f + 1."""

    iterations: Annotated[int | None, Remote] = Field(None, ge=0)
    """Number of iterations, for the rules ``geometric_median`` (None means 4) and ``centred_clip`` (None means 1)."""

    radius: Annotated[float | None, Remote] = Field(None, gt=0)
    """Maximum norm of an update (``norm_clip``) or of its distance from the previous aggregate (``centred_clip``). None
    uses the median norm or distance."""


class SecureAggregation(StrictModel):
    """Secure aggregation: the server learns only the sum of the updates (Bonawitz et al., CCS 2017)."""

    threshold: Annotated[int | None, Remote] = Field(None, ge=2)
    """Number of participants that must stay until the end of a round and follow the protocol, more than half of them.
    None uses the smallest number above two thirds of the sites that take part in a round."""

    clip: Annotated[float | None, Remote] = Field(None, gt=0, allow_inf_nan=False)
    """Maximum L2 norm of an update over all tensors; a longer update is scaled down. None uses 100, or the bound of
    ``privacy``."""

    bits: Annotated[Literal[32, 40], Remote] = 40
    """Number of bits per transmitted value. 32 sends as many bits as a plain update, with a coarser resolution than
    40."""

    largest_size: Annotated[int, Remote] = Field(65_536, ge=1, le=2**20)
    """Maximum number of training images of a site, for methods that weight sites by their numbers of images."""

    @property
    def resolved_threshold(self) -> int:
        """The threshold, which `Settings.for_sites` has set if the user has not.

        Raises:
            SettingsError: If the threshold is None.
        """
        if self.threshold is None:
            raise SettingsError(
                "missing_setting",
                "expected the threshold of secure aggregation to be set for the run's number of sites, got none",
                setting="secure_aggregation.threshold",
            )
        return self.threshold


def _split_names(value: Any) -> Any:
    """Return the names in a text, separated by commas, or in a list, as a tuple; any other value unchanged."""
    names = (name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value
    return tuple(names) if isinstance(value, str | list) else value


class Lora(StrictModel):
    """Low-rank adapters (LoRA) of linear and convolution layers (Hu et al., ICLR 2022).

    An adapter learns a change B A of a frozen weight. The factors A and B are small.
    """

    rank: Annotated[int, Remote] = Field(8, ge=1, le=4096)
    """Rank of the weight changes: the number of rows of A and of columns of B. A layer with a smaller full rank gets
    its full rank."""

    alpha: Annotated[float, Remote] = Field(8.0, gt=0, allow_inf_nan=False)
    """Numerator of the factor alpha / rank by which the weight changes are multiplied."""

    targets: Annotated[NamePattern, Remote] = "all"
    """Layers that get an adapter: ``all`` linear and convolution layers outside the classifier; or a regular
    expression that is searched in the layers' names, for example ``layer4``."""

    aggregation: Annotated[Literal["frozen_a", "exact", "naive"], Remote] = "frozen_a"
    """Aggregation of the factors: ``frozen_a`` trains and averages only B, so the mean is exact (FFA-LoRA, Sun et al.,
    ICLR 2024); ``exact`` trains both factors and sends the difference between the mean weight change and the product of
    the mean factors to the sites (FedEx-LoRA, Singhal et al., ACL 2025); ``naive`` averages both factors, and the mean
    is not exact."""


class Optimization(StrictModel):
    """Optimisation recipe: learning rates over the run and over the layers, weight decay, and averaged weights.

    The recipe applies to the bundle's optimiser. Optimisers that a method creates for another purpose, such as a
    generator, keep their constant learning rate. Gradient clipping is a setting of every method
    (``--method-args.gradient-clip``).
    """

    schedule: Annotated[Literal["constant", "cosine"], Remote] = "constant"
    """Learning rate after the warm-up: ``constant``, or ``cosine``, which falls to 0 at the end of the run, step by
    step. A run with a cosine can't be continued with more rounds."""

    warmup_rounds: Annotated[int, Remote] = Field(0, ge=0)
    """Number of rounds at the start in which the learning rate rises linearly, step by step."""

    layer_decay: Annotated[float, Remote] = Field(1.0, gt=0, le=1)
    """Factor of the learning rate from one block of the network to the block before it; the head has the full learning
    rate. 1 gives all blocks the same learning rate."""

    decay_norms: Annotated[bool, Remote] = True
    """False to exclude normalisation layers, biases and other parameters with one dimension from weight decay."""

    ema: Annotated[float | None, Remote] = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average (EMA) of the global model over the rounds. The average is evaluated and
    exported; sites still train from the model of the last round. None uses the model of the last round."""

    @property
    def varies_in_round(self) -> bool:
        """True if the learning rate changes from step to step."""
        return self.schedule != "constant" or self.warmup_rounds > 0

    @property
    def has_groups(self) -> bool:
        """True if not all parameters have the same learning rate and weight decay."""
        return self.layer_decay != 1 or not self.decay_norms


class Settings(StrictModel):
    """Settings that determine the numbers of a run, besides method, task and data."""

    rounds: Annotated[int, Remote] = Field(ge=1)
    """Number of rounds. You can increase it later to continue a run."""

    seed: Annotated[int, Remote] = Field(0, ge=0, lt=2**31)
    """Seed of all random streams."""

    epochs: Annotated[int, Remote] = Field(1, ge=0)
    """Number of passes over a site's training data in a round."""

    steps: Annotated[int | None, Remote] = Field(None, ge=1)
    """Number of batches that a site trains on in a round. If set, it replaces ``epochs``."""

    batch_size: Annotated[int, Remote] = Field(32, ge=1)
    """Number of images in a batch."""

    lr_decay: Annotated[float, Remote] = Field(1.0, gt=0, le=1)
    """Factor by which the sites' learning rate is multiplied after each round; 1 keeps it constant."""

    optimization: Annotated[Optimization | None, Remote] = None
    """Optimisation recipe of the sites, or None: schedule, learning rates by layer, weight decay, averaged weights."""

    fraction: Annotated[float, Remote] = Field(1.0, gt=0, le=1)
    """Share of the sites that take part in a round; at least one site takes part."""

    norm_sync: Annotated[Literal["all", "params", "none", "frozen"], Remote] = "all"
    """Tensors of normalisation layers that sites share: ``all``; ``params``, without the running statistics;
    ``none``; or ``frozen``, which shares all and keeps the layers in evaluation mode during training."""

    train_part: Annotated[NamePattern, Remote] = "all"
    """Parameters that learn: ``all``; ``head``, the classifier; ``norms``, the normalisation layers and the classifier;
    ``lora``, low-rank adapters (setting ``lora``) and the classifier; or a regular expression that is searched in the
    parameters' names, for example ``layer4|head``. All other parameters, and those that the bundle's network freezes,
    keep their initial values and are never sent."""

    lora: Annotated[Lora, Remote] = Lora()
    """Low-rank adapters of a run with ``train_part`` ``lora``."""

    feature_views: Annotated[int, Remote] = Field(0, ge=0, le=1000)
    """Number of randomly augmented views of each training image whose features are computed once, if the body of the
    network is frozen and the bundle augments images. With 0, images are augmented again in each round (slower)."""

    harmonise_features: Annotated[Literal["none", "combat"], Remote] = "none"
    """Harmonisation of a frozen body's features over the sites: ``none``; or ``combat``, ComBat without covariates. For
    ``combat`` each site sends sums over its training images once, without noise."""

    min_replies: Annotated[int, Remote] = Field(1, ge=1)
    """Minimum number of replies in a round, or all replies if fewer sites receive a request. With fewer replies the
    round fails. In a run on other machines, the default is all sites."""

    evaluate_every: Annotated[int, Remote] = Field(1, ge=1)
    """Number of rounds from one evaluation to the next. The last round is always evaluated."""

    best_round: Annotated[bool, Remote] = False
    """Export the models of the best evaluated round instead of the last round. The best round has the best validation
    score: the first metric, averaged over the sites; a diverged site has none. Ties go to the earliest round."""

    patience: Annotated[int | None, Remote] = Field(None, ge=1)
    """Early stopping: the number of consecutive evaluations without a better validation score after which the run ends.
    The run ends one round later, because a round is evaluated while the next one trains. None runs all rounds. A run
    that ended early can't be continued with more rounds."""

    keep_rounds: Annotated[tuple[PositiveInt, ...], Remote] = ()
    """Rounds after which the server's model is saved for later attacks, in ``kept/round-N.safetensors``. Each file is
    as large as the model. The setting does not affect the results, and may be changed when the run is continued."""

    moments: Annotated[tuple[Literal["aggregated", "trained", "epochs"], ...], Remote] = ("aggregated",)
    """Times at which models are evaluated: ``aggregated`` after each round; ``trained`` also right after local
    training; ``epochs`` also after each epoch of a model that the server trains, on the server's test sets."""

    cross_site_evaluation: Annotated[bool, Remote] = False
    """Cross-site evaluation: after the last round, evaluate every site's model on every site's test data."""

    shared_test: Annotated[bool, Remote] = False
    """Also evaluate every site's personal model on the server's test set."""

    balance: Annotated[Literal["none", "loss", "sampling"], Remote] = "none"
    """Compensation for unequal class sizes at a site: ``none``; ``loss`` weights each class in the loss by the inverse
    of its share of the site's training images; ``sampling`` draws images of all classes equally often, with
    replacement."""

    precision: Annotated[Literal["fp32", "bf16", "amp"], Remote] = "fp32"
    """Numeric precision: ``fp32``; ``bf16`` for autocast to bfloat16; ``amp`` for ``bf16`` on a GPU and ``fp32`` on a
    CPU. MONAI's engines with ``amp`` also use float32 on a CPU, but float16 with loss scaling on a GPU."""

    networks_by_site: Annotated[dict[str, str], Remote] = {}
    """Name of the network of each site that does not use the task's default network."""

    start: Annotated[str | None, Remote] = None
    """Weights from which the default network starts: the name of known weights (``medfl list weights``), a file of
    safetensors or a state dict of torch, the folder of a finished run (``RUN``, or ``RUN#SITE`` for a site's model),
    the folder of a bundle with its ``models/model.pt``, or ``bundle`` for the run's own bundle (``bundle:FILE`` for a
    file in its ``models``). ``none`` starts from random weights, also if the bundle names weights. Between machines: a
    name, ``bundle``, ``none``, or ``sha256:DIGEST`` of a file that every participant has."""

    start_skip: Annotated[tuple[str, ...], Remote, BeforeValidator(_split_names)] = ()
    """Tensors of the weights in ``start`` to leave out, separated by commas: names, or prefixes such as ``layer4``;
    ``head`` is the network's classifier. The network keeps its random tensors in their place."""

    norm_bound: Annotated[float | None, Remote] = Field(None, gt=0)
    """Maximum L2 norm of a reply; a reply with a larger norm is refused. None accepts any finite reply."""

    disclose: Annotated[tuple[Literal["size", "label_counts"], ...], Remote] = ("size",)
    """Site information that each site discloses to the server before the first round."""

    privacy: Annotated[Privacy | None, Remote] = None
    """Differential privacy of updates, or None."""

    compression: Annotated[Compression | None, Remote] = None
    """Quantization of updates, or None."""

    robust: Annotated[Robust | None, Remote] = None
    """Robust aggregation rule for runs with faulty or malicious sites; None uses the method's own aggregation."""

    secure_aggregation: Annotated[SecureAggregation | None, Remote] = None
    """Secure aggregation, by which the server learns only the sum of the updates; None sends it each update."""

    adversaries: dict[str, Any] = {}
    """Poisoning attack by some of the sites, in simulations only, for example ``{"attack": "sign_flip", "sites":
    ["site-1"]}``."""

    @model_validator(mode="after")
    def _adapters_are_trained(self) -> Self:
        """Raise if options of adapters are set in a run that trains none."""
        if self.train_part != "lora" and self.lora != Lora():
            raise ValueError(f"'lora' sets options of adapters: expected train_part 'lora', got {self.train_part!r}")
        return self

    def for_sites(self, count: int) -> Self:
        """Return a copy of the settings with the defaults that depend on the number of sites.

        Args:
            count: Number of the run's sites.
        """
        secure = self.secure_aggregation
        if secure is None or secure.threshold is not None:
            return self
        threshold = max(2, 2 * participant_count(count, self.fraction) // 3 + 1)
        return self.model_copy(update={"secure_aggregation": secure.model_copy(update={"threshold": threshold})})

    @property
    def needs_validation(self) -> bool:
        """True if the run needs validation scores, to choose the best round or to stop early."""
        return self.best_round or self.patience is not None

    def is_evaluated_after(self, round_: int) -> bool:
        """Return True if models are evaluated after this round."""
        return round_ % self.evaluate_every == 0 or round_ >= self.rounds


def participant_count(candidates: int, fraction: float) -> int:
    """Return how many of K candidates take part in a round: max(1, floor(fraction * K)), or 0 if K is 0."""
    return max(1, int(fraction * candidates + 1e-9)) if candidates else 0  # 1e-9: 0.1 * 30 is 3 despite rounding


class Execution(StrictModel):
    """Settings of the machine that computes. They may change the last bits of the results, but not their meaning.

    An adopted bundle is a stock MONAI bundle for which ``medfl adopt`` wrote a federation file.
    """

    workers: int = Field(1, ge=1)
    """Number of processes that train sites; 1 trains in the main process. Several workers use the CPU, unless
    ``devices`` names GPUs. If you set more than 2, at most one worker per site is started."""

    threads: int = Field(1, ge=1)
    """Number of threads of each process."""

    device: Device = "auto"
    """Device: ``auto`` (a GPU if there is one and ``workers`` is 1, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``."""

    devices: Annotated[tuple[WorkerDevice, ...], BeforeValidator(_split_names)] = ()
    """Devices of the worker processes, one process for each name, in place of ``device`` and ``workers``:
    ``cuda:0,cuda:1`` uses two GPUs, ``cuda:0,cuda:0`` one for both. The main process computes on the first device."""

    cache: Literal["memory", "disk", "none"] = "memory"
    """Cache for the cases of an adopted bundle, as they are before the first random transform: in ``memory``, on
    ``disk``, or ``none``. The setting does not affect the results."""

    feature_cache: bool = True
    """True to compute the features of a frozen body once, and to store them on disk in ``cache_dir``, if images reach
    the network unchanged in every round. The results differ only by rounding, except for noise that privacy adds."""

    cache_dir: Path | None = None
    """Folder of the caches on disk. Protect it, because it contains images or their features. None uses
    ``.medfl_cache`` in each site's folder."""

    loaders: int = Field(0, ge=0)
    """Number of processes that load cases of an adopted bundle in advance. With 0, or with several workers, the
    training process loads them. The setting does not affect the results."""

    worst_case_images: bool = False
    """True to save images of each site's worst segmented test cases, with outlined masks, next to the site's own model,
    for the report. A server can't set it, and sites on other machines save none. The setting does not affect the
    results."""

    checkpoint_minutes: float | None = Field(10.0, ge=0, allow_inf_nan=False)
    """Most minutes of training within a step that are lost when a site is killed. It continues from the last checkpoint
    with the same bits. None writes no checkpoints. There are none with privacy of the unit ``sample``, and none for
    methods whose training changes things that no checkpoint contains (`LocalTraining.can_continue`)."""

    open_test: bool = True
    """True to evaluate on test images. ``medfl tune`` sets it to false, because it chooses by validation images."""


def run_fields() -> dict[str, FieldInfo]:
    """Return all fields of `Settings` and `Execution` by name."""
    return Settings.model_fields | Execution.model_fields


def local_fields(fields: Mapping[str, FieldInfo]) -> frozenset[str]:
    """Return the names of the fields without the marker `Remote`, which a server may not set at a site."""
    return frozenset(name for name, info in fields.items() if Remote not in info.metadata)


_CODE_BY_PROBLEM = {
    "extra_forbidden": "unknown_setting",
    "missing": "missing_setting",
    "literal_error": "unknown_choice",
    "finite_number": "setting_out_of_range",
    "greater_than": "setting_out_of_range",
    "greater_than_equal": "setting_out_of_range",
    "less_than": "setting_out_of_range",
    "less_than_equal": "setting_out_of_range",
}
"""Mapping from pydantic's error types to medfl's error codes."""


S = TypeVar("S", bound=BaseModel)
"""Type variable: the pydantic model that `read_settings` creates."""


def read_settings(kind: type[S], values: Mapping[str, Any], where: str, also: Collection[str] = ()) -> S:
    """Validate values and create the settings. Raise one readable error for all problems.

    Args:
        kind: Pydantic model to create.
        values: Keys and values from the user.
        where: Owner of the settings, for the message, for example ``method 'fedprox'``.
        also: Further known names besides the model's fields, for the message about an unknown name.

    Raises:
        SettingsError: If any value is invalid. The message has all problems, and suggests a known key for each unknown
            one.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [explain(kind, problem, also) for problem in error.errors()]
        codes = {".".join(map(str, problem["loc"])): _code_of(problem["type"]) for problem in error.errors()}
        raise SettingsError(
            codes[min(codes)] if len(set(codes.values())) == 1 else "invalid_settings",
            f"Settings of {where} are not valid:\n  " + "\n  ".join(lines),
            where=where,
            settings=sorted(codes),
            codes=codes,
        ) from None


def _code_of(problem: str) -> str:
    """Return the error code for pydantic's error type."""
    if problem in _CODE_BY_PROBLEM:
        return _CODE_BY_PROBLEM[problem]
    return "wrong_setting_type" if problem.endswith(("_type", "_parsing", "_from_float")) else "invalid_setting"
