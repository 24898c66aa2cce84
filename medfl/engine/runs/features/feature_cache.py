"""Features of a frozen body, computed once and stored on disk, so that rounds train the head on them.

It is used if nothing but a network's head learns, and images reach the network unchanged in every round. Files are
addressed by the content of the images and of the body, and written atomically: a killed run leaves no partial file, and
another run with the same body and images reads them. Features of images are patient data: they stay in the site's
folder, and no message contains them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import nn

from medfl.contract import Method, Need
from medfl.data.folders import CACHE_FOLDER
from medfl.data.pooled import patients_of
from medfl.engine.site import SiteRunner, Splits
from medfl.errors import DamagedError, SettingsError
from medfl.networks.parts import body_and_head
from medfl.privacy.ledger import hash_dataset
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.batches import SCORING, load_batches
from medfl.training.precision import autocast
from medfl.types import Dataset, LoadedBatch, is_augmenting, is_self_scoring
from medfl.utils import wire
from medfl.utils.files import STALE_SECONDS, write_atomic
from medfl.utils.rng import make_generator, seed_of

logger = logging.getLogger(__name__)

ViewFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function from images (B, C, *spatial) and their row numbers (B,) to augmented images of the same shape."""

FEATURE_BATCH = 32
"""Number of images in a forward pass through the body."""

FEATURE_FILE = re.compile(r"\.?(?:features|views)-[0-9a-f]{64}\.safetensors(\.[0-9]+\.tmp)?")
"""Name of a file of features; the group is the suffix of an unfinished file."""

CHECKED_IMAGES = 4
"""Number of images whose stored features are compared with computed ones."""

MAX_DIFFERENCE = 1e-3
"""Maximum difference, relative to the largest feature, between stored and computed features of the same image."""

IMAGE_NEEDS: frozenset[Need] = frozenset({"images_of_one_shape", "features", "public_data", "raw_images"})
"""Requirements of methods that use images, or stages of the body, besides the network's logits and features."""


def cache_features(
    runners: Iterable[SiteRunner],
    method: Method,
    task: Task,
    settings: Settings,
    folder_of: Callable[[str], Path],
    is_enabled: bool = True,
) -> bool:
    """Let the runners of a run train and score on cached features, in place, if that gives the same results.

    Args:
        runners: Runners of all participants that this process runs.
        method: Method of the run.
        task: Task of the run, with frozen parameters.
        settings: Settings of the run.
        folder_of: Function from the name of a participant to the folder for the features of its images.
        is_enabled: Value of the setting ``feature_cache``.

    Returns:
        Whether the runners now use features.

    Raises:
        SettingsError: If the settings ask for views and the task does not augment images, or they ask for views or
            harmonised features and features can't be cached.
    """
    if settings.feature_views and task.augmentation is None:
        raise SettingsError(
            "no_augmentation",
            f"expected a bundle or task that augments training images at random, because 'feature_views' is "
            f"{settings.feature_views}, got one without augmentation. All views would be equal: set 'feature_views' "
            "to 0.",
            setting="feature_views",
        )
    runners = [runner for runner in runners if any(map(len, _datasets(runner.data)))]
    if not runners:
        return False
    reason = _reason_against(runners, method, task, settings) if is_enabled else "'feature_cache' is off"
    requiring = [name for name in ("feature_views", "harmonise_features") if getattr(settings, name) not in (0, "none")]
    if reason and requiring:
        name = requiring[0]
        raise SettingsError(
            "unusable_setting",
            f"'{name}' is {getattr(settings, name)}, but features can't be computed once: {reason}. The run would not "
            f"train as its settings say. Leave '{name}' out.",
            setting=name,
            reason=reason,
        )
    if reason:
        if is_enabled and task.train_part == "head":
            logger.info("The features of the frozen body are computed again in each round: %s.", reason)
        return False
    extractor = FeatureExtractor(task, settings)
    for runner in runners:
        runner.data = extractor.splits(runner.data, folder_of(runner.name))
        runner.task = runner.task.on_features()
    logger.info("The features of the frozen body are computed once, and stored in the folders of the sites.")
    return True


def cache_folder(data: Path | None, run_state: Path) -> Path:
    """Return the folder for the features of a participant's images.

    Args:
        data: Folder of the participant's data; None for data in memory.
        run_state: Folder of the participant's state in the run folder, used if `data` can't be written.
    """
    is_writable = data is not None and data.is_dir() and os.access(data, os.W_OK)
    return (data if data is not None and is_writable else run_state) / CACHE_FOLDER


def feature_files(folder: Path) -> list[Path]:
    """Return the files of features in a folder, sorted, with the unfinished files of runs that were killed.

    An unfinished file that is younger than a day is left out, because a run may be writing it.

    Args:
        folder: Folder of cached features; it may contain other files.
    """

    def is_listed(path: Path) -> bool:
        name = FEATURE_FILE.fullmatch(path.name)
        return name is not None and (name[1] is None or time.time() - path.lstat().st_mtime > STALE_SECONDS)

    return sorted(path for path in folder.glob("*") if is_listed(path))


