"""The settings of a run, validated once; an unknown key is an error that names the nearest known one.

To add a setting, write one field of `Settings` (what decides a run's numbers) or `Execution` (how a machine computes),
with its bounds and, under it, a docstring. It is then an option of ``medfl run``, stands in ``docs/settings.md``, the
output of ``--help-settings``, and in ``run.json``; a server may set it at a site only if its type has `Remote`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from medfl.errors import SettingsError
from medfl.utils.field_words import Device, PluginName, explain


class Remote:
    """Marks a field that a server may set at a site, as ``Annotated[int, Remote]``; without it the site alone may."""


class Strict(BaseModel):
    """A frozen model that refuses unknown keys; the docstring under a field describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Privacy(Strict):
    """Differential privacy of what leaves a site, applied by the site itself."""

    unit: Annotated[PluginName, Remote] = "site"
    """Whose data are hidden. ``site``: each update is clipped and noised as it leaves. ``sample``: each image of a
    site, by DP-SGD in its training (Abadi et al., CCS 2016); a patient with several images is hidden less. Plugins
    may have further units (``medfl list privacy-mechanisms``)."""

    adjacency: Annotated[Literal["add_remove", "replace"], Remote] = "replace"
    """Neighbouring data: one unit added or removed, or replaced (twice the sensitivity)."""

    epsilon: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """Budget over all releases of the run."""

    delta: Annotated[float, Remote] = Field(1e-5, gt=0, lt=1)
    """Probability that the guarantee fails, below one over the number of units."""

    clip: Annotated[float, Remote] = Field(gt=0, allow_inf_nan=False)
    """L2 bound, over all tensors together: of an update, or of the gradient of one image."""

    accountant: Annotated[PluginName | None, Remote] = None
    """How releases are composed; None is the accountant of the unit, and no unit has another. ``site`` has
    ``gaussian``, which composes Gaussian releases exactly; ``sample`` has ``prv``, which composes numerically what is
    drawn at random and noised (Gopi, Lee, Wutschitz, NeurIPS 2021)."""

    ledger: Path | None = Field(None, exclude=True)
    """Folder in which each site keeps account of what was released of its data, over all runs. The run's folder always
    has an account of this run alone. Like ``total_epsilon`` it is the site's affair and no part of a run's identity."""

    total_epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, exclude=True)
    """Budget over all runs in the ledger, at least ``epsilon``; None only keeps account."""

    @field_validator("ledger")
    @classmethod
    def _absolute(cls, folder: Path | None) -> Path | None:
        return None if folder is None else folder.resolve()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.total_epsilon is not None and self.ledger is None:
            raise ValueError("total_epsilon is a budget over several runs and needs 'ledger', a folder that they share")
        if self.total_epsilon is not None and self.total_epsilon < self.epsilon:
            raise ValueError(f"total_epsilon {self.total_epsilon:g} is less than this run's epsilon {self.epsilon:g}")
        return self


class Compression(Strict):
    """Quantisation of updates: each tensor between its minimum and maximum in ``bits`` bits."""

    bits: Annotated[Literal[4, 8, 16], Remote]
    """Bits of a number."""


class Robust(Strict):
    """What stands in place of the mean of the updates, where some of the sites may be wrong or not honest."""

    rule: Annotated[PluginName, Remote]
    """The rule, for example ``median``; ``medfl list robust-rules`` has all. All replies of a round count alike,
    whatever size a site says that it has."""

    f: Annotated[int, Remote] = Field(1, ge=0)
    """How many replies may be anything. A rule says how many replies it needs then, for example 2f + 1."""

    iterations: Annotated[int | None, Remote] = Field(None, ge=0)
    """Iterations of a rule that has them: of ``geometric_median`` (None is 4) and ``centred_clip`` (None is 1)."""

    radius: Annotated[float | None, Remote] = Field(None, gt=0)
    """Longest update, or distance from the last value, of a rule that cuts them: of ``norm_clip`` and
    ``centred_clip``. None is the median one."""


class SecureAggregation(Strict):
    """What the server learns of the updates: their sum alone (Bonawitz et al., CCS 2017)."""

    threshold: Annotated[int | None, Remote] = Field(None, ge=2)
    """Number of participants that must stay until the end of a round and follow the protocol: more than half of them.
    None is the smallest number above two thirds of the sites that take part in a round."""

    clip: Annotated[float | None, Remote] = Field(None, gt=0, allow_inf_nan=False)
    """L2 bound of an update over all tensors together; a longer one is cut. None is 100, or that of ``privacy``."""

    bits: Annotated[Literal[32, 40], Remote] = 40
    """Bits of a number on its way. 32 are as many as in a plain update, and coarser."""

    largest_size: Annotated[int, Remote] = Field(65_536, ge=1, le=2**20)
    """The most training images that a site may have, where sites weigh by their sizes."""

    @property
    def resolved_threshold(self) -> int:
        """The threshold of a run. `Settings.for_sites` has filled in a default one."""
        if self.threshold is None:
            raise SettingsError(
                "missing_setting",
                "expected a threshold of secure aggregation for the run's number of sites, got none",
                setting="secure_aggregation.threshold",
            )
        return self.threshold


