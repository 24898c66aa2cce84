"""Prepare ABIDE I: the same as ``medfl prep abide``, for those who look here first.

For example: ``python data_prep/abide.py --source downloads/abide --download --atlas AAL.nii --out pooled/abide``
"""

from medfl.cli.main import main

if __name__ == "__main__":
    import sys

    main(["prep", "abide", *sys.argv[1:]])
