"""``python data_prep/bloodcells``: the same as ``medfl prep bloodcells``, for those who look here first.

A first word names one release: ``python data_prep/bloodcells acevedo ...`` is ``medfl prep acevedo ...``.

For example: ``python data_prep/bloodcells --acevedo PBC_dataset_normal_DIB --bodzas bodzas --out pooled/bloodcells``
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path) != here]  # or its modules would hide others of their names
    from medfl.cli.main import main

    words = sys.argv[1:]
    name = words.pop(0) if words[:1] and words[0] in ("acevedo", "bodzas", "matek") else here.name
    main(["prep", name, *words])
