"""Fedavg at a site behind MONAI's own client interface, for any engine that drives ``monai.fl.client.ClientAlgo``."""

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

from medfl.bundle.client_side import Side, open_side
from medfl.bundle.watched import Watched, watched
from medfl.contract import Request, State
from medfl.data.datalists import SPLITS
from medfl.engine.evaluation import score
from medfl.errors import DataError, MedflError, RefusedError, SettingsError, check_choice
from medfl.types import MODEL, Dataset, Tensors
from medfl.utils.rng import pinned
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

ROUND = "medfl_round"
"""Key of `train`'s ``extra``: the round, from 1. Without it rounds are counted from `MedflAlgo.initialize` on."""

SPLIT = "medfl_split"
"""Key of `evaluate`'s ``extra``: one of `medfl.data.datalists.SPLITS`; ``validation`` without it."""


class CallError(MedflError):
    """Calls of `MedflAlgo` came in an order that makes no sense; who drives it can mend that."""


class MedflAlgo(ClientAlgo):
    """Fedavg at one site, with the numbers of a run of medfl, under any engine that drives MONAI's `ClientAlgo`.

    A server that drives MONAI's own ``MonaiAlgo`` drives this one unchanged: it sends all weights of the model, as
    tensors or NumPy arrays by state-dict name, and gets weight differences (or weights) and the statistics
    ``num_executed_iterations`` (batches) and ``data_count`` (training images). Fedavg's mean weighs a site by its
    ``data_count``; a server that weighs by iterations computes another mean where sites differ in size.

    Unlike ``MonaiAlgo`` it trains with medfl's loop, streams and settings, takes only weights of exactly the names,
    shapes and types of its model, all finite (a counter may come as a float), copies all that comes in and goes
    out, and keeps nothing on disk. It reads the bundle that is named here and no other: an engine's ``APP_ROOT``,
    ``LOGGING_FILE``, ``CLIENT_NAME`` and ``STATS_SENDER`` are ignored, as who may choose a configuration may run code.

    Limits: One method, fedavg. Updates pass medfl's filters (finite, ``norm_bound``); ``privacy`` and
    ``compression`` are refused, for they need an account on disk and a receiver that can decode. Who takes part, the
    mean, quorum and rounds are the engine's affair, so the settings about them do nothing. With ``norm_sync`` of
    ``params`` or ``none`` only the shared tensors come and go; the site's own are lost when the process ends. A
    restarted process counts rounds from 1 again unless the engine gives the round (`ROUND`). There is no
    ``get_data_stats``. Training uses torch's global generator: one training at a time in a process.

    Args:
        bundle_root: A bundle of medfl, with ``configs/train.json`` and ``configs/federate.json``; their expressions are
            evaluated, so it must be one that was read and trusted.
        dataset_dir: Folder with the site's folder, which has a ``datalist.json``.
        site: Name of the site in the federation, and of its folder. Streams hang on it.
        overrides: Id of the bundle's configuration to value, as on the command line: ``{"optimizer#lr": 0.1}``.
        send_weight_diff: Send after minus before, as MONAI's own does by default; otherwise the weights.
        **settings: More overrides, for ids that are plain names: ``epochs=1``, ``batch_size=16``, ``seed=3``.
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
        self._side: Side | None = None
        self._stop, self._progress = threading.Event(), Progress()

    def initialize(self, extra: dict | None = None) -> None:
        """Read the bundle and the site's data, set the process's threads, and begin before round 1, also a second time.

        Args:
            extra: Ignored, see the class.

        Raises:
            MedflError: If bundle, overrides or data are not as needed.
        """
        self.finalize()
        self._side = open_side(self._root, self._data, self.site, self._overrides)

    def train(self, data: ExchangeObject, extra: dict | None = None) -> None:
        """Train from the server's weights; `get_weights` then gives the result.

        Args:
            data: ``weights`` is all that is read of it.
            extra: `ROUND`, and ``ExtraItems.ABORT``: an object whose attribute ``triggered`` turns true to abort.

        Raises:
            CallError: Before `initialize`.
            RefusedError: If the weights are not those of the model, or the update may not leave the site.
            AbortedError: If it was aborted. The round is not over then, and the site's own tensors are as before.
            DataError: If the site has no training images.
        """
        side, progress = self._ready(), self._progress
        images = self._watched(side.data.train, extra)
        progress.sent, progress.trained = None, True
        received = side.receive(weights_of(data, self.site))
        if not len(side.data.train):
            raise DataError(
                "no_images",
                f"Site '{self.site}' has no training images: expected at least one. It can only evaluate.",
                site=self.site,
                split="training",
            )
        round_ = read_round(extra, progress.round + 1)
        site = side.view(round_, copy.deepcopy(progress.state), images)
        with pinned(side.settings.seed, self.site, round_, "global"):
            reply = side.method.execute(site, Request(self.site, "fit", prefixed(received, MODEL)))
        update, meta = side.filters.outgoing(
            reply.tensors,
            reply.meta,
            site=self.site,
            stream_factory=lambda payload: site.secret_rng("noise", payload),  # never called: privacy is refused
        )
        after = {name: reply.trained["personal"].tensors[name].clone() for name in received}
        progress.sent = Sent(after, select(update, MODEL), images.batches, meta["size"])
        progress.state, progress.round = site.state, round_

    def get_weights(self, extra: dict | None = None) -> ExchangeObject:
        """What the last training gave: weight differences, or weights; before the first one the initial weights.

        Args:
            extra: ``ExtraItems.MODEL_TYPE`` as ``ModelType.FINAL_MODEL`` gives the weights after the last training,
                whatever `send_weight_diff` is. There is no ``BEST_MODEL``: this site does not choose by score.

        Returns:
            Copies on the CPU; the statistics are plain integers.

        Raises:
            CallError: Before `initialize`; after a training that failed or was aborted; or if there was none yet and
                differences or the final model are asked for.
            RefusedError: If another model is asked for.
        """
        side, progress = self._ready(), self._progress
        final = wants_final_model(extra, self.site)
        if progress.sent is None and (progress.trained or final or self.send_weight_diff):
            why = "its last training failed or was aborted" if progress.trained else "it has not trained yet"
            raise CallError(
                "no_weights_to_send",
                f"Site '{self.site}' has no weights to send: {why}. Call train first; initial weights are given before "
                "that with send_weight_diff=False.",
                site=self.site,
                trained=progress.trained,
            )
        sent = progress.sent or Sent(side.start, {}, 0, len(side.data.train))
        differences = self.send_weight_diff and not final
        weights = sent.update if differences else sent.after
        return ExchangeObject(
            weights={name: tensor.clone() for name, tensor in weights.items()},
            weight_type=WeightType.WEIGHT_DIFF if differences else WeightType.WEIGHTS,
            statistics={FlStatistics.NUM_EXECUTED_ITERATIONS: sent.batches, FlStatistics.DATA_COUNT: sent.images},
        )

    def evaluate(self, data: ExchangeObject, extra: dict | None = None) -> ExchangeObject:
        """Score the server's weights (with the site's own tensors, if it has any) on a split of the site.

        Args:
            data: ``weights`` is all that is read of it.
            extra: `SPLIT`, and ``ExtraItems.ABORT`` as in `train`.

        Returns:
            ``metrics``: the task's metrics by name; empty where the split is, nan where a metric is undefined.

        Raises:
            CallError: Before `initialize`.
            RefusedError: If the weights are not those of the model.
            SettingsError: If the split is unknown.
            AbortedError: If it was aborted.
        """
        side = self._ready()
        split = str((extra or {}).get(SPLIT, "validation"))
        check_choice("split", split, SPLITS)
        parts = dict(zip(SPLITS, (side.data.train, side.data.val, side.data.test), strict=True))
        images = self._watched(parts[split], extra)
        received = side.receive(weights_of(data, self.site))
        site = side.view(self._progress.round, self._progress.state, side.data.train)
        site.published = prefixed(received, MODEL)
        (model,) = side.method.models(site).values()
        predictor = side.method.predictor(side.task, [model])
        return ExchangeObject(metrics=score(predictor, images, side.task, side.settings))

    def abort(self, extra: object = None) -> None:
        """Stop a training or evaluation that another thread is in, before its next batch; else do nothing."""
        logger.info("Site '%s' was told to abort.", self.site)
        self._stop.set()

    def finalize(self, extra: object = None) -> None:
        """Let go of model and data; `initialize` begins anew."""
        self._side, self._progress = None, Progress()

    def _ready(self) -> Side:
        if self._side is None:
            raise CallError(
                "not_initialized",
                f"Site '{self.site}' is not ready: expected a call of initialize first, and none of finalize.",
                site=self.site,
            )
        return self._side

    def _watched(self, images: Dataset, extra: Mapping[str, Any] | None) -> Watched:
        """The images of the call that begins now; an abort that came before it is over."""
        self._stop = stop = threading.Event()
        signal = (extra or {}).get(ExtraItems.ABORT)
        return watched(images, lambda: stop.is_set() or bool(getattr(signal, "triggered", False)), self.site)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a training gave: the shared tensors after it, their update, batches taken, and training images."""

    after: Tensors
    update: Tensors
    batches: int
    images: int


