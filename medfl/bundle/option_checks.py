"""Checking a bundle's configuration before anything in it is built: unknown options, and ids that are missing.

MONAI takes any option silently and stops at the first missing id; a mistyped ``--optimizer#lrr`` would be ignored.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser, ReferenceResolver
from monai.bundle.config_item import ComponentLocator
from monai.utils import optional_import

from medfl.bundle.adopted import ADOPTED, OVERLAY_IDS, OVERRIDES, Used
from medfl.bundle.problems import joined
from medfl.engine.runs.setting_ids import SETTINGS, bare_name, clashes, to_ids, values_in
from medfl.errors import SettingsError, did_you_mean
from medfl.settings import run_fields
from medfl.types import Meta
from medfl.utils.dotted import texts

RUN_IDS = ("imports", "initialize", "run", "finalize")
"""What MONAI evaluates of a configuration when it runs it; all else it builds only where something refers to it."""

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
"""Options of MONAI's own command, and the two places, which hold for every site of an adopted bundle."""

FEDERATION = {
    "loss": "what a site minimises, from outputs and targets",
    "optimizer": "the optimiser of a site, with one group of parameters",
    "objective": "what is learned, one of medfl.objectives",
    "task": "medfl.task.Task: networks, loss, optimizer, objective, metrics",
    "settings": "what differs from the defaults of medfl.settings, by name; {} if nothing does",
    "federation": "medfl.bundle.federated_run.FederatedRun, as in medfl's federate.json",
}
"""Ids that a federation needs beside MONAI's own properties, with what they are."""


def check_options(parser: ConfigParser, options: Meta, elsewhere: Collection[str] = ()) -> None:
    """Refuse options that name nothing in the configuration, or nothing that a federation uses; and unknown networks.

    Args:
        parser: With the configuration files read.
        options: Id or setting to value, as given by the user; ``optimizer#lr`` names a part.
        elsewhere: Ids that are used in another way than by the federation.

    Raises:
        SettingsError: With one line for each such option, and the known ones.
    """
    settings = set(values_in(parser.get()))
    used = {*used_ids(parser, RUN_IDS), *RUN_IDS, *elsewhere, *settings}
    stock = _used_at_sites(parser)
    problems = []
    for option in options:
        name = bare_name(option)
        top = name.partition("#")[0]
        if problem := _problem(parser, name) or _ambiguity(parser, option, top, stock):
            problems.append(problem)
        elif stock is not None and top not in {*OVERLAY_IDS, *elsewhere, *settings}:
            if not stock.has_effect(name):
                text = f"option '--{name}' has no effect in a federation: {_why_unused(parser, name)}"
                problems.append(SettingsError("option_without_effect", text, options=[name]))
        elif top not in used:
            text = (
                f"option '--{name}' has no effect in a federation, which uses: {', '.join(sorted(used - {'imports'}))}."
            )
            problems.append(SettingsError("option_without_effect", text, options=[name]))
    if "network_name" in options and options["network_name"] not in (networks := parser.get("networks", {})):
        name = options["network_name"]
        text = f"Unknown network '{name}'. {did_you_mean(str(name), list(networks))}"
        problems.append(SettingsError("unknown_network", text, name=str(name)))
    if problems:
        raise joined(problems, "\n  ")


def apply_options(parser: ConfigParser, options: Meta) -> None:
    """Put options into a configuration; where it parses that of a stock bundle anew for each site, into that, too.

    Args:
        parser: With the configuration files read.
        options: Id or setting to value. ``metrics`` takes one name as well as a list of names.
    """
    metrics = options.get("metrics")
    if isinstance(metrics, str) and metrics[:1] not in {*"$@%"}:
        options = options | {"metrics": [metrics]}
    ids = to_ids(options, parser.get())
    parser.update(pairs=ids)
    if (stock := _used_at_sites(parser)) is not None:
        ids = {name: value for name, value in ids.items() if stock.has_effect(name)}
        before = parser.get(OVERRIDES) or {}
        text = json.dumps((json.loads(before) if isinstance(before, str) else before) | ids, default=str)
        for letter in "#@%$":  # that mean something to MONAI, and only shall at a site
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        parser[OVERRIDES] = text


def check_passed_over(command: Sequence[str], configs: Iterable[Path]) -> None:
    """Refuse a setting by its bare name where MONAI's own command would pass it over without a word.

    Args:
        command: The words of the process, as in ``sys.argv``; of any other program nothing is said.
        configs: The bundle's configuration files in JSON.

    Raises:
        SettingsError: Naming each such option as MONAI takes it.
    """
    if not command or Path(command[0]).parts[-3:] != ("monai", "bundle", "__main__.py"):
        return
    names = [word.removeprefix("--").partition("=")[0] for word in command[1:] if word.startswith("--")]
    contents = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in configs}
    ids, overlay = {name for content in contents.values() for name in content}, contents.get("federate.json", {})
    clashing = clashes({name: value for content in contents.values() for name, value in content.items()})
    tops = {name: name.replace("::", "#").partition("#")[0] for name in names}
    settings = [
        name for name in names if tops[name] in run_fields() and (tops[name] not in ids or tops[name] in clashing)
    ]
    if settings:
        lines = ", ".join(f"--{SETTINGS}#{name} in place of --{name}" for name in settings)
        raise SettingsError(
            "misplaced_setting",
            f"MONAI's own command sets ids, and these are settings that no id of the bundle stands for: give {lines}; "
            "or use medfl run.",
            settings=settings,
        )
    if ADOPTED in overlay:
        lost = [name for name in names if tops[name] not in {*overlay, *MONAI_OPTIONS}]
        if lost:
            raise SettingsError(
                "misplaced_option",
                f"MONAI's own command tells the sites of an adopted bundle nothing of {', '.join(lost)}. Give it as "
                "--overrides \"{'ID': value}\", or use medfl run.",
                options=lost,
            )


