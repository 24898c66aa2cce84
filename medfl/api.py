"""Python API: prepare data, divide them among sites, run federations, and read and compare their results.

The package `medfl` offers everything here under its own name, for example ``medfl.run``. The command line calls the
same functions. Errors are exceptions (`medfl.errors.MedflError`); nothing ends the process.
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
from medfl.errors import PluginError, SettingsError
from medfl.plugins import Registry, load_plugins
from medfl.types import PathLike

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn
    from torch.utils.data import Dataset as TorchDataset

    from medfl.data.datalists import Datalist
    from medfl.engine.evaluation import Row
    from medfl.task import Task
    from medfl.types import Dataset

logger = logging.getLogger(__name__)

OnRound = Callable[[int, "pd.DataFrame"], object]
"""Function that is called after each round with its number and the new rows of metrics (columns as `Run.metrics`).

A round is scored in the course of the next one, so the rows hold the scores of the round before. After the last round
the function is called once more, with that round's scores."""

SiteParts = Sequence["TorchDataset[Any] | Dataset | None"]
"""Training, validation and test data of a site; None for a part that it does not have."""


Plugins = Sequence[PathLike] | Registry
"""Plugin files, or loaded plugins."""


# ---- data


@dataclass(frozen=True)
class PreparedData(os.PathLike[str]):
    """Prepared data on disk: pooled, or divided among sites. Functions that take a path take it, too.

    Attributes:
        folder: Folder of the data.
        lists: Maps each site to its data list; pooled data are under ``pooled``.
    """

    folder: Path
    lists: Mapping[str, Datalist] = field(repr=False, compare=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def counts(self) -> pd.DataFrame:
        """Number of images by class, with the columns site, split, class and images."""
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
    """Turn a data set as downloaded, or your own images, into one array of images and a data list.

    Args:
        dataset: Name of the data set (``medfl list datasets``); ``folder`` for your own images with a table.
        out: Folder to write. It is written whole or not at all.
        force: Whether data that are there may be replaced.
        workers: Number of processes; by default one for each core.
        require_complete: Whether an unreadable image is an error; by default as the data set says.
        plugins: Plugin files to load, or loaded plugins.
        say: Function that gets lines of progress and warnings; by default they are logged.
        **options: Options of the data set, as in ``medfl prep NAME --help`` with underscores, such as ``source``.

    Raises:
        PluginError: If no plugin has a data set of that name.
        SettingsError: If an option is unknown, missing or not valid.
        DataError: If the data are not as expected.
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
    """Divide the training images of pooled data among sites. No image is copied.

    Args:
        data: Pooled data, as `prepare` writes them.
        out: Folder to write, with one folder for each site. It is written whole or not at all.
        scheme: Name of the partition (``medfl list partitions``).
        force: Whether a partition that is there may be replaced.
        plugins: Plugin files to load, or loaded plugins.
        **options: Fields of `medfl.data.partition.plan.PartitionPlan`, such as ``sites``, ``seed``, ``column`` and
            ``val_fraction``, and options of the scheme, such as ``alpha``.

    Raises:
        PluginError: If no plugin has a partition of that name.
        SettingsError: If an option is unknown or can't be fulfilled.
        DataError: If the pooled data are damaged, or images leak between training and test.
    """
    from medfl.data.partition.partition import partition as write_partition
    from medfl.data.partition.plan import PartitionPlan
    from medfl.data.partition.writing import counts_by_class

    registry = _registry(plugins)
    values = _texts(options)
    of_plan = {name: values.pop(name) for name in list(values) if name in PartitionPlan.__dataclass_fields__}
    plan = PartitionPlan(scheme, **({"options": values} | of_plan))
    written = write_partition(data, out, plan, registry.partition(scheme), force=force)
    counts, classes = counts_by_class(written)
    registry.notify("medfl_partition_written", folder=str(out), counts=counts, classes=classes)
    return PreparedData(Path(out), written)


def _texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with text in place of paths, as settings read them."""
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}


def _registry(plugins: Plugins) -> Registry:
    return plugins if isinstance(plugins, Registry) else load_plugins([Path(path) for path in plugins])


# ---- runs


@dataclass(frozen=True)
class Run(RunRecord):
    """A run and its results.

    Beside the attributes below it has those of `medfl.engine.runs.records.RunRecord`, such as `sites` and `status`.

    Attributes:
        folder: Path of the run folder.
        run: Content of ``run.json``.
        summary: Content of ``summary.json``; None while the run is not over.
        metrics: Scores and costs of all rounds, with the columns round, site, model, split, moment, metric, value.
    """

    load_model: Callable[[str | None], nn.Module] | None = field(default=None, repr=False, compare=False)
    keeps: object = field(default=None, repr=False, compare=False)

    def model(self, site: str | None = None) -> nn.Module:
        """Return a network with its weights, on the CPU, in evaluation mode.

        Args:
            site: Name of a site, for the model that it exports; None for the global model.

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
            PluginError: If the report's plugin is not there or switched off.
        """
        place = None if out is None else os.fspath(out)
        written = load_plugins().hook.medfl_write_report(folders=[str(self.folder)], out=place)
        if written is None:
            raise _missing_plugin("a report", "medfl_report")
        return Path(written)


