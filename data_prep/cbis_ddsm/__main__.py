"""``python data_prep/cbis_ddsm``: the same as ``medfl prep cbis_ddsm``, for those who look here first.

For example: ``python data_prep/cbis_ddsm --source downloads/CBIS-DDSM --tables downloads --out pooled/cbis_ddsm``
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path) != here]  # or its modules would hide others of their names
    from medfl.cli.main import main

    main(["prep", here.name, *sys.argv[1:]])
