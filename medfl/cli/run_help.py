"""The help of ``medfl run``: all options of a run in groups, the common ones first, with their defaults.

The options are the settings of `medfl.settings`, each with the first sentence of its description, and ids of the
bundle's configuration. Ids that all bundles share are described here. If the command line names a bundle, the help
shows its values as defaults, and also lists the ids that only this bundle has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_origin

import typer.core
import yaml
from pydantic.fields import FieldInfo

from medfl.bundle.bundle_folders import find_bundle, shipped_bundles
from medfl.bundle.option_spelling import option_of_id
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import run_fields
from medfl.utils.field_descriptions import flow, model_of, type_of, value_of

SHARED_IDS = {
    "method": "Federated learning method, a name from `medfl list methods`.",
    "method_args": "Settings of the method, one by one, as --method-args.mu 0.1 (`medfl docs` describes them).",
    "network_name": "Name of the network that sites train, a key of the bundle's `networks`.",
    "optimizer": "Optimiser of the sites; its arguments one by one, as --optimizer.lr 0.05.",
    "loss": "Loss function of the sites; its arguments one by one.",
    "metrics": "Names of the metrics, the most important one first.",
    "output_dir": "Run folder, for scores, the report, and a bundle for each site.",
    "sites": "Names of the sites that take part; None takes all in the data folder.",
    "public": "Folder with public data, for methods that need them; None takes 'public' in the data folder, if any.",
    "label_map": "Maps each class of the public data to a class of the sites, or to None to leave the class out.",
    "allow_leaks": "Kinds of leaks between splits to allow: 'subjects', 'pixels'. The report names them.",
    "allow_changes": "Names of data files that may have changed since `medfl partition`. The report names them.",
    "plugins": "Plugin files to load.",
    "disabled_plugins": "Names of plugins not to load.",
    "backend": "Backend that runs the requests: 'local' for this machine, or one of a plugin, such as 'flare'.",
    "given_by": "Note in run.json about who chose the settings.",
    "save_execute_config": "Whether MONAI's tracking writes the executed configuration to a file.",
}
"""Description of each id that all shipped bundles have in their configurations, by id."""

OTHER_OPTIONS = {
    "tracking": ("MONAI's experiment tracking: 'mlflow', or a file with settings.", "None"),
    "meta_file": ("MONAI's option: metadata file of the bundle.", "None"),
    "logging_file": ("MONAI's option: file that configures Python's logging.", "None"),
    "init_id": ("MONAI's option: id to run first.", "initialize"),
    "run_id": ("MONAI's option: id to run.", "run"),
    "final_id": ("MONAI's option: id to run last.", "finalize"),
    "workflow_type": ("MONAI's option: kind of the workflow.", "train"),
    "properties_path": ("MONAI's option: file with the workflow's properties.", "None"),
}
"""Maps each option that is neither a setting nor an id of the bundle to its description and default."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Common options": (
        "method",
        "method_args",
        "rounds",
        "epochs",
        "steps",
        "batch_size",
        "optimizer",
        "network_name",
        "metrics",
        "seed",
        "output_dir",
        "workers",
        "device",
        "devices",
    ),
    "Training": (
        "start",
        "start_skip",
        "train_part",
        "lora",
        "feature_views",
        "harmonise_features",
        "loss",
        "lr_decay",
        "optimization",
        "balance",
        "precision",
        "norm_sync",
        "networks_by_site",
    ),
    "Sites and their data": (
        "sites",
        "fraction",
        "min_replies",
        "disclose",
        "public",
        "label_map",
        "allow_leaks",
        "allow_changes",
    ),
    "Evaluation": (
        "evaluate_every",
        "best_round",
        "patience",
        "moments",
        "cross_site_evaluation",
        "shared_test",
        "keep_rounds",
        "worst_case_images",
        "open_test",
    ),
    "Privacy, robustness and communication": (
        "privacy",
        "secure_aggregation",
        "robust",
        "norm_bound",
        "adversaries",
        "compression",
    ),
    "Computing": ("threads", "cache", "feature_cache", "cache_dir", "loaders", "checkpoint_minutes"),
    "Plugins": ("plugins", "disabled_plugins"),
    "Backend": ("backend",),
    "Records, and MONAI's own options": (
        "given_by",
        "tracking",
        "save_execute_config",
        "meta_file",
        "logging_file",
        "init_id",
        "run_id",
        "final_id",
        "workflow_type",
        "properties_path",
    ),
}
"""Maps the title of each group to its settings and ids. "Other settings" lists the settings in no group."""

NO_OPTIONS = frozenset(
    {"imports", "bundle_root", "dataset_dir", "settings", "federation", "task", "initialize", "run", "finalize"}
)
"""Ids that the help leaves out: code and objects of the configuration, and ids that a separate option sets."""

REFERENCE = re.compile(r"@(\w+)")
"""Pattern of a reference, such as ``@optimizer``, to a top-level id of a configuration or to a part of one."""


@dataclass(frozen=True)
class OptionHelp:
    """Entry of an option in the help.

    Attributes:
        name: Setting or id that the option sets, such as ``optimizer#lr``.
        text: Description in one sentence; may be empty.
        default: Default as users type it; None if the default depends on the bundle and the user named no bundle.
        choices: Allowed values, or "" if there is no fixed list.
    """

    name: str
    text: str
    default: str | None
    choices: str = ""

    @property
    def option(self) -> str:
        """The option with its dashes, such as ``--optimizer.lr``."""
        return option_of_id(self.name)

    def describe(self) -> str:
        """Return the description with choices and default."""
        notes = [self.choices] if self.choices else []
        notes.append("default: the bundle's" if self.default is None else f"default: {self.default}")
        return f"{self.text} [{'; '.join(notes)}]".lstrip()


