"""Check a bundle's configuration before anything in it is built: refuse unknown options and missing ids.

MONAI itself ignores an unknown option, such as a mistyped ``--optimizer#lrr``, and stops at the first missing id. An id
is a key of a configuration. An adopted bundle is a stock MONAI bundle to which ``medfl adopt`` added a
``federate.json``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser, ReferenceResolver
from monai.utils import optional_import

from medfl.bundle.adopted import ADOPTED, OVERLAY_IDS, OVERRIDES, UsedIds
from medfl.bundle.joined_errors import join_errors
from medfl.bundle.option_spelling import option_of_id
from medfl.engine.runs.setting_ids import SETTINGS_ID, bare_name, find_clashes, options_to_ids, setting_values
from medfl.errors import SettingsError, did_you_mean
from medfl.networks.bundle_parser import SharedLocator
from medfl.settings import run_fields
from medfl.types import Meta
from medfl.utils.field_descriptions import model_of
from medfl.utils.nested import iterate_strings

RUN_IDS = ("imports", "initialize", "run", "finalize")
"""Ids that MONAI evaluates when it runs a configuration. It builds another id only if one of these refers to it."""

LIST_OPTIONS = "medfl run BUNDLE --help"
"""Command that lists the options of a run, for messages."""

MONAI_OPTIONS = (
    "args_file",
    "bundle_root",
    "config_file",
    "dataset_dir",
    "meta_file",
    "logging_file",
    "tracking",
    "workflow_name",
    "workflow_type",
    "properties_path",
    "init_id",
    "run_id",
    "final_id",
)
"""Options that MONAI's own command interprets itself or that every site of an adopted bundle receives, so that they are
not lost."""

FEDERATION = {
    "loss": "loss function that a site minimises, of outputs and targets",
    "optimizer": "optimiser of a site, with one group of parameters",
    "objective": "objective of the task, a class of medfl.objectives",
    "task": "medfl.task.Task: networks, loss, optimizer, objective, metrics",
    "settings": "settings that differ from the defaults of medfl.settings, by name; {} if none does",
    "federation": "medfl.bundle.federated_run.FederatedRun, as in medfl's federate.json",
}
"""Maps each id that a federation needs, besides the ids that MONAI requires, to its description."""

IDS_WITH_NAMES = ("metrics", "allow_leaks", "allow_changes")
"""Ids whose value is a list of names."""


def check_options(parser: ConfigParser, options: Meta, elsewhere: Collection[str] = ()) -> None:
    """Raise if an option names no id or setting, or has no effect in a federation, or names an unknown network.

    Args:
        parser: Parser that has read the configuration files.
        options: Maps each id or setting to the value that the user gave; ``optimizer#lr`` names a part of an id.
        elsewhere: Ids that the caller uses itself, so that they have an effect.

    Raises:
        SettingsError: If at least one option is refused. The message has a line for each.
    """
    settings = set(setting_values(parser.get()))
    used = {*used_ids(parser, RUN_IDS), *RUN_IDS, *elsewhere, *settings}
    stock = _used_at_sites(parser)
    problems = []
    for option in options:
        name = bare_name(option)
        top = name.partition("#")[0]
        if problem := _problem(parser, name, options) or _ambiguity(parser, option, top, stock):
            problems.append(problem)
        elif stock is not None and top not in {*OVERLAY_IDS, *elsewhere, *settings}:
            if not stock.has_effect(name):
                text = f"Option '{option_of_id(name)}' has no effect in a federation: {_why_unused(parser, name)}"
                problems.append(SettingsError("option_without_effect", text, options=[name]))
        elif top not in used:
            text = (
                f"Option '{option_of_id(name)}' has no effect in a federation, which uses these ids: "
                f"{', '.join(sorted(used - {'imports'}))}."
            )
            problems.append(SettingsError("option_without_effect", text, options=[name]))
    if "network_name" in options and options["network_name"] not in (networks := parser.get("networks", {})):
        name = options["network_name"]
        text = f"Unknown network '{name}'. {did_you_mean(str(name), list(networks))}"
        problems.append(SettingsError("unknown_network", text, name=str(name)))
    if problems:
        raise join_errors(problems, "\n  ")


def apply_options(parser: ConfigParser, options: Meta) -> None:
    """Set options in a configuration, in place.

    An adopted bundle parses its stock configuration again for each site. Its options are also stored under the id
    `OVERRIDES`, as JSON text, so that each site sets them there.

    Args:
        parser: Parser that has read the configuration files.
        options: Maps each id or setting to its value. Those in `IDS_WITH_NAMES` take a single name as well as a list.
    """
    for name in IDS_WITH_NAMES:
        value = options.get(name)
        if isinstance(value, str) and value[:1] not in {*"$@%"}:
            options = options | {name: [value]}
    ids = options_to_ids(options, parser.get())
    parser.update(pairs=ids)
    if (stock := _used_at_sites(parser)) is not None:
        ids = {name: value for name, value in ids.items() if stock.has_effect(name)}
        before = parser.get(OVERRIDES) or {}
        text = json.dumps((json.loads(before) if isinstance(before, str) else before) | ids, default=str)
        for letter in "#@%$":  # MONAI interprets these; escaped, it does so only when the site parses the text
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        parser[OVERRIDES] = text


def check_passed_over(command: Sequence[str], configs: Iterable[Path]) -> None:
    """Raise if MONAI's own command would silently ignore a setting or an option of an adopted bundle.

    Args:
        command: Words of the process, as in ``sys.argv``. Those of a program other than MONAI's are not checked.
        configs: Paths of the bundle's JSON configurations.

    Raises:
        SettingsError: If MONAI would ignore an option. The message spells each as MONAI accepts it.
    """
    if not command or Path(command[0]).parts[-3:] != ("monai", "bundle", "__main__.py"):
        return
    names = [word.removeprefix("--").partition("=")[0] for word in command[1:] if word.startswith("--")]
    contents = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in configs}
    ids, overlay = {name for content in contents.values() for name in content}, contents.get("federate.json", {})
    clashing = find_clashes({name: value for content in contents.values() for name, value in content.items()})
    tops = {name: name.replace("::", "#").partition("#")[0] for name in names}
    settings = [
        name for name in names if tops[name] in run_fields() and (tops[name] not in ids or tops[name] in clashing)
    ]
    if settings:
        lines = ", ".join(f"--{SETTINGS_ID}#{name} in place of --{name}" for name in settings)
        raise SettingsError(
            "misplaced_setting",
            f"MONAI's own command only sets ids, and the bundle has no ids for these settings: give {lines}, or use "
            "`medfl run`.",
            settings=settings,
        )
    if ADOPTED in overlay:
        lost = [name for name in names if tops[name] not in {*overlay, *MONAI_OPTIONS}]
        if lost:
            raise SettingsError(
                "misplaced_option",
                f"MONAI's own command does not pass these options on to the sites of an adopted bundle: "
                f"{', '.join(lost)}. Give them as --overrides \"{{'ID': value}}\", or use `medfl run`.",
                options=lost,
            )


def used_ids(parser: ConfigParser, ids: Iterable[str]) -> set[str]:
    """Return the top-level ids to which some ids of a configuration refer, directly or through other ids.

    Args:
        parser: Parser that has read the configuration files.
        ids: Ids to start from. An id that the configuration does not have is skipped.
    """
    used: set[str] = set()
    rest = [name for name in ids if name in parser]
    while rest:
        named = [ReferenceResolver.match_refs_pattern(text) for text in iterate_strings(parser[rest.pop()])]
        refers = {name.partition("#")[0] for names in named for name in names}
        new = {name for name in refers - used if name in parser}
        used |= new
        rest += new
    return used


def _used_at_sites(parser: ConfigParser) -> UsedIds | None:
    """Return the ids that the sites of an adopted bundle build, or None if the bundle is not adopted.

    Raises:
        SettingsError: If an older version of medfl, which did not record these ids, adopted the bundle.
    """
    adopted = parser.get(ADOPTED)
    return None if adopted is None else UsedIds.of(adopted)


def _why_unused(parser: ConfigParser, name: str) -> str:
    """Return the reason why an id of an adopted bundle has no effect, and what to use instead."""
    for entry in parser.get(ADOPTED)["ignored"]:
        if entry["id"] and (name == entry["id"] or name.startswith(f"{entry['id']}#")):
            return f"{entry['why']}. Use instead: {entry['instead']}."
    return "a run builds nothing from it. The bundle's `docs/federate.md` lists the ids that a run builds."


def _ambiguity(parser: ConfigParser, option: str, top: str, stock: UsedIds | None) -> SettingsError | None:
    """Return an error if an option may name a setting of the run or an id of the bundle; otherwise None.

    If no run builds the id, the option names the setting.
    """
    config = parser.get()
    if option.replace("::", "#").startswith(f"{SETTINGS_ID}#") or top not in find_clashes(config):
        return None
    if not (stock.has_effect(top) if stock is not None else top in used_ids(parser, RUN_IDS)):
        return None
    other = f"--{OVERRIDES} \"{{'{top}': VALUE}}\" for the id" if stock is not None else "rename the id in the bundle"
    return SettingsError(
        "ambiguous_option",
        f"Option '{option_of_id(option)}' is a setting of the run and also an id of the bundle with another meaning: "
        f"give {option_of_id(f'{SETTINGS_ID}#{top}')} for the setting, or {other}.",
        option=option,
    )


def check_ids(parser: ConfigParser, properties: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Raise if a configuration lacks ids that a federation needs.

    Args:
        parser: Parser that has read the configuration files.
        properties: MONAI's properties of the workflow by name, each with ``id``, ``description`` and ``required``.
        where: Names of the files, for the message.

    Raises:
        SettingsError: If ids are missing. The message lists all of them.
    """
    required = [(facts["id"], facts["description"]) for facts in properties.values() if facts["required"]]
    required += list(FEDERATION.items())
    missing = {name: what.strip() for name, what in required if name not in parser}
    if missing:
        lines = "\n  ".join(f"{name}: {what}" for name, what in missing.items())
        raise SettingsError(
            "missing_ids",
            f"The configuration {where} lacks {len(missing)} required ids:\n  {lines}",
            where=where,
            ids=list(missing),
        )


