"""Python API: prepare data, split them into sites, run federations, and read and compare their results.

The package `medfl` exports everything here, for example ``medfl.run``. The command line calls the same functions.
Errors are exceptions (`medfl.errors.MedflError`); no function exits the process.

A federation is a group of sites that train a model together. A data list is a JSON file that assigns the images of an
array to training, validation and test. A bundle is MONAI's format for a model with its configuration and weights.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfl.contract import Method
from medfl.engine.runs.records import RunRecord, read_run
from medfl.errors import PluginError, SettingsError, check_choice
from medfl.plugins import Registry, load_plugins
from medfl.types import PathLike

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn
    from torch.utils.data import Dataset as TorchDataset

    from medfl.data.datalists import Datalist
    from medfl.engine.evaluation import MetricRow
    from medfl.records.evaluation import Evaluation
    from medfl.task import Task
    from medfl.types import Dataset

logger = logging.getLogger(__name__)

OnRound = Callable[[int, "pd.DataFrame"], object]
"""Function that is called after each round with its number and a table of new metrics (columns as in `Run.metrics`).

A round is scored during the next round, so the table contains the scores of the round before. After the last round the
function is called once more, with the scores of that round."""

SiteParts = Sequence["TorchDataset[Any] | Dataset | None"]
"""Training, validation and test data of a site, each None if the site has none."""


Plugins = Sequence[PathLike] | Registry
"""Plugin files, or loaded plugins."""


# ---- data


@dataclass(frozen=True)
class PreparedData(os.PathLike[str]):
    """Prepared data on disk, pooled (as `prepare` writes them) or split into sites (as `partition` writes them).

    Functions accept it in place of a path.

    Attributes:
        folder: Folder of the data.
        lists: Maps each site to its data list. Pooled data have the only key ``pooled``.
    """

    folder: Path
    lists: Mapping[str, Datalist] = field(repr=False, compare=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def counts(self) -> pd.DataFrame:
        """Table with the number of images of each site, split and class: columns site, split, class, images."""
        import pandas as pd

        rows = [
            (site, split, datalist.labels.get(label, label), number)
            for site, datalist in self.lists.items()
            for split, by_label in datalist.counts().items()
            for label, number in by_label.items()
        ]
        return pd.DataFrame(rows, columns=["site", "split", "class", "images"])


def prepare(
    dataset: str,
    *,
    out: PathLike,
    force: bool = False,
    workers: int | None = None,
    require_complete: bool | None = None,
    plugins: Plugins = (),
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> PreparedData:
    """Write a data set as downloaded, or your own images, to a folder as one array of images and a data list.

    Args:
        dataset: Name of the data set (``medfl list datasets``); ``folder`` for your own images with a table.
        out: Folder to write. After an error it does not exist.
        force: Whether existing data may be replaced.
        workers: Number of processes; by default one for each core.
        require_complete: Whether an unreadable image is an error; by default the data set decides.
        plugins: Plugin files to load, or loaded plugins.
        say: Function that receives lines of progress and warnings; by default they are logged.
        **options: Options of the data set, as in ``medfl prep NAME --help`` with underscores, such as ``source``.

    Raises:
        PluginError: If no plugin has a data set of that name.
        SettingsError: If an option is unknown, missing or not valid.
        DataError: If files are missing, or their content is not valid.
    """
    from medfl.data.ingest.prepare import prepare as prepare_spec
    from medfl.settings import read_settings

    spec = read_settings(_registry(plugins).dataset(dataset), _texts(options), where=f"data set '{dataset}'")
    frame: dict[str, Any] = {"force": force, "workers": workers}
    if require_complete is not None:
        frame["require_complete"] = require_complete
    datalist = prepare_spec(spec, Path(out), say=say or logger.info, **frame)
    return PreparedData(Path(out), {"pooled": datalist})


def partition(
    data: PathLike,
    *,
    out: PathLike,
    scheme: str = "iid",
    force: bool = False,
    plugins: Plugins = (),
    **options: Any,
) -> PreparedData:
    """Split the training images of pooled data into sites, and write a data list for each site. No image is copied.

    Args:
        data: Pooled data that `prepare` wrote.
        out: Folder to write, with one folder for each site. After an error it does not exist.
        scheme: Name of the partition (``medfl list partitions``).
        force: Whether an existing partition may be replaced.
        plugins: Plugin files to load, or loaded plugins.
        **options: Fields of `medfl.data.partition.plan.PartitionPlan`, such as ``sites``, ``seed``, ``column`` and
            ``val_fraction``, and options of the scheme, such as ``alpha``.

    Raises:
        PluginError: If no plugin has a partition of that name.
        SettingsError: If an option is unknown, or the data do not allow it.
        DataError: If the pooled data are damaged, or images leak between training and test.
    """
    from medfl.data.partition.partition import partition as write_partition
    from medfl.data.partition.plan import PartitionPlan
    from medfl.data.partition.writing import count_classes_by_site

    registry = _registry(plugins)
    values = _texts(options)
    of_plan = {name: values.pop(name) for name in list(values) if name in PartitionPlan.__dataclass_fields__}
    plan = PartitionPlan(scheme, **({"options": values} | of_plan))
    written = write_partition(data, out, plan, registry.partition(scheme), force=force)
    counts, classes = count_classes_by_site(written)
    registry.notify("medfl_partition_written", folder=str(out), counts=counts, classes=classes)
    return PreparedData(Path(out), written)


def _texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with paths converted to text, as settings need them."""
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}


