"""``python data_prep/flamby_kits19``: the same as ``medfl prep flamby_kits19``, for those who look here first.

For example: ``python data_prep/flamby_kits19 fed_kits19 --out pooled/flamby_kits19``
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path) != here]  # or its modules would hide others of their names
    from medfl.cli.main import main

    main(["prep", here.name, *sys.argv[1:]])
