"""Adopt a stock MONAI bundle: read it as text, recognize its parts, and copy it with an overlay and a page.

The overlay (`OVERLAY_FILE`) is a configuration that describes the federation. The page (`PAGE_FILE`) is Markdown for
the people who review the copy, which is called an adopted bundle.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medfl.bundle.check import METADATA, check_bundle
from medfl.bundle.check.reading import read_config, walk
from medfl.bundle.check.references import check_references
from medfl.bundle.joined_errors import join_errors
from medfl.data.transforms.cases import SUFFIXES_WITHOUT_SPACING
from medfl.errors import SettingsError
from medfl.plugins import Registry
from medfl.types import PathLike
from medfl.utils.files import write_json
from medfl_adopt.adoption import OVERLAY_FILE, PAGE_FILE, Adoption
from medfl_adopt.adoption_page import render_page
from medfl_adopt.cases import add_test_list, read_cases
from medfl_adopt.config import LOAD_IMAGE, BundleConfig, base_name, list_config_files, read_config_file
from medfl_adopt.copying import check_paths, copy_bundle
from medfl_adopt.ignored_entries import list_ignored_entries
from medfl_adopt.objective import recognize_objective
from medfl_adopt.parts import PartIds, find_problems, read_amp, read_parts
from medfl_adopt.used_ids import find_lost_steps, find_used_ids

__all__ = ["OVERLAY_FILE", "PAGE_FILE", "Adoption", "adopt", "read_bundle"]


WORKFLOWS: tuple[str, ...] = ("train", "validate", "evaluate", "inference")
"""Names, without suffix, of the configuration files that are read; the training configuration is first."""


def read_bundle(root: Path, objective: str | None = None) -> Adoption:
    """Read a stock bundle as text, and return everything that a federation needs to know about it.

    No code of the bundle is run or imported.

    Args:
        root: Folder of the bundle.
        objective: Kind of the bundle's learning objective, one of `medfl_adopt.objective.OBJECTIVE_KINDS`, or None to
            recognize it.

    Raises:
        SettingsError: If the folder is no bundle with a readable training configuration, or if no federation can be
            made of it; the message lists all known reasons.
    """
    if not (root / "configs").is_dir():
        raise SettingsError(
            "not_a_bundle", f"'{root}' is not a MONAI bundle: expected the folder '{root / 'configs'}'.", path=root
        )
    names = list_config_files(root)
    if "federate" in names:
        raise SettingsError(
            "already_federated",
            f"'{root}' is already a bundle for a federation: it has 'configs/{names['federate']}'. Run it with "
            "medfl run.",
            path=root,
            file=names["federate"],
        )
    if "train" not in names:
        present = ", ".join(sorted(name for stem, name in names.items() if stem != "metadata")) or "none"
        raise SettingsError(
            "missing_training_config",
            f"'{root}' has no training configuration: expected 'configs/train.json', '.yaml' or '.yml', found: "
            f"{present}. If a file with another name trains the network, copy it to that name.",
            path=root,
            files=sorted(names.values()),
        )
    described, _ = read_config(root / METADATA)  # `check_bundle` reports problems of the metadata
    metadata = described if isinstance(described, Mapping) else {}
    files = {stem: names[stem] for stem in WORKFLOWS if stem in names}
    contents = {stem: read_config_file(root, name) for stem, name in files.items()}
    others: dict[str, Any] = {
        name: read_config(root / "configs" / name)[0] for stem, name in names.items() if stem not in files
    }
    try:
        config = BundleConfig([contents["train"]], metadata, root)
        over = [contents[stem] for stem in ("train", "evaluate") if stem in contents]
        dangling, _ = check_references({names["train"]: contents["train"]}, metadata, root)
        over_train = BundleConfig(over, metadata, root)
        train = contents["train"]
        return _recognize_bundle(root, config, over_train, train, dangling, files, metadata, others, objective)
    except RecursionError:
        raise SettingsError(
            "nested_too_deep",
            f"'{root / 'configs' / names['train']}' exceeds the maximum nesting depth.",
            path=root / "configs" / names["train"],
        ) from None
    except SettingsError as error:
        raise error.reworded(
            f"The bundle '{root}' can't be adopted because of 'configs/{names['train']}': {error}"
        ) from None


def _recognize_bundle(
    root: Path,
    config: BundleConfig,
    evaluate: BundleConfig,
    content: Mapping[str, Any],
    dangling: Sequence[str],
    files: dict[str, str],
    metadata: Mapping[str, Any],
    others: Mapping[str, Any],
    objective: str | None,
) -> Adoption:
    """Recognize all parts of a bundle from its configurations.

    Args:
        root: Folder of the bundle.
        config: Training configuration.
        evaluate: Training configuration overlaid with ``evaluate``.
        content: Top-level ids of the training configuration with their values.
        dangling: Messages about references that lead nowhere.
        files: Maps the kind of workflow to its file.
        metadata: Metadata of the bundle.
        others: Maps further configuration files to their contents.
        objective: Chosen objective, or None to recognize it.

    Raises:
        SettingsError: If no federation can be made of the bundle.
    """
    problems = [*find_problems(config), *(SettingsError("dangling_reference", text) for text in dangling)]
    if problems:
        raise join_errors(problems, "\n  ", start="\n  ")
    parts = read_parts(config)
    cases = add_test_list(read_cases(config, parts), config, evaluate, parts)
    recognition = recognize_objective(config, parts, metadata, objective)
    taken = {name for name in ("adopted", "method", "method_args", "rounds", "settings") if name in config}
    if taken:
        raise SettingsError(
            "reserved_ids",
            f"it defines ids that a federation needs itself: {', '.join(sorted(taken))}. Rename these ids and the "
            "references to them.",
            ids=taken,
        )
    used = find_used_ids((config, evaluate), parts, cases)
    problems = find_lost_steps(config, parts)
    if problems:
        raise join_errors(problems, "; ")
    ignored = list_ignored_entries(config, evaluate, parts, used, content, others)
    batch_size = config.child(parts.train_dataloader, "batch_size") if parts.train_dataloader else None
    weights = find_weight_files(
        [read_config_file(root, files[stem]) for stem in ("evaluate", "inference") if stem in files]
    )
    return Adoption(
        root=root,
        files=files,
        objective=recognition,
        parts=parts,
        cases=cases,
        amp=read_amp(config, parts),
        ignored=ignored,
        used=used,
        spacing=recognition.name == "segmentation" and has_spacing(config, parts, cases.needs),
        own_seed="seed" in config,
        batch_size=batch_size,
        weights=weights,
        start=find_start_file(root, config, parts, weights),
    )


def training_config(root: Path) -> BundleConfig:
    """Return the training configuration of a bundle that `read_bundle` has accepted."""
    described, _ = read_config(root / METADATA)
    content = read_config_file(root, list_config_files(root)["train"])
    return BundleConfig([content], described if isinstance(described, Mapping) else {}, root)


def adopt(
    root: PathLike,
    out: PathLike,
    objective: str | None = None,
    registry: Registry | None = None,
    head: str | None = None,
    stages: Sequence[str] = (),
) -> Adoption:
    """Copy a stock MONAI bundle and add `OVERLAY_FILE` and `PAGE_FILE`, which make it a bundle for a federation.

    Weights and code are copied but not loaded. The copy is written completely or not at all.

    Args:
        root: Folder of the bundle.
        out: Folder of the copy; it must be empty or not exist.
        objective: One of `medfl_adopt.objective.OBJECTIVE_KINDS`, or None to recognize the objective.
        registry: Registry of the methods that the page lists; None lists no methods.
        head: Module name of the network's head, if `medfl.networks.part_names` does not know it.
        stages: Module names of the network's stages, in order, if `medfl.networks.part_names` does not know them.

    Returns:
        The adoption: everything that was read and recognized.

    Raises:
        SettingsError: If the bundle can't be adopted; the message says why, where, and what to do.
        DataError: If `out` is not empty.
    """
    root, out = Path(root), Path(out)
    if (root / "configs").is_dir():
        check_paths(root, out)
    adoption = replace(read_bundle(root, objective), head=head, stages=tuple(stages))
    report = check_bundle(root)
    methods = []
    if registry is not None:
        from medfl_adopt.method_fit import check_methods  # a slow import that only this branch needs

        methods = check_methods(adoption, training_config(root), registry)

    def complete(folder: Path) -> None:
        write_json(folder / OVERLAY_FILE, adoption.overlay())
        (folder / PAGE_FILE).parent.mkdir(exist_ok=True)
        (folder / PAGE_FILE).write_text(render_page(adoption, report, methods), encoding="utf-8")

    copy_bundle(root, out, complete)
    return adoption


VOLUME_SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".dcm")
"""Suffixes of files that contain volumes."""


def has_spacing(config: BundleConfig, parts: PartIds, needs: Sequence[str]) -> bool:
    """Return whether a transform reads the images from volume files, which have a voxel spacing.

    Args:
        config: Training configuration.
        parts: Ids of the parts of the training configuration.
        needs: Patterns of the files that a site's folder must contain.
    """
    if parts.train_preprocessing is None or any(path.lower().endswith(SUFFIXES_WITHOUT_SPACING) for path in needs):
        return False
    transforms = config.components(parts.train_preprocessing)
    loaders = [id_ for id_, transform in transforms if base_name(str(transform["_target_"])) in LOAD_IMAGE]
    volumes = spatial_dims(config, parts.network) == 3 or any(path.lower().endswith(VOLUME_SUFFIXES) for path in needs)
    return volumes and any("image" in config.keys(id_) for id_ in loaders)


def spatial_dims(config: BundleConfig, network: str) -> int | None:
    """Return the number of spatial axes of a network's images, or None if it is unknown.

    The number is read from the network's definition, or is the default of MONAI's network with that name.
    """
    from monai.networks import nets

    if f"{network}#spatial_dims" in config:
        value = config.value(f"{network}#spatial_dims")
        return value if isinstance(value, int) else None
    kind = vars(nets).get(base_name(config.target(network)))
    default = inspect.signature(kind).parameters.get("spatial_dims") if callable(kind) else None
    return default.default if default is not None and isinstance(default.default, int) else None


DEFAULT_WEIGHTS_FILE = "models/model.pt"
"""Weights file of a bundle by MONAI's convention."""

