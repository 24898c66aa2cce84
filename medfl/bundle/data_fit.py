"""Whether data are of the kind that a bundle learns from, looked at before anything is built."""

from __future__ import annotations

import json
from pathlib import Path

from medfl.data.arrays import open_array
from medfl.data.datalists import FILE, Datalist, parse_datalist, read_bytes
from medfl.data.sites import image_shape, site_names
from medfl.engine.runs.provenance import bundle_values
from medfl.errors import DataError

GOALS = {"Multiclass": "classes", "Binary": "classes", "Segmentation": "masks"}
"""Class of `medfl.objectives` in a bundle's ``train.json`` to what is learned; a bundle with another takes any."""


def check_fit(bundle: Path, dataset_dir: Path, shipped: dict[str, Path]) -> None:
    """Refuse images where a bundle takes the rows of a table, masks where it learns classes, and the other way round.

    Whether images are 2-D or volumes is not looked at: networks follow the data. A bundle that tells neither passes,
    and so does an adopted one: what builds it says more.

    Args:
        bundle: Its folder.
        dataset_dir: Holds one folder for each site.
        shipped: Name to folder of the bundles that come with medfl, to name those that would do.

    Raises:
        DataError: If the folder holds no site with a list; or if the data are of another kind.
    """
    if "adopted" in bundle_values(bundle):  # a stock bundle, which reads its own files
        return
    folder = dataset_dir / site_names(dataset_dir)[0]
    datalist = parse_datalist(read_bytes(folder), folder / FILE)
    try:
        table = len(image_shape(open_array(folder / datalist.image_array).shape)) == 1
    except DataError:
        return  # the run says what is wrong with it
    kind = ("rows of a table" if table else "images", _learned(datalist))
    wanted = bundle_kind(bundle)
    if not _fits(kind, wanted):
        fitting = [name for name, root in shipped.items() if _fits(kind, bundle_kind(root))]
        raise DataError(
            "data_not_supported",
            f"expected {_words(wanted)} for the bundle '{bundle.name}', got {_words(kind)} in {dataset_dir}. Bundles "
            f"for these: {', '.join(fitting) or 'none that comes with medfl'}.",
            bundle=bundle.name,
            path=dataset_dir,
            expected=_words(wanted),
            found=_words(kind),
        )


def bundle_kind(bundle: Path) -> tuple[str, str]:
    """What a bundle takes and what it learns, by its configuration; empty where that does not tell."""
    try:
        metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
        train = json.loads((bundle / "configs" / "train.json").read_text(encoding="utf-8"))
        sort = metadata["network_data_format"]["inputs"]["image"]["type"]
        target = str(train["objective"]["_target_"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""
    return {"image": "images", "vector": "rows of a table"}.get(sort, ""), GOALS.get(target.rpartition(".")[2], "")


def _learned(datalist: Datalist) -> str:
    goal = datalist.goal
    return "classes" if goal.has_class_labels else "masks" if goal.in_space else goal.name


def _fits(kind: tuple[str, str], wanted: tuple[str, str]) -> bool:
    return all(want in ("", have) for have, want in zip(kind, wanted, strict=True))


def _words(kind: tuple[str, str]) -> str:
    cases, learned = kind
    return f"{cases or 'cases'} with {learned}" if learned else cases
