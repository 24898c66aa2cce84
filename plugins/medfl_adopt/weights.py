"""Which files a bundle reads its weights from, told from the text of its configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from medfl.bundle.check.reading import walk

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