def _reason_against(runners: list[SiteRunner], method: Method, task: Task, settings: Settings) -> str:
    """Return the reason, in words, why features can't be cached; empty if they can."""
    if not task.frozen():
        return "no parameter is frozen"
    if set(settings.networks_by_site.values()) - {task.network}:
        return "the sites have different networks"
    if task.augmentation is not None and not settings.feature_views:
        return "images are augmented at random, and 'feature_views' is 0"
    if task.inferer is not None or task.regions is not None:
        return "the bundle has an inferer or regions of images"
    if used := IMAGE_NEEDS & method.active_needs:
        return f"the method uses images or stages of the body (its needs: {', '.join(sorted(used))})"
    if settings.adversaries:
        return "attackers may change images"
    datasets = [data for runner in runners for data in _datasets(runner.data)]
    if any(is_augmenting(data) or is_self_scoring(data) for data in datasets):
        return "the bundle's own transforms read the images"
    images = next(data.batch(torch.arange(2).clamp(max=len(data) - 1))[0] for data in datasets if len(data))
    return _reason_of_network(task.build(), images)


def _reason_of_network(model: nn.Module, images: torch.Tensor) -> str:
    """Return the reason why a network is not a frozen body without random parts and a head; empty if it is."""
    body, head = getattr(model, "body", None), getattr(model, "head", None)
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
        return "the network has no body and head"
    if {id(p) for p in model.parameters() if p.requires_grad} - {id(p) for p in head.parameters()}:
        return "parameters outside the head learn"
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        features = model.train().body(images)  # type: ignore[operator]
        in_training = [_call_seeded(model, images), _call_seeded(head, features)]
        model.eval()
        if not torch.equal(features, body(images)):
            return "the body is random"
        in_evaluation = [model(images), head(features)]
    alike = all(torch.allclose(whole, parts, atol=1e-5) for whole, parts in (in_training, in_evaluation))
    return "" if alike else "the network does more than its head after its body, such as dropout between them"