@dataclasses.dataclass
class Progress:
    """How far a site is: rounds trained, its own tensors, what it would send, and whether it ever began to train."""

    round: int = 0
    state: State = dataclasses.field(default_factory=State)
    sent: Sent | None = None
    trained: bool = False


def weights_of(data: object, site: str) -> object:
    """The weights of an exchange object.

    Raises:
        RefusedError: If it is none, or says that it holds differences.
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
    """The round that the engine names, or the one that follows.

    Raises:
        SettingsError: If it is no whole number of at least 1.
    """
    number = (extra or {}).get(ROUND, following)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected extra['{ROUND}'] to be a round, a whole number from 1 on, got {number!r}.",
            setting=ROUND,
            minimum=1,
            found=repr(number),
        )
    return number


def wants_final_model(extra: Mapping[str, Any] | None, site: str) -> bool:
    """Whether the engine asks for the model after the last training.

    Raises:
        RefusedError: If it asks for another model.
    """
    wanted = (extra or {}).get(ExtraItems.MODEL_TYPE)
    if wanted not in (None, ModelType.FINAL_MODEL):
        raise RefusedError(
            "unknown_model",
            f"Site '{site}' has no model '{wanted}': expected '{ModelType.FINAL_MODEL}', the one after its last "
            "training. It keeps no best one, for it does not choose by score; the server can, by validation scores.",
            site=site,
            expected=str(ModelType.FINAL_MODEL),
            found=str(wanted),
        )
    return wanted is not None
