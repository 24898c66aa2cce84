"""A stock MONAI bundle as a site of a federation: read as text, recognised, and copied with an overlay and a page."""

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
from medfl.bundle.problems import joined
from medfl.data.transforms.cases import PICTURES
from medfl.errors import SettingsError
from medfl.plugins import Registry
from medfl.types import PathLike
from medfl.utils.files import write_json
from medfl_adopt.adoption import OVERLAY, PAGE, Adoption
from medfl_adopt.cases import read_cases, with_test
from medfl_adopt.config import LOAD_IMAGE, Config, base_name, read_file, read_files
from medfl_adopt.copying import check_places, copy
from medfl_adopt.ignored import read_ignored
from medfl_adopt.objective import recognise
from medfl_adopt.page import page
from medfl_adopt.parts import Parts, amp_of, problems_of, read_parts
from medfl_adopt.used import lost_steps, read_used

__all__ = ["OVERLAY", "PAGE", "Adoption", "adopt", "read_bundle"]


WORKFLOWS: tuple[str, ...] = ("train", "validate", "evaluate", "inference")
"""Stems of the configurations that are read, the one that trains first."""


def read_bundle(root: Path, objective: str | None = None) -> Adoption:
    """Read a bundle as text, and recognise what a federation needs of it. Nothing of the bundle is run or imported.

    Args:
        root: The bundle.
        objective: One of `medfl_adopt.objective.KINDS` in place of the one that would be recognised.

    Raises:
        SettingsError: If it is no bundle with a training configuration that can be read, or if no federation can be
            made of it, with all reasons that are known.
    """
    if not (root / "configs").is_dir():
        raise SettingsError(
            "not_a_bundle", f"'{root}' is no MONAI bundle: expected the folder '{root / 'configs'}'.", path=root
        )
    names = read_files(root)
    if "federate" in names:
        raise SettingsError(
            "already_federated",
            f"'{root}' has a 'configs/{names['federate']}' already: it is a federation's bundle. "
            "Run it with medfl run.",
            path=root,
            file=names["federate"],
        )
    if "train" not in names:
        present = ", ".join(sorted(name for stem, name in names.items() if stem != "metadata")) or "none"
        raise SettingsError(
            "missing_training_config",
            f"'{root}' has no training configuration: expected 'configs/train.json', '.yaml' or '.yml'; there are: "
            f"{present}. Where a file of another name trains the one network that is meant, copy it to that name.",
            path=root,
            files=sorted(names.values()),
        )
    described, _ = read_config(root / METADATA)  # what is wrong with it, the check of the bundle says
    metadata = described if isinstance(described, Mapping) else {}
    files = {stem: names[stem] for stem in WORKFLOWS if stem in names}
    contents = {stem: read_file(root, name) for stem, name in files.items()}
    others: dict[str, Any] = {
        name: read_config(root / "configs" / name)[0] for stem, name in names.items() if stem not in files
    }
    try:
        config = Config([contents["train"]], metadata, root)
        over = [contents[stem] for stem in ("train", "evaluate") if stem in contents]
        dangling, _ = check_references({names["train"]: contents["train"]}, metadata, root)
        over_train = Config(over, metadata, root)
        train = contents["train"]
        return _recognised(root, config, over_train, train, dangling, files, metadata, others, objective)
    except RecursionError:
        raise SettingsError(
            "nested_too_deep",
            f"'{root / 'configs' / names['train']}' is nested too deep to be read.",
            path=root / "configs" / names["train"],
        ) from None
    except SettingsError as error:
        raise error.reworded(f"the bundle '{root}' can't be adopted, by 'configs/{names['train']}': {error}") from None


def _recognised(
    root: Path,
    config: Config,
    evaluate: Config,
    content: Mapping[str, Any],
    dangling: Sequence[str],
    files: dict[str, str],
    metadata: Mapping[str, Any],
    others: Mapping[str, Any],
    objective: str | None,
) -> Adoption:
    problems = [*problems_of(config), *(SettingsError("dangling_reference", text) for text in dangling)]
    if problems:
        raise joined(problems, "\n  ", start="\n  ")
    parts = read_parts(config)
    cases = with_test(read_cases(config, parts), config, evaluate, parts)
    recognition = recognise(config, parts, metadata, objective)
    taken = {name for name in ("adopted", "method", "method_args", "rounds", "settings") if name in config}
    if taken:
        raise SettingsError(
            "reserved_ids",
            f"it has ids of its own that a federation needs: {', '.join(sorted(taken))}. Rename them, and what refers "
            "to them.",
            ids=taken,
        )
    used = read_used((config, evaluate), parts, cases)
    problems = lost_steps(config, parts)
    if problems:
        raise joined(problems, "; ")
    ignored = read_ignored(config, evaluate, parts, used, content, others)
    batch_size = config.child(parts.train_dataloader, "batch_size") if parts.train_dataloader else None
    return Adoption(
        root,
        files,
        recognition,
        parts,
        cases,
        amp_of(config, parts),
        ignored,
        used,
        recognition.name == "segmentation" and has_spacing(config, parts, cases.needs),
        "seed" in config,
        batch_size,
        weights_of([read_file(root, files[stem]) for stem in ("evaluate", "inference") if stem in files]),
    )


