"""Map the classes of public data to the classes of the sites.

A label map lets public data with other classes take part in training. In PFedCDP (card PF-03), for example, benign and
malignant lesions teach a classifier of normal, benign and malignant images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from medfl.data.datalists import Datalist
from medfl.errors import DataError, SettingsError, did_you_mean

LabelMap = Mapping[str, str | None]
"""Maps each class name of the public data to a class name of the sites. None leaves the images of the class out."""


def class_names(datalist: Datalist) -> list[str]:
    """Return the class names of a data list, in label order from 0. A class without a name gets its number as name."""
    return [datalist.labels.get(str(number), str(number)) for number in range(datalist.num_classes)]


def choose_label_map(public: Datalist, classes: Sequence[str], label_map: LabelMap | None, where: str) -> LabelMap:
    """Return the label map for public data: the given one after checking it, or one that matches equal class names.

    Args:
        public: Data list of the public data.
        classes: Class names of the sites, in label order from 0.
        label_map: Label map of the user; must contain every class of the public data. None matches equal names.
        where: Location of the public data, for messages.

    Raises:
        SettingsError: If `label_map` is no mapping, names an unknown class, or lacks a class of the public data.
        DataError: If no label map is given and the class names do not match.
    """
    public_classes = class_names(public)
    if label_map is None:
        named = all(str(number) in public.labels for number in range(public.num_classes))
        if public_classes == list(classes) or (named and set(public_classes) <= set(classes)):
            return {name: name for name in public_classes}
        example = {name: name if name in classes else classes[0] for name in public_classes}
        raise DataError(
            "missing_label_map",
            f"the public data in {where} have the classes {public_classes}, the sites {list(classes)}. Map each class "
            f'of the public data to a class of the sites (a run takes, for example, --label_map "{example}"; None '
            "leaves a class out), or prepare them with the same labels.",
            where=where,
            expected=list(classes),
            found=public_classes,
        )
    if not isinstance(label_map, Mapping):
        raise SettingsError(
            "wrong_setting_type",
            f"expected 'label_map' to map class names to class names, got {type(label_map).__name__}.",
            setting="label_map",
            found=type(label_map).__name__,
        )
    for name, target in label_map.items():
        if name not in public_classes:
            hint = did_you_mean(str(name), public_classes)
            raise SettingsError(
                "unknown_class",
                f"'label_map' maps '{name}', which is no class of the public data. {hint}",
                setting="label_map",
                data="public",
                name=str(name),
            )
        if target is not None and target not in classes:
            hint = did_you_mean(str(target), classes)
            raise SettingsError(
                "unknown_class",
                f"'label_map' maps '{name}' to '{target}', which is no class of the sites. {hint}",
                setting="label_map",
                data="sites",
                name=str(name),
                target=str(target),
            )
    if missing := [name for name in public_classes if name not in label_map]:
        raise SettingsError(
            "unmapped_classes",
            f"'label_map' lacks the classes {missing} of the public data. Map each to a class of the sites "
            f"({', '.join(classes)}), or to None to leave its images out.",
            setting="label_map",
            classes=missing,
        )
    return dict(label_map)


def relabel_datalist(public: Datalist, classes: Sequence[str], chosen: LabelMap, where: str) -> Datalist:
    """Return the data list with the labels of the sites. Images of a class that is mapped to None are left out.

    Args:
        public: Data list of the public data.
        classes: Class names of the sites, in label order from 0.
        chosen: Label map, as `choose_label_map` returns it.
        where: Name of the data, for messages.

    Raises:
        DataError: If a label of the list is out of range.
    """
    numbers = [
        None if (name := chosen[source]) is None else list(classes).index(name) for source in class_names(public)
    ]
    splits = {}
    for split, records in public.splits.items():
        labels = [numbers[label] for label in public.rows_and_labels(split, where)[1].tolist()]
        pairs = zip(records, labels, strict=True)
        splits[split] = [record | {"label": label} for record, label in pairs if label is not None]
    names = {str(number): name for number, name in enumerate(classes)}
    return replace(public, num_classes=len(classes), labels=names, splits=splits)
