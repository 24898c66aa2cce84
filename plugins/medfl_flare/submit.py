"""From the options of a run to what is submitted to a federation across machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from monai.bundle import ConfigParser

from medfl.bundle.handlers import TRACKED, read_tracking
from medfl.engine.runs.provenance import bundle_values, run_files
from medfl.engine.runs.setting_ids import bare_name
from medfl.errors import SettingsError
from medfl.types import Meta
from medfl_flare import ANSWER_TIMEOUT
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import facts_of
from medfl_flare.session import Submission, submit

HERE = frozenset(
    {"backend", "bundle_root", "dataset_dir", "output_dir", "sites", "given_by", "kit", "answer_timeout", *TRACKED}
)
"""Options that are for this machine, or have a place of their own in the offer."""


class FlareLauncher:
    """Backend that submits a run to the sites' machines and follows it to its end."""

    def prepare(self, parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Callable[[], None]:
        """Return the function that submits the run. Arguments and errors are those of `read_submission`."""
        return partial(submit, read_submission(parser, files, options))


def read_submission(parser: ConfigParser, files: str | Sequence[str], options: Meta) -> Submission:
    """What to submit.

    Args:
        parser: With the bundle's files read and the options put into it.
        files: The files that were read.
        options: Id to value, as given by the user.

    Raises:
        SettingsError: If the kit is not named, or further configuration files are given.
        RefusedError: If an option is one that the sites would refuse.
    """
    names = [Path(file).name for file in ([files] if isinstance(files, str) else files)]
    root = Path(str(parser["bundle_root"]))
    own = [path.name for path in run_files(root)]
    if names != own:
        raise SettingsError(
            "unsupported_file",
            f"carrier 'flare' takes the bundle's own files {own}, got {names}: the sites have their own copies of the "
            "bundle. Give what differs as options.",
            expected=own,
            found=names,
        )
    values = {bare_name(name): value for name, value in options.items()}
    if not values.get("kit"):
        raise SettingsError(
            "missing_setting",
            "carrier 'flare' needs --kit, the folder of your startup kit (`medfl federate provision`).",
            setting="kit",
        )
    # of the data at hand, if any, or the bundle's own
    facts = {name: parser.get_parsed_content(name) for name in facts_of(bundle_values(root))}
    sent = facts | {name: value for name, value in values.items() if name not in HERE}
    out = Path(str(parser.get_parsed_content("output_dir"))).absolute()
    sites, timeout = values.get("sites") or (), int(values.get("answer_timeout") or ANSWER_TIMEOUT)
    offer = make_offer(root, sent, out.name, sites, timeout)
    tracking = read_tracking(parser.get_parsed_content("save_execute_config", default=None), out)
    return Submission(offer, Path(str(values["kit"])).absolute(), out, tracking)