_WEIGHTS_FILE = re.compile(r"""['"/]([\w][\w.-]*\.(?:pt|pth))['"]|/([\w][\w.-]*\.(?:pt|pth))$""")
"""Pattern of the name of a weights file in an expression, or at the end of a path."""


def find_start_file(root: Path, config: BundleConfig, parts: PartIds, weights: Sequence[str]) -> str | None:
    """Return the file of weights from which a run of a bundle starts, relative to the bundle, or None without one.

    It is the file that the training's ``CheckpointLoader`` names, or else the first existing one of the files that the
    bundle's evaluation and inference read. Nothing is loaded.

    Args:
        root: Folder of the bundle.
        config: Training configuration.
        parts: Ids of the parts of the training configuration.
        weights: Files of weights that evaluation and inference read, relative to the bundle.
    """
    handlers = config.components(parts.train_handlers) if parts.train_handlers else ()
    loaders = [value for _, value in handlers if base_name(str(value["_target_"])) == "CheckpointLoader"]
    loaded = find_weight_files(loaders) if loaders else ()
    files = [path for path in (*loaded, *weights) if (root / path).is_file()]
    return files[0] if files else None


def find_weight_files(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the weights files in the folder ``models`` that configurations name.

    If they name none, return `DEFAULT_WEIGHTS_FILE`.

    Args:
        configs: Contents of the bundle's configurations for evaluation and inference.
    """
    texts = [value for config in configs for _, value in walk(config) if isinstance(value, str)]
    names = {first or last for text in texts for first, last in _WEIGHTS_FILE.findall(text)}
    return tuple(f"models/{name}" for name in sorted(names)) or (DEFAULT_WEIGHTS_FILE,)
