"""Offer of a run: the server proposes it, and each site compares it with its own bundle, method and version of medfl.

An override is a value that replaces a value in the bundle's files, under an id of the bundle or as a setting of the
run.

No code is sent. A site runs its own, reviewed copy of the bundle and its own installation of medfl. It takes part only
if both are equal to the server's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.bundle.bundle_folders import bundle_hash
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
class LocalVersions:
    """Versions of medfl, bundle and method that are installed at one participant, for comparison with an `Offer`.

    Attributes:
        bundle: Name of the bundle.
        bundle_version: ``version`` in the bundle's metadata.
        bundle_hash: Hash of the bundle's configurations and code.
        medfl: Version of medfl.
        method: Name of the method.
        method_version: Version of the method, from `method_version`.
    """

    bundle: str
    bundle_version: str
    bundle_hash: str
    medfl: str
    method: str
    method_version: str


FIELD_TITLES = {
    "bundle_version": "version of the bundle",
    "bundle_hash": "hash of the bundle's configurations",
    "medfl": "version of medfl",
    "method": "method",
    "method_version": "version of the method",
}
"""Maps each field that `find_differences` compares to the field's title in messages."""


def find_differences(offer: Offer, here: LocalVersions | Offer) -> dict[str, str]:
    """Return a mapping from each field that differs between an offer and a participant to a sentence with both values.

    Args:
        offer: The offer, with the server's values.
        here: Values at the participant, from `local_versions`; or another offer.
    """
    about = {name: f"bundle '{offer.bundle}': " if name.startswith("bundle") else "" for name in FIELD_TITLES}
    about["method_version"] = f"method '{offer.method}': "
    return {
        name: f"{about[name]}{words}: the run has {getattr(offer, name)}, this participant has {getattr(here, name)}"
        for name, words in FIELD_TITLES.items()
        if getattr(offer, name) != getattr(here, name)
    }


def local_versions(root: Path, registry: Registry, overrides: Meta, name: str | None = None) -> LocalVersions:
    """Return the participant's versions for a run, read from its own disk; nothing is evaluated.

    Args:
        root: Folder of the bundle.
        registry: The participant's plugins.
        overrides: Overrides of the run; they may name the method.
        name: Name of the bundle; None takes the folder's name.

    Raises:
        SettingsError: If the folder is not a bundle, or names no method.
        PluginError: If the method is not installed.
    """
    method = overrides.get("method", bundle_values(root).get("method"))
    if not isinstance(method, str):
        raise SettingsError(
            "missing_setting",
            f"Expected the name of a method in configs/federate.json of the bundle '{root.name}', found none. Add one.",
            setting="method",
            bundle=root.name,
        )
    return LocalVersions(
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
    reply_timeout: int = 3600,
    *,
    registry: Registry | None = None,
    given_by: str = "command line",
) -> Offer:
    """Return the offer of a run, after the checks of overrides and names that the sites will make, too.

    Args:
        bundle_root: Folder of the bundle; its name is the bundle's name in the participants' own files.
        overrides: Maps ids or settings to values; ``optimizer::lr`` means ``optimizer#lr``, and ``settings#epochs``
            means ``epochs``.
        run: Name of the run.
        sites: Names of the sites in any order; empty leaves them open until submission.
        reply_timeout: Seconds without progress of a site's work after which the site is unavailable, >= 1.
        registry: Plugins; None loads the installed ones.
        given_by: Where the overrides come from, such as ``command line``, for the record.

    Raises:
        RefusedError: If an override is not allowed, or if a name is invalid.
        SettingsError: If the folder is not a bundle.
        PluginError: If the method is not installed.
    """
    plain = {bare_name(name): value for name, value in overrides.items()}
    check_overrides(plain, bundle_values(bundle_root))
    here = local_versions(bundle_root, registry or load_plugins(), plain)
    facts = {name: getattr(here, name) for name in ("bundle", *FIELD_TITLES)}
    rest = {"overrides": plain, "sites": sorted(sites), "reply_timeout": reply_timeout, "given_by": given_by}
    return Offer.from_meta({"run": run} | facts | rest)


def bundle_version(root: Path) -> str:
    """Return the ``version`` in a bundle's metadata.

    Raises:
        SettingsError: If the metadata contain no version.
    """
    path = root / "configs" / "metadata.json"
    try:
        version = json.loads(path.read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        version = None
    if not isinstance(version, str) or not version:
        raise SettingsError(
            "missing_version",
            f"Expected a bundle with a 'version' in '{path}', found none. Check the folder.",
            path=path,
        )
    return version


def method_version(registry: Registry, name: str) -> str:
    """Return the version of the distribution or file that provides a method.

    Args:
        registry: Plugins from `load_plugins`.
        name: Name of the method.

    Returns:
        medfl's version for its own methods, ``<distribution> <version>`` for methods of another installed package, and
        the SHA-256 of the file for a plugin file.

    Raises:
        PluginError: If the name is unknown or ambiguous, or if the plugin can't be imported.
    """
    if name not in registry.methods:
        registry.method_class(name)  # raises with the reason
    (plugin,) = registry.plugins_listing("method", name)
    origin = registry.plugins[plugin]
    if origin.endswith(".py"):
        return sha256_of(Path(origin))
    return __version__ if re.match(rf"{re.escape(DISTRIBUTION)} \S+$", origin) else origin