class Settings(Strict):
    """What decides the numbers of a run, beside method, task and data."""

    rounds: Annotated[int, Remote] = Field(ge=1)
    """Number of rounds. It may be raised later, and the run continues."""

    seed: Annotated[int, Remote] = Field(0, ge=0, lt=2**31)
    """Seed of all streams."""

    epochs: Annotated[int, Remote] = Field(1, ge=0)
    """Passes over a site's training data in a round."""

    steps: Annotated[int | None, Remote] = Field(None, ge=1)
    """Batches a site trains in a round. Where given, it stands in place of ``epochs``."""

    batch_size: Annotated[int, Remote] = Field(32, ge=1)
    """Images in a batch."""

    lr_decay: Annotated[float, Remote] = Field(1.0, gt=0, le=1)
    """Factor of the sites' learning rate from each round to the next; 1 keeps it."""

    fraction: Annotated[float, Remote] = Field(1.0, gt=0, le=1)
    """Share of the sites that take part in a round; at least one does."""

    norm_sync: Annotated[Literal["all", "params", "none", "frozen"], Remote] = "all"
    """What of the normalisation layers is shared (rule G-2): ``all``; ``params`` without the running statistics;
    ``none``; ``frozen`` is ``all`` with the layers in evaluation mode during training."""

    min_replies: Annotated[int, Remote] = Field(1, ge=1)
    """Replies without which a round fails, or all where fewer sites are asked. Between machines all is the default."""

    evaluate_every: Annotated[int, Remote] = Field(1, ge=1)
    """Rounds between two evaluations; the last round is always evaluated."""

    best_round: Annotated[bool, Remote] = False
    """Whether sites take home the models of the evaluated round with the best validation score, by the first metric as
    a mean over the sites, in place of those of the last round. The first of equals is taken."""

    patience: Annotated[int | None, Remote] = Field(None, ge=1)
    """Evaluations in a row without a better validation score after which the run ends, one round later, as a round is
    scored while the next one trains; None runs all rounds. More rounds continue no run that ended so."""

    keep_rounds: Annotated[tuple[PositiveInt, ...], Remote] = ()
    """Rounds after which the server's model is kept for attacks later, in ``kept/round-N.safetensors``: a file as large
    as the model for each of them. It changes no number of a run, and may be changed when that goes on."""

    moments: Annotated[tuple[Literal["aggregated", "trained", "epochs"], ...], Remote] = ("aggregated",)
    """When models are scored: ``aggregated`` after a round, ``trained`` also right after local training, ``epochs``
    also a model that the server trains, on its test sets after each of its epochs."""

    cross_site_evaluation: Annotated[bool, Remote] = False
    """After the last round, score every site's model on every site's test data (core op ``exchange``)."""

    shared_test: Annotated[bool, Remote] = False
    """Score every site's personal model on the server's test set, too."""

    balance: Annotated[Literal["none", "loss", "sampling"], Remote] = "none"
    """What is done about unlike class sizes at a site: ``none``; ``loss`` weighs each class by the inverse of its share
    of the site's training images; ``sampling`` draws the images of each class equally often, with replacement."""

    precision: Annotated[Literal["fp32", "bf16", "amp"], Remote] = "fp32"
    """``fp32``; ``bf16`` for autocast to bfloat16; ``amp`` for that on a GPU and ``fp32`` on a CPU, as MONAI's engines
    with ``amp`` compute in float32 there (on a GPU they take float16 and scale the loss)."""

    networks_by_site: Annotated[dict[str, str], Remote] = {}
    """Site to name of its network, where it is not the task's default."""

    norm_bound: Annotated[float | None, Remote] = Field(None, gt=0)
    """Refuse a reply whose L2 norm is above this; None allows any finite one."""

    disclose: Annotated[tuple[Literal["size", "label_counts"], ...], Remote] = ("size",)
    """What a site tells about itself at the start."""

    privacy: Annotated[Privacy | None, Remote] = None
    """Differential privacy of updates, or None."""

    compression: Annotated[Compression | None, Remote] = None
    """Quantisation of updates, or None."""

    robust: Annotated[Robust | None, Remote] = None
    """A rule in place of the mean of updates, should some sites be wrong or not honest; None is the mean."""

    secure_aggregation: Annotated[SecureAggregation | None, Remote] = None
    """Whether the server learns only the sum of the updates, and how that is computed; None sends it each of them."""

    adversaries: dict[str, Any] = {}
    """In a simulation only: what attackers among the sites do, as ``{"attack": "sign_flip", "sites": ["site-1"]}``."""

    def for_sites(self, count: int) -> Self:
        """Return the settings with defaults that depend on the number of sites filled in.

        Args:
            count: Number of the run's sites.
        """
        secure = self.secure_aggregation
        if secure is None or secure.threshold is not None:
            return self
        threshold = max(2, 2 * participants(count, self.fraction) // 3 + 1)
        return self.model_copy(update={"secure_aggregation": secure.model_copy(update={"threshold": threshold})})

    @property
    def validates(self) -> bool:
        """Whether the run needs validation scores to choose a round or to end."""
        return self.best_round or self.patience is not None

    def due(self, round_: int) -> bool:
        """Whether models are evaluated after a round."""
        return round_ % self.evaluate_every == 0 or round_ >= self.rounds


def participants(candidates: int, fraction: float) -> int:
    """How many of K candidates take part in a round: max(1, floor(fraction * K)); 0 of none (rule G-3)."""
    return max(1, int(fraction * candidates + 1e-9)) if candidates else 0  # 0.1 * 30 is 3, whatever floating point says


class Execution(Strict):
    """Where and how a run computes. Changing these may change the last bits, never the meaning."""

    workers: int = Field(1, ge=1)
    """Processes that train sites; 1 works in this process. Several compute on the CPU. Of more than 2 no
    more start than there are sites."""

    threads: int = Field(1, ge=1)
    """Threads of each process."""

    device: Device = "auto"
    """``auto`` (a GPU if there is one and one worker, or else the CPU), ``cpu``, ``cuda`` or ``cuda:N``."""

    cache: Literal["memory", "disk", "none"] = "memory"
    """Where cases of an adopted bundle are kept as they are before its first random transform: in ``memory``, on
    ``disk``, or nowhere. It changes no number."""

    cache_dir: Path | None = None
    """Folder of the cache on disk; guard it, for it holds images. None takes ``.medfl_cache`` in each site's folder."""

    loaders: int = Field(0, ge=0)
    """Processes that load cases of an adopted bundle ahead of training; with 0, and with several workers, the process
    that trains loads. It changes no number."""

    pictures: bool = False
    """Whether each site keeps pictures of the test cases whose masks it gets worst, outlined, beside its own model, for
    the report. No server can set it, and sites on other machines keep none. It changes no number."""

    open_test: bool = True
    """Whether test images are opened. Trials of ``medfl tune`` leave them out, as they choose by validation images."""


def run_fields() -> dict[str, FieldInfo]:
    """All fields of `Settings` and `Execution`, by name."""
    return Settings.model_fields | Execution.model_fields


def local_fields(fields: Mapping[str, FieldInfo]) -> frozenset[str]:
    """Names of the fields that a server may not set at a site: all that are not marked with `Remote`."""
    return frozenset(name for name, info in fields.items() if Remote not in info.metadata)


_CODES = {
    "extra_forbidden": "unknown_setting",
    "missing": "missing_setting",
    "literal_error": "unknown_choice",
    "finite_number": "setting_out_of_range",
    "greater_than": "setting_out_of_range",
    "greater_than_equal": "setting_out_of_range",
    "less_than": "setting_out_of_range",
    "less_than_equal": "setting_out_of_range",
}
"""Maps types of pydantic's problems to codes of errors."""


S = TypeVar("S", bound=BaseModel)


def read_settings(kind: type[S], values: Mapping[str, Any], where: str, also: Collection[str] = ()) -> S:
    """Validate `values`, turning every problem into one readable message.

    Args:
        kind: The model to build.
        values: Keys and values as given by the user.
        where: What these settings belong to, for the message (for example ``method 'fedprox'``).
        also: Further names that are known beside those of the model, for the message about an unknown one.

    Raises:
        SettingsError: With all problems at once; unknown keys come with the nearest known one.
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
    """Return the code of a setting's fault.

    Args:
        problem: Type of the problem, as pydantic names it.
    """
    if problem in _CODES:
        return _CODES[problem]
    return "wrong_setting_type" if problem.endswith(("_type", "_parsing", "_from_float")) else "invalid_setting"
