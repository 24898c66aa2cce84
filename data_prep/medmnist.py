"""Prepare a MedMNIST data set: the same as ``medfl prep medmnist``, for those who look here first.

For example: ``python data_prep/medmnist.py --source ~/.medmnist --flag bloodmnist --download --out bloodmnist``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "medmnist", *sys.argv[1:]])
