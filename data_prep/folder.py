"""Prepare your own image files: the same as ``medfl prep folder``, for those who look here first.

For example: ``python data_prep/folder.py images --table labels.csv --image-column file --label-column diagnosis
--group-column patient --size 224 --out pooled/own``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "folder", *sys.argv[1:]])
