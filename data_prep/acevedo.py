"""Prepare Acevedo-20: the same as ``medfl prep acevedo``, for those who look here first.

For example: ``python data_prep/acevedo.py --source PBC_dataset_normal_DIB --out pooled/acevedo``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "acevedo", *sys.argv[1:]])
