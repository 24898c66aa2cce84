"""What server and sites must agree on before a run begins: the server offers it, each site compares it with its own.

No code travels. A site runs its own, reviewed copy of the bundle and the medfl that it installed; it takes part only if
they are those of the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.bundle.files import bundle_hash
from medfl.engine.runs.provenance import bundle_values
from medfl.engine.runs.setting_ids import bare_name
from medfl.errors import SettingsError
from medfl.plugins import Registry, load_plugins
from medfl.types import Meta
from medfl.utils.files import sha256_of
from medfl.version import DISTRIBUTION, __version__
from medfl_flare.overrides import check_overrides
from medfl_flare.records.offer import Offer


@dataclass(frozen=True)
class Here:
    """The medfl, bundle and method of one participant; the attributes are those of `Offer` with the same names."""

    bundle: str
    bundle_version: str
    bundle_hash: str
    medfl: str
    method: str
    method_version: str


WORDS = {
    "bundle_version": "version of the bundle",
    "bundle_hash": "hash of the bundle's configurations",
    "medfl": "version of medfl",
    "method": "method",
    "method_version": "version of the method",
}
"""What is compared, in words."""


def differences(offer: Offer, here: Here | Offer) -> dict[str, str]:
    """Map each fact in which an offer and a participant differ to a sentence with both values.

    Args:
        offer: What the server has.
        here: What this participant has, from `describe_bundle`.
    """
    about = {name: f"bundle '{offer.bundle}': " if name.startswith("bundle") else "" for name in WORDS}
    about["method_version"] = f"method '{offer.method}': "
    return {
        name: f"{about[name]}{words}: the run has {getattr(offer, name)}, this participant has {getattr(here, name)}"
        for name, words in WORDS.items()
        if getattr(offer, name) != getattr(here, name)
    }


def describe_bundle(root: Path, registry: Registry, overrides: Meta, name: str | None = None) -> Here:
    """What this participant has for a run, read from its own disk; nothing is evaluated.

    Args:
        root: Folder of the bundle.
        registry: This participant's plugins.
        overrides: Of the run; they may name the method.
        name: What the bundle is called; None takes the folder's name.

    Raises:
        SettingsError: If the folder is no bundle, or names no method.
        PluginError: If the method is unknown here.
    """
    method = overrides.get("method", bundle_values(root).get("method"))
    if not isinstance(method, str):
        raise SettingsError(
            "missing_setting",
            f"Expected the bundle '{root.name}' to name a method in configs/federate.json; it does not. Give one.",
            setting="method",
            bundle=root.name,
        )
    return Here(
        bundle=name or root.resolve().name,
        bundle_version=bundle_version(root),
        bundle_hash=bundle_hash(root),
        medfl=__version__,
        method=method,
        method_version=method_version(registry, method),
    )


def make_offer(
    bundle_root: Path,
    overrides: Meta,
    run: str,
    sites: Sequence[str] = (),
    answer_timeout: int = 3600,
    *,
    registry: Registry | None = None,
    given_by: str = "command line",
) -> Offer:
    """An offer of a run over a bundle, checked as the sites will check it.

    Args:
        bundle_root: Folder of the bundle; its name is the bundle's name in the files of the participants.
        overrides: Id or setting to value; ``optimizer::lr`` is taken as ``optimizer#lr``, and ``settings#epochs`` as
            ``epochs``.
        run: Name of the run.
        sites: Names, in any order; none leaves it to whoever submits.
        answer_timeout: Seconds for which a site's work may stand still until it counts as missing, >= 1.
        registry: Plugins; None loads those that are installed.
        given_by: Who gave the overrides, for the record.

    Raises:
        RefusedError: If an override is not allowed, or a name not valid.
        SettingsError: If the folder is no bundle.
        PluginError: If the method is unknown.
    """
    plain = {bare_name(name): value for name, value in overrides.items()}
    check_overrides(plain, bundle_values(bundle_root))
    here = describe_bundle(bundle_root, registry or load_plugins(), plain)
    facts = {name: getattr(here, name) for name in ("bundle", *WORDS)}
    rest = {"overrides": plain, "sites": sorted(sites), "answer_timeout": answer_timeout, "given_by": given_by}
    return Offer.from_meta({"run": run} | facts | rest)


def bundle_version(root: Path) -> str:
    """``version`` of a bundle's metadata.

    Raises:
        SettingsError: If there is none.
    """
    path = root / "configs" / "metadata.json"
    try:
        version = json.loads(path.read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        version = None
    if not isinstance(version, str) or not version:
        raise SettingsError(
            "missing_version",
            f"Expected a bundle with a 'version' in '{path}'; there is none. Check the folder.",
            path=path,
        )
    return version


def method_version(registry: Registry, name: str) -> str:
    """The version of what gives a method.

    Args:
        registry: From `load_plugins`.
        name: Of the method.

    Returns:
        medfl's version for its own methods, ``<distribution> <version>`` for those of another installed package, and
        for a plugin file the SHA-256 of the file.

    Raises:
        PluginError: If the name is unknown or ambiguous, or the plugin can't be imported.
    """
    if name not in registry.methods:
        registry.method_class(name)  # says what is wrong
    (plugin,) = registry.givers("method", name)
    origin = registry.plugins[plugin]
    if origin.endswith(".py"):
        return sha256_of(Path(origin))
    return __version__ if re.match(rf"{re.escape(DISTRIBUTION)} \S+$", origin) else origin
