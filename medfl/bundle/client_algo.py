"""FedAvg at one site behind MONAI's client interface ``monai.fl.client.ClientAlgo``, for other federated engines."""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai.fl.client import ClientAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject

from medfl.bundle.abortable_dataset import AbortableDataset, make_abortable
from medfl.bundle.opened_site import OpenedSite, open_site
from medfl.contract import Request, State
from medfl.data.datalists import SPLITS
from medfl.engine.evaluation import score_dataset
from medfl.errors import DataError, MedflError, RefusedError, SettingsError, check_choice
from medfl.types import MODEL_PREFIX, Dataset, Tensors
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

ROUND = "medfl_round"
"""Key in the argument ``extra`` of `MedflAlgo.train`, for the number of the round, from 1. Without it, the site counts
rounds itself."""

SPLIT = "medfl_split"
"""Key in the argument ``extra`` of `MedflAlgo.evaluate`, for the split to score: ``training``, ``validation`` (the
default) or ``test``."""


class CallError(MedflError):
    """Error if the engine calls methods of `MedflAlgo` in a wrong order. The engine's author can correct that."""


class MedflAlgo(ClientAlgo):
    """FedAvg at one site for any engine that uses MONAI's `ClientAlgo`. It trains exactly as in a run of medfl.

    A server that works with MONAI's own ``MonaiAlgo`` works with this class without changes. The server sends all
    weights of the model, as tensors or NumPy arrays by state-dict name. It receives weight differences (or weights)
    and the statistics ``num_executed_iterations`` (batches) and ``data_count`` (training images). FedAvg weighs a site
    by its ``data_count``. A server that weighs by iterations computes another mean if sites differ in size.

    Differences from ``MonaiAlgo``:

    - It trains with medfl's loop, random streams and settings.
    - It accepts only finite weights with exactly the names, shapes and types of its model. A counter may be a float.
    - It copies all tensors that it receives and returns, and writes nothing to disk.
    - It reads only the bundle that is given here. It ignores an engine's ``APP_ROOT``, ``LOGGING_FILE``,
      ``CLIENT_NAME`` and ``STATS_SENDER``, because a party that may choose a configuration may run code.

    Limits:

    - The only method is ``fedavg``.
    - Updates pass medfl's filters (finite, ``norm_bound``). ``privacy`` and ``compression`` are refused, because they
      need a privacy ledger on disk (a record of the privacy budget that runs spent) and a receiver that decodes.
    - The engine decides the participants, the mean, the quorum and the number of rounds. Settings about these have no
      effect.
    - With ``norm_sync`` of ``params`` or ``none`` only the shared tensors are exchanged. The site's own tensors are
      lost when the process ends.
    - A restarted process counts rounds from 1 again unless the engine gives the round (`ROUND`).
    - There is no ``get_data_stats``.
    - Training uses torch's global random generator, so only one training at a time may run in a process.

    Args:
        bundle_root: Folder of a bundle of medfl, with ``configs/train.json`` and ``configs/federate.json``. Their
            expressions are evaluated, so the bundle must have been reviewed and be trusted.
        dataset_dir: Folder with the site's folder, which contains a ``datalist.json``.
        site: Name of the site in the federation and of its folder. The random streams depend on it.
        overrides: Maps ids of the bundle's configuration to values, for example ``{"optimizer#lr": 0.1}``.
        send_weight_diff: Whether to send the weights after training minus those before, as ``MonaiAlgo`` does by
            default. If False, send the weights after training.
        **settings: More overrides, for ids without parts: ``epochs=1``, ``batch_size=16``, ``seed=3``.
    """

    def __init__(
        self,
        bundle_root: str | Path,
        dataset_dir: str | Path,
        site: str,
        overrides: Mapping[str, Any] | None = None,
        send_weight_diff: bool = True,
        **settings: Any,
    ) -> None:
        self.site, self.send_weight_diff = site, send_weight_diff
        self._root, self._data = Path(bundle_root).resolve(), Path(dataset_dir).resolve()
        self._overrides = dict(overrides or {}) | settings
        self._opened: OpenedSite | None = None
        self._stop, self._progress = threading.Event(), ClientProgress()

    def initialize(self, extra: dict | None = None) -> None:
        """Read the bundle and the site's data, set the process's number of threads, and reset the state to round 0.

        Args:
            extra: Ignored, see the class.

        Raises:
            MedflError: If the bundle, an override or the data are not valid.
        """
        self.finalize()
        self._opened = open_site(self._root, self._data, self.site, self._overrides)

    def train(self, data: ExchangeObject, extra: dict | None = None) -> None:
        """Train for one round, starting from the server's weights. `get_weights` returns the result.

        Args:
            data: Exchange object with the server's ``weights``; its other content is ignored.
            extra: Optional values: `ROUND`, and ``ExtraItems.ABORT``, an object whose attribute ``triggered`` becomes
                true to abort the training.

        Raises:
            CallError: If `initialize` was not called before.
            RefusedError: If the weights do not fit the model, or the update may not leave the site.
            AbortedError: If the training was aborted. The round does not count then, and the site's state is unchanged.
            DataError: If the site has no training images.
        """
        opened, progress = self._ready(), self._progress
        images = self._abortable(opened.data.train, extra)
        progress.sent, progress.trained = None, True
        received = opened.receive(read_weights(data, self.site))
        if not len(opened.data.train):
            raise DataError(
                "no_images",
                f"Site '{self.site}' has no training images: expected at least one. It can only evaluate.",
                site=self.site,
                split="training",
            )
        round_ = read_round(extra, progress.round + 1)
        site = opened.view(round_, copy.deepcopy(progress.state), images)
        with seeded_generators(opened.settings.seed, self.site, round_, "global"):
            reply = opened.method.execute(site, Request(self.site, "fit", prefixed(received, MODEL_PREFIX)))
        update, meta = opened.filters.outgoing(
            reply.tensors,
            reply.meta,
            site=self.site,
            stream_factory=lambda payload: site.secret_rng("noise", payload),  # never called: privacy is refused
        )
        after = {name: reply.trained["personal"].tensors[name].clone() for name in received}
        progress.sent = TrainingResult(after, select(update, MODEL_PREFIX), images.batches, meta["size"])
        progress.state, progress.round = site.state, round_

    def get_weights(self, extra: dict | None = None) -> ExchangeObject:
        """Return the weight differences or weights of the last training, or the initial weights before the first one.

        Args:
            extra: Optional values: with ``ExtraItems.MODEL_TYPE`` of ``ModelType.FINAL_MODEL`` the method returns the
                weights after the last training, independent of `send_weight_diff`. There is no ``BEST_MODEL``, because
                the site does not select a model by its score.

        Returns:
            Exchange object with copies of the weights on the CPU. Its statistics are ``num_executed_iterations`` and
            ``data_count``, plain integers.

        Raises:
            CallError: If `initialize` was not called before, or the last training failed or was aborted, or the engine
                wants differences or the final model before the first training.
            RefusedError: If the engine wants another model.
        """
        opened, progress = self._ready(), self._progress
        final = is_final_model_wanted(extra, self.site)
        if progress.sent is None and (progress.trained or final or self.send_weight_diff):
            why = "its last training failed or was aborted" if progress.trained else "it has not trained yet"
            raise CallError(
                "no_weights_to_send",
                f"Site '{self.site}' has no weights to send: {why}. Call train first; with send_weight_diff=False the "
                "site returns its initial weights before that.",
                site=self.site,
                trained=progress.trained,
            )
        sent = progress.sent or TrainingResult(opened.start, {}, 0, len(opened.data.train))
        differences = self.send_weight_diff and not final
        weights = sent.update if differences else sent.after
        return ExchangeObject(
            weights={name: tensor.clone() for name, tensor in weights.items()},
            weight_type=WeightType.WEIGHT_DIFF if differences else WeightType.WEIGHTS,
            statistics={FlStatistics.NUM_EXECUTED_ITERATIONS: sent.batches, FlStatistics.DATA_COUNT: sent.images},
        )

    def evaluate(self, data: ExchangeObject, extra: dict | None = None) -> ExchangeObject:
        """Score the server's weights, with the site's own tensors if it has any, on a split of the site's data.

        Args:
            data: Exchange object with the server's ``weights``; its other content is ignored.
            extra: Optional values: `SPLIT`, and ``ExtraItems.ABORT`` as in `train`.

        Returns:
            Exchange object whose ``metrics`` maps each of the task's metrics to its value. It is empty if the split
            has no images. A value is nan if the metric is undefined.

        Raises:
            CallError: If `initialize` was not called before.
            RefusedError: If the weights do not fit the model.
            SettingsError: If there is no such split.
            AbortedError: If the evaluation was aborted.
        """
        opened = self._ready()
        split = str((extra or {}).get(SPLIT, "validation"))
        check_choice("split", split, SPLITS)
        parts = dict(zip(SPLITS, (opened.data.train, opened.data.val, opened.data.test), strict=True))
        images = self._abortable(parts[split], extra)
        received = opened.receive(read_weights(data, self.site))
        site = opened.view(self._progress.round, self._progress.state, opened.data.train)
        site.published = prefixed(received, MODEL_PREFIX)
        (model,) = opened.method.models(site).values()
        predictor = opened.method.predictor(opened.task, [model])
        return ExchangeObject(metrics=score_dataset(predictor, images, opened.task, opened.settings))

    def abort(self, extra: object = None) -> None:
        """Stop a training or evaluation in another thread before its next batch. Without one, do nothing."""
        logger.info("Site '%s' received a request to abort.", self.site)
        self._stop.set()

    def finalize(self, extra: object = None) -> None:
        """Release the model and the data. Call `initialize` to start again."""
        self._opened, self._progress = None, ClientProgress()

    def _ready(self) -> OpenedSite:
        """Return the opened site, or raise if `initialize` was not called."""
        if self._opened is None:
            raise CallError(
                "not_initialized",
                f"Site '{self.site}' is not ready: expected a call of initialize, and no call of finalize after it.",
                site=self.site,
            )
        return self._opened

    def _abortable(self, images: Dataset, extra: Mapping[str, Any] | None) -> AbortableDataset:
        """Return the images for the call that begins now, which an abort stops. An earlier abort no longer counts."""
        self._stop = stop = threading.Event()
        signal = (extra or {}).get(ExtraItems.ABORT)
        return make_abortable(images, lambda: stop.is_set() or bool(getattr(signal, "triggered", False)), self.site)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """Result of a training of one round.

    Attributes:
        after: Shared tensors after the training. Shared tensors are those that server and sites exchange.
        update: Shared tensors after the training minus those before, after medfl's filters.
        batches: Number of batches in the training.
        images: Number of the site's training images.
    """

    after: Tensors
    update: Tensors
    batches: int
    images: int


