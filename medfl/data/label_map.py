"""A map of labels, for public data whose classes are not those of the sites.

Source: the cards of PFedCDP (PF-03): lesions that are benign or malignant can teach a classifier of normal, benign and
malignant images, once somebody has said which class is which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from medfl.data.datalists import Datalist
from medfl.errors import DataError, SettingsError, did_you_mean

LabelMap = Mapping[str, str | None]
"""Name of a class of the public data to the name of a class of the sites; None leaves its images out."""


def class_names(datalist: Datalist) -> list[str]:
    """Names of a list's classes, from 0; a class without a name has its number."""
    return [datalist.labels.get(str(number), str(number)) for number in range(datalist.num_classes)]


def choose_map(public: Datalist, classes: Sequence[str], label_map: LabelMap | None, where: str) -> LabelMap:
    """Which class of public data is which of the sites': as given, or by equal names.

    Args:
        public: The list of the public data.
        classes: Names of the sites' classes, from 0.
        label_map: What the user says, for every class of the public data; None goes by names.
        where: Where the public data are, for messages.

    Raises:
        SettingsError: If `label_map` names a class that there is not, or leaves one of the public data out.
        DataError: If nothing is given and the names do not say it.
    """
    own = class_names(public)
    if label_map is None:
        named = all(str(number) in public.labels for number in range(public.num_classes))
        if own == list(classes) or (named and set(own) <= set(classes)):
            return {name: name for name in own}
        example = {name: name if name in classes else classes[0] for name in own}
        raise DataError(
            "missing_label_map",
            f"the public data in {where} have the classes {own}, the sites {list(classes)}. Say which is which (a run "
            f'takes, for example, --label_map "{example}"; None leaves a class out), or prepare them with the same '
            "labels.",
            where=where,
            expected=list(classes),
            found=own,
        )
    if not isinstance(label_map, Mapping):
        raise SettingsError(
            "wrong_setting_type",
            f"expected 'label_map' as names of classes by name, got {type(label_map).__name__}.",
            setting="label_map",
            found=type(label_map).__name__,
        )
    for name, target in label_map.items():
        if name not in own:
            hint = did_you_mean(str(name), own)
            raise SettingsError(
                "unknown_class",
                f"'label_map' names no class of the public data: '{name}'. {hint}",
                setting="label_map",
                data="public",
                name=str(name),
            )
        if target is not None and target not in classes:
            hint = did_you_mean(str(target), classes)
            raise SettingsError(
                "unknown_class",
                f"'label_map' gives '{name}' to no class of the sites: '{target}'. {hint}",
                setting="label_map",
                data="sites",
                name=str(name),
                target=str(target),
            )
    if missing := [name for name in own if name not in label_map]:
        raise SettingsError(
            "unmapped_classes",
            f"'label_map' says nothing of the classes {missing} of the public data. Name a class of the sites for each "
            f"({', '.join(classes)}), or None to leave its images out.",
            setting="label_map",
            classes=missing,
        )
    return dict(label_map)


def relabelled(public: Datalist, classes: Sequence[str], chosen: LabelMap, where: str) -> Datalist:
    """The same list with the sites' classes; images of a class that is mapped to None are left out.

    Args:
        public: The list of the public data.
        classes: Names of the sites' classes, from 0.
        chosen: From `choose_map`.
        where: What the list belongs to, for messages.

    Raises:
        DataError: If a label is wrong.
    """
    numbers = [None if (name := chosen[own]) is None else list(classes).index(name) for own in class_names(public)]
    splits = {}
    for split, records in public.splits.items():
        labels = [numbers[label] for label in public.rows_and_labels(split, where)[1].tolist()]
        pairs = zip(records, labels, strict=True)
        splits[split] = [record | {"label": label} for record, label in pairs if label is not None]
    names = {str(number): name for number, name in enumerate(classes)}
    return replace(public, num_classes=len(classes), labels=names, splits=splits)
