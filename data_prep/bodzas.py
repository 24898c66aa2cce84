"""Prepare Bodzas-23: the same as ``medfl prep bodzas``, for those who look here first.

For example: ``python data_prep/bodzas.py --source bodzas --out pooled/bodzas``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "bodzas", *sys.argv[1:]])