@dataclasses.dataclass
class ClientProgress:
    """Progress of a site between calls of the engine.

    Attributes:
        round: Number of the last finished round, 0 before the first.
        state: The site's own tensors and values, which last between rounds.
        sent: Result of the last training, or None if there is none or it failed.
        trained: Whether a training has begun since `MedflAlgo.initialize`.
    """

    round: int = 0
    state: State = dataclasses.field(default_factory=State)
    sent: TrainingResult | None = None
    trained: bool = False


def read_weights(data: object, site: str) -> object:
    """Return the weights in an exchange object from the server.

    Args:
        data: Object that the engine passed.
        site: Name of the site, for the message.

    Raises:
        RefusedError: If the object is not an exchange object, or contains weight differences.
    """
    if not isinstance(data, ExchangeObject):
        raise RefusedError(
            "wrong_type",
            f"Site '{site}' expected an ExchangeObject from the server, got {type(data).__name__}.",
            site=site,
            expected="ExchangeObject",
            found=type(data).__name__,
        )
    if data.weight_type not in (None, WeightType.WEIGHTS):
        raise RefusedError(
            "wrong_weight_type",
            f"Site '{site}' expected the server's weights in full ('{WeightType.WEIGHTS}'), got '{data.weight_type}'.",
            site=site,
            expected=str(WeightType.WEIGHTS),
            found=str(data.weight_type),
        )
    return data.weights


