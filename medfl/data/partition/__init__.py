"""Partitions: one way to split a pooled data set among sites in each file.

A partition is a plain function::

    scheme(labels, sites, *, <options>, rng) -> list[np.ndarray]

It gets the label of each unit and a number of sites, and says which units each site gets: positions in `labels`,
ascending, no position at two sites. A unit is what stays together: one image, or all images of a patient and all
identical images; `medfl.data.partition.units` makes them, and gives a unit the label that most of its images have. What
a scheme puts nowhere is counted and reported, and may become the server's test set. Options are keyword parameters with
a type and a default; ``--option NAME=VALUE`` gives them, checked against the type; of a list NAME=A,B. The same
arguments and the same state of `rng` must always give the same result.

A scheme that needs to know more than labels declares a keyword parameter `values`: the entry of each unit in the column
that ``--column`` names, as strings. Then `sites` is None unless the user gives it. A scheme that names its sites itself
returns a dictionary of name to positions; the names become folders.

A scheme that keeps labels in proportion declares `sets` as well: None, or, where an image may have several labels at
once, which of them each unit has, shape (n, C), bool.

A partition of one's own, in a file ``sorted_labels.py`` for ``medfl partition --plugin sorted_labels.py --scheme
sorted_labels --option backwards=true``:

>>> import numpy as np
>>> from medfl.plugins import PartitionRecord, hookimpl
>>> def sorted_labels(labels, sites, *, backwards: bool = False, rng: np.random.Generator) -> list[np.ndarray]:
...     "Sort by label, by chance within a label, and cut into pieces of equal size."
...     order = rng.permutation(len(labels))
...     order = order[np.argsort(labels[order], kind="stable")]
...     return [np.sort(part) for part in np.array_split(order[::-1] if backwards else order, sites)]
>>> @hookimpl
... def medfl_partitions() -> list[PartitionRecord]:
...     return [PartitionRecord("sorted_labels", f"{__name__}:sorted_labels", "each site has few classes")]
>>> labels = np.array([1, 0, 1, 0])
>>> [part.tolist() for part in sorted_labels(labels, 2, rng=np.random.default_rng(0))]
[[1, 3], [0, 2]]
"""
