"""``python data_prep/lc25000``: the same as ``medfl prep lc25000``, for those who look here first.

For example: ``python data_prep/lc25000 --source lung_colon_image_set --out pooled/lc25000``
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path) != here]  # or its modules would hide others of their names
    from medfl.cli.main import main

    main(["prep", here.name, *sys.argv[1:]])