def read_round(extra: Mapping[str, Any] | None, following: int) -> int:
    """Return the number of the round that the engine gives, or `following` if it gives none.

    Args:
        extra: Values from the engine.
        following: Number of the next round.

    Raises:
        SettingsError: If the number is not a whole number >= 1.
    """
    number = (extra or {}).get(ROUND, following)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"Expected extra['{ROUND}'] to be the number of a round, a whole number >= 1; got {number!r}.",
            setting=ROUND,
            minimum=1,
            found=repr(number),
        )
    return number


def is_final_model_wanted(extra: Mapping[str, Any] | None, site: str) -> bool:
    """Return whether the engine wants the model after the last training.

    Args:
        extra: Values from the engine.
        site: Name of the site, for the message.

    Raises:
        RefusedError: If the engine wants another model.
    """
    wanted = (extra or {}).get(ExtraItems.MODEL_TYPE)
    if wanted not in (None, ModelType.FINAL_MODEL):
        raise RefusedError(
            "unknown_model",
            f"Site '{site}' has no model '{wanted}': expected '{ModelType.FINAL_MODEL}', the model after its last "
            "training. The site does not select a best model by its score; the server can, by validation scores.",
            site=site,
            expected=str(ModelType.FINAL_MODEL),
            found=str(wanted),
        )
    return wanted is not None
