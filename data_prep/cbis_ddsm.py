"""Prepare CBIS-DDSM: the same as ``medfl prep cbis_ddsm``, for those who look here first.

For example: ``python data_prep/cbis_ddsm.py --source downloads/CBIS-DDSM --tables downloads --out pooled/cbis_ddsm``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "cbis_ddsm", *sys.argv[1:]])