def option_groups(bundle: str | None = None) -> dict[str, list[OptionHelp]]:
    """Return all options of a run by group.

    Args:
        bundle: Folder of a bundle, or name of a shipped bundle, whose values are the defaults. None takes the values
            that all shipped bundles share.

    Raises:
        SettingsError: If there is no such bundle, or one of its files contains no JSON object.
    """
    values = _common_values() if bundle is None else bundle_ids(bundle)
    groups = {title: [option for name in names for option in _options(name, values)] for title, names in GROUPS.items()}
    listed = {name for names in GROUPS.values() for name in names}
    other = [option for name in run_fields() if name not in listed for option in _options(name, values)]
    own = [] if bundle is None else sorted(_used_ids(values) - {*listed, *run_fields(), *NO_OPTIONS})
    groups["Backend"] += [
        OptionHelp(name, f"With {record.name}: {text[:1].lower()}{text[1:]}", str(default))
        for record in load_plugins().backends.values()
        for name, (text, default) in record.options.items()
    ]
    return groups | {
        "Other settings": other,
        "More ids of this bundle": [option for name in own for option in _own_options(name, values[name])],
    }


def bundle_ids(name_or_path: str) -> dict[str, Any]:
    """Read the ids of a bundle's training and federated configurations, without importing torch.

    Args:
        name_or_path: Folder of a bundle, or name of a shipped bundle.

    Returns:
        Maps each top-level id to its value as written in the file. Ids of ``federate.json`` take precedence.

    Raises:
        SettingsError: If there is no such bundle, or a file contains no JSON object.
    """
    folder = find_bundle(name_or_path) / "configs"
    values: dict[str, Any] = {}
    for file in (*sorted(folder.glob("train.*")), folder / "federate.json"):
        try:
            text = file.read_text(encoding="utf-8")
            values |= json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            raise SettingsError(
                "invalid_bundle_file", f"Expected a JSON object in '{file}': {error}. Correct the file.", path=file
            ) from None
    return values


def _used_ids(values: Mapping[str, Any]) -> set[str]:
    """Return the top-level ids that a run builds, directly or because another id refers to them."""
    waiting = ["imports", "initialize", "run", "finalize"]
    if "adopted" in values:  # the sites build these from the stock configuration
        waiting += [str(name).partition("#")[0] for name in values["adopted"].get("used", ())]
    used: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in values and name not in used:
            used.add(name)
            waiting += REFERENCE.findall(json.dumps(values[name]))
    return used


def _common_values() -> dict[str, Any]:
    """Return the value of each id that has the same value in all shipped bundles."""
    first, *others = (bundle_ids(name) for name in shipped_bundles())
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


class RunCommand(typer.core.TyperCommand):
    """Command ``medfl run``, whose help lists the settings and ids of a run after the command's own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line, and store the bundle in the context for the help."""
        ctx.meta["medfl.bundle"] = args[0] if args and not args[0].startswith("-") else None
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options, then the options of the run by group."""
        super().format_options(ctx, formatter)
        for title, options in option_groups(ctx.meta.get("medfl.bundle")).items():
            if options:
                with formatter.section(title):
                    formatter.write_dl([(option.option, option.describe()) for option in options])


def _options(name: str, values: Mapping[str, Any]) -> Iterator[OptionHelp]:
    """Yield the option of a setting or id, and the options of its parts if it is a setting with several."""
    info = run_fields().get(name)
    if info is not None:
        yield from _setting_options(name, info, values)
    elif name in OTHER_OPTIONS:
        yield OptionHelp(name, *OTHER_OPTIONS[name])
    else:
        yield OptionHelp(name, SHARED_IDS[name], _value(values[name]) if name in values else None)


def _setting_options(name: str, info: FieldInfo, values: Mapping[str, Any]) -> Iterator[OptionHelp]:
    """Yield the option of a setting with the bundle's value or the default, and the options of its parts."""
    default = None if info.is_required() else value_of(info.get_default(call_default_factory=True))
    settings = values.get("settings") or {}
    if name in settings:
        reference = str(settings[name]).removeprefix("@")
        default = _value(values[reference]) if reference in values else None
    choices = type_of(info).replace("`", "") if get_origin(info.annotation) is Literal else ""
    yield OptionHelp(name, first_sentence(info.description or ""), default, choices)
    if model := model_of(info):
        for part, inner in model.model_fields.items():
            for option in _setting_options(f"{name}#{part}", inner, {}):
                yield replace(option, default=option.default or f"none, required with {option_of_id(name)}")


def _own_options(name: str, value: Any) -> Iterator[OptionHelp]:
    """Yield the option of an id that only this bundle has, or for a component the options of its plain arguments."""
    if not isinstance(value, Mapping):
        if str(value)[:1] != "@":  # not a reference to another id
            yield OptionHelp(name, "", _value(value))
        return
    for part, inner in value.items():
        if part[:1] != "_" and not isinstance(inner, (Mapping, list)) and str(inner)[:1] not in "@$%":
            yield OptionHelp(f"{name}#{part}", "", _value(inner))


def _value(value: Any) -> str:
    """Return a value of a configuration as text: for a component its class and arguments."""
    if isinstance(value, Mapping) and "_target_" in value:
        arguments = ", ".join(f"{key}={part}" for key, part in value.items() if key[:1] != "_" and key != "params")
        return f"{str(value['_target_']).rpartition('.')[2]}({arguments})"
    if isinstance(value, str) and value.startswith("$"):
        return f"computed: {value[1:].replace('@', '')}"
    return value_of(value)


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, without Markdown."""
    sentence = re.split(r"(?<=[^.\s][.])\s+(?=[A-Z`])", flow(text), maxsplit=1)[0]
    return sentence.replace("`", "")