def load_run(folder: PathLike) -> Run:
    """Read a run folder, of a finished run or of one that is still at work.

    Raises:
        StoreError: If the folder holds no run, or one of its files can't be read.
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
    """Run a federation to its end. A run that stopped, given again with the same folder, continues with the same bits.

    Give a bundle and prepared data, or a task and data sets of PyTorch.

    Args:
        bundle: Name of a bundle (``medfl list bundles``), or its folder.
        sites: With a bundle: folder of the sites, as `partition` writes it; None takes the bundle's own. With a task:
            maps each site to its training, validation and test data, which are map-style data sets of
            ``(input, target)`` pairs.
        task: Networks, loss, optimiser and objective, in place of a bundle.
        method: Name of a method (``medfl list methods``), or a method object with a task.
        method_args: The method's settings.
        out: Run folder. By default the bundle's choice; with a task a temporary folder that lives as long as the `Run`.
        plugins: Plugin files to load.
        on_round: Function that is called after each round.
        progress: Whether to show the rounds and, with a bundle, a table of scores at the end.
        **options: Settings of the run (`medfl.settings`), such as ``rounds``, ``workers``, ``seed`` and ``privacy``.
            With a bundle also ids of its configuration; ``__`` reaches into a part: ``optimizer__lr=0.05``.

    Returns:
        The finished run.

    Raises:
        MedflError: If settings, data, method or run folder are not as needed.
    """
    if (bundle is None) == (task is None):
        raise SettingsError(
            "incompatible_settings",
            "expected either a bundle, such as medfl.run('medmnist_classification', 'data/sites'), or a task with data "
            f"sets, such as medfl.run(task=..., sites={{...}}); got {'neither' if bundle is None else 'both'}.",
            settings=["bundle", "task"],
        )
    if task is not None:
        return _run_parts(task, sites, method, method_args, out, plugins, on_round, progress, options)
    from medfl.bundle.files import find_bundle
    from medfl.workflow import run_bundle

    if not isinstance(method, str) or isinstance(sites, Mapping):
        raise SettingsError(
            "incompatible_settings",
            "expected the name of a method and the folder of the sites with a bundle; method objects and data sets go "
            "with a task.",
            settings=["bundle", "method", "sites"],
        )
    values = {name.replace("__", "#"): value for name, value in _texts(options).items()} | {"method": method}
    folders = {"dataset_dir": sites, "output_dir": out}
    values |= {name: os.fspath(path) for name, path in folders.items() if path is not None}
    values |= {} if method_args is None else {"method_args": dict(method_args)}
    values |= {"plugins": [os.fspath(path) for path in plugins]} if plugins else {}
    folder = run_bundle(find_bundle(os.fspath(bundle)), values, _as_rows(on_round), progress)  # type: ignore[arg-type]
    return load_run(folder)


def _run_parts(
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
    """Run a federation over data sets in memory; arguments as in `run`."""
    from medfl.engine.memory_run import run_in_memory

    if not isinstance(sites, Mapping):
        raise SettingsError(
            "wrong_setting_type",
            "expected sites as a mapping from their names to (training, validation, test) data sets, got "
            f"{type(sites).__name__}.",
            setting="sites",
            found=type(sites).__name__,
        )
    temporary = tempfile.TemporaryDirectory(prefix="medfl-") if out is None else None
    folder = Path(out) if temporary is None else Path(temporary.name, "run")  # type: ignore[arg-type]  # out is given
    load_model = run_in_memory(
        task,
        sites,
        method,
        dict(method_args or {}),
        options,
        folder,
        _registry(plugins),
        _as_rows(on_round),
        progress,
    )
    return Run(**vars(read_run(folder)), load_model=load_model, keeps=temporary)


def compare(
    runs: Sequence[Run | PathLike],
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    split: str = "test",
) -> pd.DataFrame:
    """Compare runs over their seeds and folds: means, worst sites, and differences from a baseline.

    Args:
        runs: Runs or run folders. Those that differ only in their seed and fold make one row.
        metrics: Names of metrics; by default the task's first.
        baseline: Label of the row that the others are compared with; by default the first.
        split: ``test`` or ``val``.

    Returns:
        One row for each metric and group of runs, with mean, spread, worst site, difference from the baseline, 95 %
        confidence interval and p-values. `medfl_report.compare.compare` lists the columns.

    Raises:
        SettingsError: If a metric, the baseline or the split is unknown.
        StoreError: If no run has scores.
        PluginError: If the report's plugin is not there or switched off.
    """
    folders = [str(each.folder) if isinstance(each, RunRecord) else os.fspath(each) for each in runs]
    table = load_plugins().hook.medfl_compare(
        folders=folders, metrics=None if metrics is None else list(metrics), baseline=baseline, split=split
    )
    if table is None:
        raise _missing_plugin("a comparison", "medfl_report")
    result: pd.DataFrame = table
    return result


def _as_rows(on_round: OnRound | None) -> Callable[[int, list[Row]], object] | None:
    """Return the function as a run calls it, with rows in place of a table."""
    return None if on_round is None else bind(_call_with_table, on_round)


def _call_with_table(on_round: OnRound, round_: int, rows: list[Row]) -> None:
    import pandas as pd

    from medfl.engine.evaluation import Row

    on_round(round_, pd.DataFrame(rows, columns=list(Row._fields)))


def _missing_plugin(what: str, plugin: str) -> PluginError:
    return PluginError(
        "missing_plugin",
        f"Expected a plugin that makes {what}, such as '{plugin}'; there is none. Install it, or don't leave it out "
        "(MEDFL_DISABLE).",
        plugin=plugin,
    )