def _registry(plugins: Plugins) -> Registry:
    """Return loaded plugins; load plugin files if paths are given."""
    return plugins if isinstance(plugins, Registry) else load_plugins([Path(path) for path in plugins])


# ---- runs


@dataclass(frozen=True)
class Run(RunRecord):
    """A run and its results.

    It also has the attributes of `medfl.engine.runs.records.RunRecord`, such as `sites` and `status`.

    Attributes:
        folder: Path of the run folder.
        run: Content of ``run.json``: settings, versions, and origin of data and code.
        summary: Content of ``summary.json``: status and final scores; None until the run has ended.
        metrics: Scores and costs of all rounds, with the columns round, site, model, split, moment, metric, value. The
            moment says when a model was scored: after aggregation or directly after local training.
        load_model: For a run on data in memory: function of a site's name that returns the site's model, or the global
            model for None. For a run over a bundle, whose models are in the run folder, the attribute is None.
        kept_alive: Object that has to live as long as the run, such as its temporary folder.
    """

    load_model: Callable[[str | None], nn.Module] | None = field(default=None, repr=False, compare=False)
    kept_alive: object = field(default=None, repr=False, compare=False)

    def model(self, site: str | None = None) -> nn.Module:
        """Return a trained network on the CPU, in evaluation mode.

        Args:
            site: Name of a site, for the model of its exported bundle; None for the global model.

        Raises:
            StoreError: If the run has no such model.
        """
        from medfl.bundle.exported import load_exported

        if self.load_model is not None:
            return self.load_model(site).eval()
        return load_exported(self.folder / "global" if site is None else self.folder / "sites" / site).eval()

    def report(self, out: PathLike | None = None) -> Path:
        """Write the HTML report of this run and return its path.

        Args:
            out: File to write; by default ``report.html`` in the run folder.

        Raises:
            PluginError: If the plugin that writes reports is not installed or is disabled.
        """
        place = None if out is None else os.fspath(out)
        written = load_plugins().hook.medfl_write_report(folders=[str(self.folder)], out=place)
        if written is None:
            raise _missing_plugin("a report", "medfl_report")
        return Path(written)


def load_run(folder: PathLike) -> Run:
    """Read a run folder. The run may be finished or still running.

    Args:
        folder: Run folder.

    Raises:
        StoreError: If the folder contains no run, or one of its files can't be read.
    """
    return Run(**vars(read_run(folder)))


