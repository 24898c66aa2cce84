"""Partition schemes: functions that split a pooled data set into sites. Each family of schemes has its own file.

A scheme is a plain function::

    scheme(labels, sites, *, <options>, rng) -> list[np.ndarray]

It receives the label of each unit and the number of sites, and returns the units of each site. A unit is a group of
images that must stay together: one image, or all images of a patient and all copies of an image.
`medfl.data.partition.units` builds the units and labels each with the most frequent label of its images.

The result contains one array of positions in `labels` for each site, ascending. No position may occur at two sites.
Positions that occur at no site are counted and reported, and may become the server's test set.

Options are keyword parameters with a type and a default. ``--option NAME=VALUE`` sets them and is checked against the
type; lists are written NAME=A,B. The same arguments and the same state of `rng` must always give the same result.

- A scheme that needs more than labels declares a keyword parameter `values`. It receives the entry of each unit in the
  column that ``--column`` names, as strings. `sites` is then None unless the user gives it.
- A scheme that names its sites returns a dictionary from site name to positions. The names become folder names.
- A stratified scheme may declare a keyword parameter `sets`. It is None, or, if an image may have several labels at
  once, a Boolean array of shape (n, C) that marks the labels of each unit.

A user's own scheme, in a file ``sorted_labels.py`` for ``medfl partition --plugin sorted_labels.py --scheme
sorted_labels --option backwards=true``:

>>> import numpy as np
>>> from medfl.plugins import PartitionRecord, hookimpl
>>> def sorted_labels(labels, sites, *, backwards: bool = False, rng: np.random.Generator) -> list[np.ndarray]:
...     "Sort by label, in random order within a label, and cut into pieces of equal size."
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
