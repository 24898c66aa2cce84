"""Prepare CelebA: the same as ``medfl prep celeba``, for those who look here first.

For example: ``python data_prep/celeba.py --source CelebA --attribute Smiling --out pooled/celeba``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "celeba", *sys.argv[1:]])