def training_config(root: Path) -> Config:
    """Return the training configuration of a bundle that `read_bundle` has read."""
    described, _ = read_config(root / METADATA)
    content = read_file(root, read_files(root)["train"])
    return Config([content], described if isinstance(described, Mapping) else {}, root)


def adopt(
    root: PathLike,
    out: PathLike,
    objective: str | None = None,
    registry: Registry | None = None,
    head: str | None = None,
    stages: Sequence[str] = (),
) -> Adoption:
    """Make a federation's bundle of a stock MONAI bundle: a copy with `OVERLAY` and `PAGE`.

    Weights and code are copied and not loaded. The copy is there whole or not at all.

    Args:
        root: The bundle.
        out: Where the copy is to be: an empty folder, or none yet.
        objective: One of `medfl_adopt.objective.KINDS`, where it is not to be recognised.
        registry: Methods that the page lists; None lists none.
        head: Name of the module that is the network's head, where `medfl.networks.known` does not know it.
        stages: Names of the modules that are its stages, in order, where it does not know them.

    Returns:
        What was read and recognised.

    Raises:
        SettingsError: If the bundle can't be adopted, saying why, where, and what to do.
        DataError: If `out` is not free.
    """
    root, out = Path(root), Path(out)
    if (root / "configs").is_dir():
        check_places(root, out)
    adoption = replace(read_bundle(root, objective), head=head, stages=tuple(stages))
    report = check_bundle(root)
    methods = []
    if registry is not None:
        from medfl_adopt.method_fit import methods_of  # imports much that no other caller needs

        methods = methods_of(adoption, training_config(root), registry)

    def complete(folder: Path) -> None:
        write_json(folder / OVERLAY, adoption.overlay())
        (folder / PAGE).parent.mkdir(exist_ok=True)
        (folder / PAGE).write_text(page(adoption, report, methods), encoding="utf-8")

    copy(root, out, complete)
    return adoption


VOLUMES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".dcm")
"""Files that say it."""


def has_spacing(config: Config, parts: Parts, needs: Sequence[str]) -> bool:
    """Whether images are volumes that a transform reads from files, and no pictures.

    Args:
        config: The training configuration.
        parts: Its parts.
        needs: Patterns of the files that a site holds.
    """
    if parts.train_preprocessing is None or any(path.lower().endswith(PICTURES) for path in needs):
        return False
    transforms = config.components(parts.train_preprocessing)
    loaders = [id_ for id_, transform in transforms if base_name(str(transform["_target_"])) in LOAD_IMAGE]
    volumes = spatial_dims(config, parts.network) == 3 or any(path.lower().endswith(VOLUMES) for path in needs)
    return volumes and any("image" in config.keys(id_) for id_ in loaders)


def spatial_dims(config: Config, network: str) -> int | None:
    """Of a network's images: as its definition says, or MONAI's network of that name; None if neither does."""
    from monai.networks import nets

    if f"{network}#spatial_dims" in config:
        value = config.value(f"{network}#spatial_dims")
        return value if isinstance(value, int) else None
    kind = vars(nets).get(base_name(config.target(network)))
    default = inspect.signature(kind).parameters.get("spatial_dims") if callable(kind) else None
    return default.default if default is not None and isinstance(default.default, int) else None


USUAL = "models/model.pt"
"""Where a bundle has its weights, by MONAI's convention."""

_NAMED = re.compile(r"""['"/]([\w][\w.-]*\.(?:pt|pth))['"]|/([\w][\w.-]*\.(?:pt|pth))$""")
"""A file of weights within an expression, or at the end of a path."""


def weights_of(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The files of weights that configurations name, in the folder ``models``; by convention `USUAL` if none does.

    Args:
        configs: Of evaluation and inference.
    """
    texts = [value for config in configs for _, value in walk(config) if isinstance(value, str)]
    names = {first or last for text in texts for first, last in _NAMED.findall(text)}
    return tuple(f"models/{name}" for name in sorted(names)) or (USUAL,)
