"""Prepare LC25000: the same as ``medfl prep lc25000``, for those who look here first.

For example: ``python data_prep/lc25000.py --source lung_colon_image_set --out pooled/lc25000``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "lc25000", *sys.argv[1:]])
