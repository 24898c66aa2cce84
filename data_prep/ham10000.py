"""Prepare HAM10000: the same as ``medfl prep ham10000``, for those who look here first.

For example: ``python data_prep/ham10000.py --source HAM10000 --out pooled/ham10000``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "ham10000", *sys.argv[1:]])