def _problem(parser: ConfigParser, name: str, options: Meta) -> SettingsError | None:
    """Return an error if an option names no id, setting or part; otherwise None.

    If another option replaces the ``_target_`` of a component, the arguments of the new target are its parts.
    """
    top, *rest = name.split("#")
    settings = setting_values(parser.get())
    known = [*(key for key in parser.get() if not key.startswith("_")), *settings]
    if top not in known:
        owners = [key for key, part in parser.get().items() if top in _names(part)]
        if owners and not rest:
            meant = " or ".join(f"'{option_of_id(f'{owner}#{top}')}'" for owner in owners)
            hint = f"Did you mean {meant}? `{LIST_OPTIONS}` lists all options."
        else:
            hint = did_you_mean(option_of_id(top), map(option_of_id, known), LIST_OPTIONS)
        text = f"Unknown option '{option_of_id(name)}'. {hint}"
        return SettingsError("unknown_option", text, option=name)
    parent, path = settings[top] if top in settings else parser[top], top
    if parent is None and top in settings and _parts_of_setting(top):
        parent = {}  # the first part of a setting that is off turns it on
    for part in rest:
        if isinstance(parent, list) and part.isdigit() and int(part) < len(parent):
            parent = parent[int(part)]
        elif isinstance(parent, Mapping):
            if target := options.get(f"{path}#_target_"):
                parent = {**parent, "_target_": target}
            names = list(run_fields()) if path == SETTINGS_ID else _parts_of_setting(path) or _parts(parent)
            if names is not None and part not in names:
                hint = did_you_mean(part, names, "medfl run --help-settings" if path == SETTINGS_ID else "")
                text = f"Unknown option '{option_of_id(name)}': '{path}' has no part '{part}'. {hint}"
                return SettingsError("unknown_option", text, option=name, path=path, part=part)
            parent = parent.get(part)
        else:
            text = f"Unknown option '{option_of_id(name)}': '{path}' has no part '{part}'; it is {parent!r}."
            return SettingsError("unknown_option", text, option=name, path=path, part=part)
        path += f"#{part}"
    return None


