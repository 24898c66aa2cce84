"""Prepare Matek-19: the same as ``medfl prep matek``, for those who look here first.

For example: ``python data_prep/matek.py --source AML-Cytomorphology_LMU --out pooled/matek``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "matek", *sys.argv[1:]])
