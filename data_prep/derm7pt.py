"""Prepare Derm7pt: the same as ``medfl prep derm7pt``, for those who look here first.

For example: ``python data_prep/derm7pt.py --source release_v0 --out pooled/derm7pt``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "derm7pt", *sys.argv[1:]])
