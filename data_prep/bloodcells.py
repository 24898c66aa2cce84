"""Prepare white blood cells of several releases: the same as ``medfl prep bloodcells``, for those who look here first.

For example: ``python data_prep/bloodcells.py --acevedo PBC_dataset_normal_DIB --bodzas bodzas --out pooled/bloodcells``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "bloodcells", *sys.argv[1:]])
