"""Conversion of the options of a run to a submission for a distributed federation.

A submission contains the offer (the proposal of a run, with bundle, method, settings and sites), the researcher's
startup kit, and the local run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from monai.bundle import ConfigParser

from medfl.bundle.stock_features import TRACKING_IDS, read_tracking
from medfl.engine.runs.provenance import bundle_values, run_files
from medfl.engine.runs.setting_ids import bare_name
from medfl.engine.runs.start_source import portable_source
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import read_settings
from medfl.types import Meta
from medfl_flare import REPLY_TIMEOUT
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import offered_ids
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.session import Submission, submit

LOCAL_OPTIONS = frozenset(
    {"backend", "bundle_root", "dataset_dir", "output_dir", "sites", "given_by", "kit", "reply_timeout"}
    | {"gpus", "gpu_memory_gib", *TRACKING_IDS}
)
"""Options that concern only this machine, or that have a separate field in the offer or in the job."""


class FlareLauncher:
    """Launcher of the backend ``flare``: it submits a run to the sites' machines and follows it to its end."""

    def prepare(self, parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Callable[[], None]:
        """Check the options of a run, and return the function that submits the run and follows it.

        Args:
            parser: Parser with the bundle's files and the options.
            files: Configuration files of the run.
            options: Maps ids to values, as the user gave them.

        Raises:
            SettingsError: If no kit is given, or if further configuration files are given.
            RefusedError: If the sites would refuse an option.
        """
        return partial(submit, read_submission(parser, files, options))


def read_submission(parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Submission:
    """Return the submission for the options of a run.

    Args:
        parser: Parser with the bundle's files and the options.
        files: Configuration files of the run.
        options: Maps ids to values, as the user gave them.

    Raises:
        SettingsError: If no kit is given, or if further configuration files are given.
        RefusedError: If the sites would refuse an option.
    """
    names = [Path(file).name for file in ([files] if isinstance(files, str) else files)]
    root = Path(str(parser["bundle_root"]))
    own = [path.name for path in run_files(root)]
    if names != own:
        raise SettingsError(
            "unsupported_file",
            f"the backend 'flare' accepts only the bundle's own files {own}, got {names}: the sites have their own "
            "copies of the bundle. Give other values as options.",
            expected=own,
            found=names,
        )
    values = {bare_name(name): value for name, value in options.items()}
    if not values.get("kit"):
        raise SettingsError(
            "missing_setting",
            "the backend 'flare' needs --kit, the folder of your startup kit (`medfl federate provision`).",
            setting="kit",
        )
    # values from local data, if there are any, or from the bundle
    facts = {name: parser.get_parsed_content(name) for name in offered_ids(bundle_values(root))}
    sent = facts | {name: value for name, value in values.items() if name not in LOCAL_OPTIONS}
    if isinstance(sent.get("start"), str):  # other machines have other paths
        sent["start"] = portable_source(sent["start"], load_plugins())
    out = Path(str(parser.get_parsed_content("output_dir"))).absolute()
    sites, timeout = values.get("sites") or (), int(values.get("reply_timeout") or REPLY_TIMEOUT)
    offer = make_offer(root, sent, out.name, sites, timeout)
    tracking = read_tracking(parser.get_parsed_content("save_execute_config", default=None), out)
    return Submission(offer, Path(str(values["kit"])).absolute(), out, tracking, read_gpu_request(values))


def read_gpu_request(values: Meta) -> GpuRequest | None:
    """Return the GPUs that the options request of each site, or None."""
    count, memory = values.get("gpus", 0), values.get("gpu_memory_gib", 0)
    if count == 0 and memory == 0:
        return None
    return read_settings(GpuRequest, {"count": count, "memory_gib": memory}, "--gpus and --gpu-memory-gib")