def _parts_of_setting(path: str) -> list[str]:
    """Return the names of the parts of a setting, such as ``privacy``, or [] if the path is no setting with parts."""
    info = run_fields().get(path)
    model = None if info is None else model_of(info)
    return [] if model is None else list(model.model_fields)


def _names(config: Any) -> list[str]:
    """Return the names of a component's arguments, or [] if it is not a component or accepts any argument."""
    return _parts(config) or [] if isinstance(config, Mapping) and "_target_" in config else []


def _parts(config: Mapping[str, Any]) -> list[str] | None:
    """Return the keys that a mapping of a configuration may have, or None if any key is allowed.

    A component may have its present keys and the arguments of its target. Any other mapping may have any key.
    """
    target = config.get("_target_")
    if target is None:
        return None
    names = _arguments(str(target))
    return None if names is None else [*dict.fromkeys([*config, *names])]


def _arguments(target: str) -> Iterable[str] | None:
    """Return the names of a target's arguments, or None if it accepts any or can't be found (MONAI reports that)."""
    function = _locate(target)
    if function is None:
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _locate(target: str) -> Callable[..., Any] | None:
    """Return the function or class that a target names, found as MONAI does, or None."""
    module = SharedLocator().get_component_module_name(target) if "." not in target else None
    name = f"{module}.{target}" if isinstance(module, str) else target
    package, _, attribute = name.rpartition(".")
    if not package:
        return None
    function, available = optional_import(package, name=attribute)
    return function if available else None
