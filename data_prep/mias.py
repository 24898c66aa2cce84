"""Prepare mini-MIAS: the same as ``medfl prep mias``, for those who look here first.

For example: ``python data_prep/mias.py --source all-mias --labels malignant-rest --out pooled/mias``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "mias", *sys.argv[1:]])