def run(
    bundle: str | os.PathLike[str] | None = None,
    sites: PathLike | Mapping[str, SiteParts] | None = None,
    *,
    task: Task | None = None,
    method: str | Method = "fedavg",
    method_args: Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    plugins: Sequence[PathLike] = (),
    on_round: OnRound | None = None,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Run a federation to its end, and write its results to the run folder.

    Give a bundle and prepared data, or a task and data sets of PyTorch. A call with the folder of an interrupted run
    continues that run, with bitwise the same results as without the interruption.

    Args:
        bundle: Name of a bundle (``medfl list bundles``), or its folder.
        sites: With a bundle: folder of the sites that `partition` wrote; None takes the folder in the bundle's
            configuration. With a task: maps each site to its training, validation and test data, which are map-style
            data sets of ``(input, target)`` pairs.
        task: Networks, loss, optimiser and objective, in place of a bundle.
        method: Name of a method (``medfl list methods``), or a method object with a task.
        method_args: Settings of the method.
        out: Run folder. By default the bundle decides; with a task it is a temporary folder that exists as long as the
            `Run`.
        plugins: Plugin files to load.
        on_round: Function that is called after each round.
        progress: Whether to show the rounds and, with a bundle, a table of scores at the end.
        **options: Settings of the run (`medfl.settings`), such as ``rounds``, ``workers``, ``seed`` and ``privacy``.
            With a bundle also ids of its configuration; ``__`` separates an id and its part: ``optimizer__lr=0.05``.

    Returns:
        The finished run.

    Raises:
        MedflError: If settings, data, method or run folder are not valid.
    """
    if (bundle is None) == (task is None):
        raise SettingsError(
            "incompatible_settings",
            "Expected either a bundle, such as medfl.run('medmnist_classification', 'data/sites'), or a task with data "
            f"sets, such as medfl.run(task=..., sites={{...}}); got {'neither' if bundle is None else 'both'}.",
            settings=["bundle", "task"],
        )
    if task is not None:
        return _run_in_memory(task, sites, method, method_args, out, plugins, on_round, progress, options)
    from medfl.bundle.bundle_folders import find_bundle
    from medfl.workflow import run_bundle

    if not isinstance(method, str) or isinstance(sites, Mapping):
        raise SettingsError(
            "incompatible_settings",
            "Expected the name of a method and the folder of the sites with a bundle. Method objects and data sets "
            "need a task.",
            settings=["bundle", "method", "sites"],
        )
    values = {name.replace("__", "#"): value for name, value in _texts(options).items()} | {"method": method}
    folders = {"dataset_dir": sites, "output_dir": out}
    values |= {name: os.fspath(path) for name, path in folders.items() if path is not None}
    values |= {} if method_args is None else {"method_args": dict(method_args)}
    values |= {"plugins": [os.fspath(path) for path in plugins]} if plugins else {}
    folder = run_bundle(find_bundle(os.fspath(bundle)), values, _as_rows(on_round), progress)  # type: ignore[arg-type]
    return load_run(folder)


def _run_in_memory(
    task: Task,
    sites: object,
    method: str | Method,
    method_args: Mapping[str, Any] | None,
    out: PathLike | None,
    plugins: Sequence[PathLike],
    on_round: OnRound | None,
    progress: bool,
    options: Mapping[str, Any],
) -> Run:
    """Run a federation over data sets in memory. The arguments are those of `run`."""
    from medfl.engine.memory_run import run_in_memory

    if not isinstance(sites, Mapping):
        raise SettingsError(
            "wrong_setting_type",
            "Expected sites as a mapping from their names to (training, validation, test) data sets, got "
            f"{type(sites).__name__}.",
            setting="sites",
            found=type(sites).__name__,
        )
    temporary = tempfile.TemporaryDirectory(prefix="medfl-") if out is None else None
    folder = Path(out) if out is not None else Path(temporary.name, "run")  # type: ignore[union-attr]  # as out is None
    load_model = run_in_memory(
        task,
        sites,
        method,
        dict(method_args or {}),
        _texts(options),
        folder,
        _registry(plugins),
        _as_rows(on_round),
        progress,
    )
    return Run(**vars(read_run(folder)), load_model=load_model, kept_alive=temporary)


def compare(
    runs: Sequence[Run | PathLike],
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    split: str = "test",
) -> pd.DataFrame:
    """Compare runs over their seeds and folds: means, worst sites, and differences from a baseline.

    Args:
        runs: Runs or run folders. Runs that differ only in their seed and fold form one row.
        metrics: Names of metrics; by default the first metric of the task.
        baseline: Label of the row with which the others are compared; by default the first row.
        split: ``test`` or ``val``.

    Returns:
        One row for each metric and group of runs. The main columns are metric, label, method, mean and std (over
        runs), worst (site), baseline, difference, low and high (95 % confidence interval), effect, and p-values.

    Raises:
        SettingsError: If a metric, the baseline or the split is unknown.
        StoreError: If no run has scores.
        PluginError: If the plugin that compares runs is not installed or is disabled.
    """
    folders = [str(each.folder) if isinstance(each, RunRecord) else os.fspath(each) for each in runs]
    table = load_plugins().hook.medfl_compare(
        folders=folders, metrics=None if metrics is None else list(metrics), baseline=baseline, split=split
    )
    if table is None:
        raise _missing_plugin("a comparison", "medfl_report")
    result: pd.DataFrame = table
    return result


def evaluate(
    model: Run | PathLike,
    dataset_dir: PathLike,
    *,
    out: PathLike | None = None,
    split: str = "test",
    device: str = "auto",
) -> list[Evaluation]:
    """Score a finished model on the data of a site, for example one that did not take part in its training.

    The predictions, the scores with their intervals over patients, and the relation of the images to the run's data are
    written to a folder. `Evaluation.is_external` is true only if no image and no patient was in the run's data.

    Args:
        model: A run or run folder, for its global model or else the models of all its sites; ``RUN#SITE`` for the model
            of a site; or the folder of an exported bundle.
        dataset_dir: Folder of a prepared site, or folder with one folder for each site.
        out: Folder to write; by default ``evaluations/MODEL-at-SITE`` in the run folder.
        split: ``test`` for the test images of the site, or ``all`` for the images of all splits.
        device: ``auto``, ``cpu`` or ``cuda:N``.

    Returns:
        One evaluation for each site.

    Raises:
        StoreError: If there is no such model.
        SettingsError: If `split` is unknown, or the run has no such site.
        DataError: If the data are missing, or do not fit the model.
        PluginError: If the plugin that evaluates models is not installed or is disabled.
    """
    target = model.folder if isinstance(model, RunRecord) else model
    check_choice("split", split, ("test", "all"))
    done: list[Evaluation] | None = load_plugins().hook.medfl_evaluate(
        model=os.fspath(target),
        dataset_dir=os.fspath(dataset_dir),
        out=None if out is None else os.fspath(out),
        split=split,
        device=device,
    )
    if done is None:
        raise _missing_plugin("an evaluation", "medfl_report")
    return done


def _as_rows(on_round: OnRound | None) -> Callable[[int, list[MetricRow]], object] | None:
    """Return a function that a run can call with rows of metrics; it calls `on_round` with a table. None stays None."""
    return None if on_round is None else bind(_call_with_table, on_round)


def _call_with_table(on_round: OnRound, round_: int, rows: list[MetricRow]) -> None:
    """Call the user's function with the rows as a table."""
    import pandas as pd

    from medfl.engine.evaluation import MetricRow

    on_round(round_, pd.DataFrame(rows, columns=list(MetricRow._fields)))


def _missing_plugin(what: str, plugin: str) -> PluginError:
    """Return the error about a plugin that is not loaded."""
    return PluginError(
        "missing_plugin",
        f"Expected a plugin that makes {what}, such as '{plugin}'; found none. Install it, or remove it from the "
        "environment variable MEDFL_DISABLE.",
        plugin=plugin,
    )