def used_ids(parser: ConfigParser, ids: Iterable[str]) -> set[str]:
    """The top-level ids that a configuration's ids refer to, directly or not.

    Args:
        parser: With the configuration files read.
        ids: Where to begin.
    """
    used: set[str] = set()
    rest = [name for name in ids if name in parser]
    while rest:
        named = [ReferenceResolver.match_refs_pattern(text) for text in texts(parser[rest.pop()])]
        refers = {name.partition("#")[0] for names in named for name in names}
        new = {name for name in refers - used if name in parser}
        used |= new
        rest += new
    return used


def _used_at_sites(parser: ConfigParser) -> Used | None:
    """Return what the sites build of an adopted bundle; None for any other bundle.

    Raises:
        SettingsError: If the bundle was adopted by a version that did not note that.
    """
    adopted = parser.get(ADOPTED)
    return None if adopted is None else Used.of(adopted)


def _why_unused(parser: ConfigParser, name: str) -> str:
    """Return why an id of an adopted bundle has no effect, and what has."""
    for entry in parser.get(ADOPTED)["ignored"]:
        if entry["id"] and (name == entry["id"] or name.startswith(f"{entry['id']}#")):
            return f"{entry['why']}. In its place: {entry['instead']}."
    return "a run builds nothing from it. `docs/federate.md` of the bundle lists what it builds and what is left out."


def _ambiguity(parser: ConfigParser, option: str, top: str, stock: Used | None) -> SettingsError | None:
    """Return an error if an option could mean a setting of the run or an id of the bundle, else None.

    An id that no run builds is not meant: the option is the setting then.
    """
    config = parser.get()
    if option.replace("::", "#").startswith(f"{SETTINGS}#") or top not in clashes(config):
        return None
    if not (stock.has_effect(top) if stock is not None else top in used_ids(parser, RUN_IDS)):
        return None
    other = f"--{OVERRIDES} \"{{'{top}': VALUE}}\" for the id" if stock is not None else "rename the id in its files"
    return SettingsError(
        "ambiguous_option",
        f"option '--{option}' is both a setting of the run and an id of the bundle, which means another thing by it: "
        f"give --{SETTINGS}#{top} for the setting, or {other}.",
        option=option,
    )


def check_ids(parser: ConfigParser, properties: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Refuse a configuration without what a federation needs.

    Args:
        parser: With the configuration files read.
        properties: MONAI's properties of the workflow, each with ``id`` and ``required``.
        where: What was read, for the message.

    Raises:
        SettingsError: Naming all missing ids at once.
    """
    required = [(facts["id"], facts["description"]) for facts in properties.values() if facts["required"]]
    required += list(FEDERATION.items())
    missing = {name: what.strip() for name, what in required if name not in parser}
    if missing:
        lines = "\n  ".join(f"{name}: {what}" for name, what in missing.items())
        raise SettingsError(
            "missing_ids",
            f"The configuration {where} lacks {len(missing)} ids that it needs:\n  {lines}",
            where=where,
            ids=list(missing),
        )


def _problem(parser: ConfigParser, name: str) -> SettingsError | None:
    """Return an error if an option names nothing, else None."""
    top, *rest = name.split("#")
    settings = values_in(parser.get())
    known = [*(key for key in parser.get() if not key.startswith("_")), *settings]
    if top not in known:
        inner = [f"'--{key}#{top}'" for key, part in parser.get().items() if top in _names(part)]
        hint = f"It is a part of another one: did you mean {' or '.join(inner)}? " if inner and not rest else ""
        text = f"unknown option '--{name}'. {hint}{did_you_mean(top, known)}"
        return SettingsError("unknown_option", text, option=name)
    parent, path = settings[top] if top in settings else parser[top], top
    for part in rest:
        if isinstance(parent, list) and part.isdigit() and int(part) < len(parent):
            parent = parent[int(part)]
        elif isinstance(parent, Mapping):
            names = list(run_fields()) if path == SETTINGS else _parts(parent)
            if names is not None and part not in names:
                text = f"unknown option '--{name}': '{path}' has no part '{part}'. {did_you_mean(part, names)}"
                return SettingsError("unknown_option", text, option=name, path=path, part=part)
            parent = parent.get(part)
        else:
            text = f"unknown option '--{name}': '{path}' has no part '{part}'; it is {parent!r}."
            return SettingsError("unknown_option", text, option=name, path=path, part=part)
        path += f"#{part}"
    return None


def _names(config: Any) -> list[str]:
    """Return the names of a component's arguments; none if it is no component, or takes any argument."""
    return _parts(config) or [] if isinstance(config, Mapping) and "_target_" in config else []


def _parts(config: Mapping[str, Any]) -> list[str] | None:
    """What a part of a configuration may hold: for a component the arguments of its target; None means anything."""
    target = config.get("_target_")
    if target is None:
        return None
    names = _arguments(str(target))
    return None if names is None else [*dict.fromkeys([*config, *names])]


def _arguments(target: str) -> Iterable[str] | None:
    """The names of a target's arguments; None where it takes any, or can't be found (MONAI then says so)."""
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
    """The function or class that a target names, as MONAI finds it."""
    module = ComponentLocator().get_component_module_name(target) if "." not in target else None
    name = f"{module}.{target}" if isinstance(module, str) else target
    package, _, attribute = name.rpartition(".")
    if not package:
        return None
    function, available = optional_import(package, name=attribute)
    return function if available else None