def _call_seeded(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a module with a fixed seed of torch's generator."""
    torch.manual_seed(0)
    outputs: torch.Tensor = module(inputs)
    return outputs


def _datasets(data: Splits) -> list[Dataset]:
    """Return all data sets of a participant."""
    return [data.train, data.val, data.test, *([data.shared] if data.shared is not None else [])]


class FeatureExtractor:
    """Frozen body of a run's network, which computes features of data sets and stores them.

    Args:
        task: Task of the run.
        settings: Settings of the run, for the precision.
    """

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task, self._settings, self._augmentation = task, settings, task.augmentation
        self._wrapped: dict[int, FeatureDataset] = {}  # by the data set's identity; it is kept alive by its wrapper
        self._keys: dict[int, tuple[Dataset, str]] = {}  # by the data set's identity; the entry keeps it alive

    def splits(self, data: Splits, folder: Path) -> Splits:
        """Return a participant's data with features in place of images.

        Args:
            data: The participant's data.
            folder: Folder for the features of data sets that no earlier participant has.
        """
        return replace(
            data,
            train=self._with_views(data.train, folder)
            if self._augmentation
            else self._with_features(data.train, folder),
            val=self._with_features(data.val, folder),
            test=self._with_features(data.test, folder),
            shared=None if data.shared is None else self._with_features(data.shared, folder),
        )

    def _with_features(self, data: Dataset, folder: Path) -> Dataset:
        """Return a data set with features; the same one for the same data set, and an empty one unchanged."""
        if not len(data):
            return data
        if id(data) not in self._wrapped:
            self._wrapped[id(data)] = FeatureDataset(data, self, folder)
        return self._wrapped[id(data)]

    def _with_views(self, data: Dataset, folder: Path) -> Dataset:
        """Return a data set with the features of augmented views, or an empty one unchanged."""
        return AugmentedFeatureDataset(data, self, folder) if len(data) else data

    def views(self, data: Dataset, folder: Path) -> torch.Tensor:
        """Return the features (K, n, ...) of K augmented views of each image of a data set, float32.

        K is the setting ``feature_views``. The views depend only on the run's seed and the number of the image's row.
        """
        augmentation, seed, count = self._augmentation, self._settings.seed, self._settings.feature_views
        assert augmentation is not None
        description = repr((self._key(data), count, augmentation.facts, seed))
        path = folder / f"views-{hashlib.sha256(description.encode()).hexdigest()}.safetensors"

        def augment(images: torch.Tensor, rows: torch.Tensor, view: int) -> torch.Tensor:
            return augmentation.seeded(images, None, [seed_of(seed, "view", view, row) for row in rows.tolist()])[0]

        functions, rows = [partial(augment, view=view) for view in range(count)], torch.arange(len(data))
        return _read_or_compute(
            path,
            lambda stored: len(stored) == count and self._agrees(stored[0], data, functions[0]),
            lambda: torch.stack([self.compute(data, rows, function) for function in functions]),
        )

    def features(self, data: Dataset, folder: Path) -> torch.Tensor:
        """Return the features (n, ...), float32, of all images of a data set; read them if the folder has them."""
        path = folder / f"features-{self._key(data)}.safetensors"
        rows = torch.arange(len(data))
        return _read_or_compute(path, lambda stored: self._agrees(stored, data), lambda: self.compute(data, rows))

    def compute(self, data: Dataset, rows: torch.Tensor, augment: ViewFunction | None = None) -> torch.Tensor:
        """Compute the features (B, ...) of some rows, float32 on the CPU.

        Args:
            data: The data set.
            rows: Row numbers, shape (B,).
            augment: Function from images (b, C, *spatial) and their rows (b,) to augmented images; None for no
                augmentation.
        """
        batches = rows.split(FEATURE_BATCH)
        features = []
        with torch.no_grad(), autocast(self._settings, self._task.device):
            for loaded in load_batches(data, batches, doing=SCORING, total=len(batches)):
                images = loaded.inputs if augment is None else augment(loaded.inputs, loaded.rows)
                features.append(self._body(images.to(self._task.device)).float().cpu())
        return torch.cat(features)

    @cached_property
    def _body(self) -> nn.Module:
        """Body of the network on the task's device, in evaluation mode."""
        model = self._task.load(self._task.initial(self._settings.seed))
        return body_and_head(model.eval())[0]

    def _key(self, data: Dataset) -> str:
        """Return the name of the features: a SHA-256 of the images, the body's tensors and its description."""
        if id(data) not in self._keys:  # all images are read
            parts = (hash_dataset(data), self._task.frozen_digest(), repr(self._body), self._settings.precision)
            self._keys[id(data)] = data, hashlib.sha256(repr(parts).encode()).hexdigest()
        return self._keys[id(data)][1]

    def _agrees(self, stored: torch.Tensor, data: Dataset, augment: ViewFunction | None = None) -> bool:
        """Return True if the stored features of the first images equal computed ones: the body's code may change."""
        rows = torch.arange(min(len(data), CHECKED_IMAGES))
        computed = self.compute(data, rows, augment)
        if len(stored) != len(data) or stored.shape[1:] != computed.shape[1:]:
            return False
        return torch.allclose(stored[rows], computed, rtol=0, atol=MAX_DIFFERENCE * float(computed.abs().max()))


class FeatureDataset:
    """Data set with the features of another data set's images in place of the images, computed when first read.

    Args:
        data: The data set with images.
        extractor: Extractor of the features.
        folder: Folder of the stored features.

    Attributes:
        class_labels: Class of each case, shape (n,), int64; None if cases have no class.
        patients: Patient number of each case, shape (n,), int64; None if patients are unknown.
    """

    def __init__(self, data: Dataset, extractor: FeatureExtractor, folder: Path) -> None:
        self._data, self._extractor, self._folder = data, extractor, folder
        self.class_labels, self.patients = data.class_labels, patients_of(data)

    @cached_property
    def features(self) -> torch.Tensor:
        """Features of all images, (n, ...), float32."""
        return self._extractor.features(self._data, self._folder)

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features (B, ...) and targets (B, ...) of the given rows."""
        return self.features[rows], self.targets(rows)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets (B, ...) of the given rows."""
        return self._data.targets(rows)


class AugmentedFeatureDataset(FeatureDataset):
    """Data set with the features of several augmented views of each image, of which each visit draws one at random.

    `batch` returns the features of the images without augmentation. It implements `medfl.types.AugmentingDataset`.
    """

    @cached_property
    def views(self) -> torch.Tensor:
        """Features of all views, (K, n, ...), float32."""
        return self._extractor.views(self._data, self._folder)

    def visits(self, batches: Iterable[torch.Tensor], stream: int, skip: int = 0) -> Iterator[LoadedBatch]:
        """Yield each batch after the first `skip` with a random view of each image; draws depend only on `stream`."""
        generator = make_generator("feature views", stream)
        for number, rows in enumerate(batches):
            views = torch.randint(len(self.views), (len(rows),), generator=generator)
            if number >= skip:
                yield LoadedBatch(rows, self.views[views, rows], self.targets(rows))


def _read_or_compute(
    path: Path, agrees: Callable[[torch.Tensor], bool], compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the features in a file; compute and write them if there are none, or the file is damaged or outdated.

    Args:
        path: Path of the file.
        agrees: Function that tells whether stored features are still valid.
        compute: Function that computes the features.
    """
    try:
        stored = wire.decode(path.read_bytes())[0]["features"]
    except (OSError, DamagedError, KeyError):
        stored = None
    if stored is not None and agrees(stored):
        return stored
    computed = compute()
    write_atomic(path, wire.encode({"features": computed}, {}))
    return computed
