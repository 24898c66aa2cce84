"""Find the image files that the cells of a table name."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from medfl.data.readers.images import IMAGE_SUFFIXES
from medfl.data.table import row_list
from medfl.errors import DataError


class ImageFolder:
    """Image files of a folder, found by their relative path with or without file extension.

    Args:
        path: Path of the folder.

    Attributes:
        path: Absolute path of the folder.

    Raises:
        DataError: If there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise DataError(
                "missing_folder",
                f"expected a folder of images at {path}, there is none. Give the folder that holds them.",
                path=path,
            )
        self.path = Path(os.path.abspath(path))

    def find(self, names: Sequence[str], numbers: Sequence[int]) -> list[Path]:
        """Return one existing file for each name, each file once.

        Args:
            names: Paths relative to the folder, or absolute paths inside it; the file extension may be omitted.
            numbers: Table row of each name, for messages.

        Raises:
            DataError: If a path leads out of the folder, no file or several files match a name, or two rows name the
                same file.
        """
        paths = [Path(os.path.normpath(self.path / name.replace("\\", "/"))) for name in names]
        outside = [number for number, path in zip(numbers, paths, strict=True) if self.path not in path.parents]
        if outside:
            raise DataError(
                "path_outside_folder",
                f"expected paths inside the folder {self.path}, {len(outside)} of {len(names)} lead out of it: "
                f"{row_list(outside)}. Write them relative to the folder.",
                path=self.path,
                rows=outside,
                total=len(names),
            )
        matches = [[path] if os.path.isfile(path) else self._by_stem.get(path, []) for path in paths]  # noqa: PTH113
        self._check_matches(matches, numbers)
        files = [paths_of_name[0] for paths_of_name in matches]
        self._check_unique(files, numbers)
        return files

    @cached_property
    def _by_stem(self) -> dict[Path, list[Path]]:
        """Maps each path without extension to the image files with that path."""
        paths = defaultdict(list)
        for folder, _, names in os.walk(self.path):
            for name in names:
                ending = next((end for end in IMAGE_SUFFIXES if name.lower().endswith(end)), None)
                if ending:
                    paths[Path(folder, name[: -len(ending)])].append(Path(folder, name))
        return paths

    def _check_matches(self, matches: list[list[Path]], numbers: Sequence[int]) -> None:
        missing = [number for number, paths in zip(numbers, matches, strict=True) if not paths]
        if missing:
            raise DataError(
                "missing_image",
                f"{len(missing)} of {len(matches)} images are not in the folder {self.path}: {row_list(missing)}. The "
                "image column must hold paths relative to the folder; an ending may be left out if it is one of "
                f"{', '.join(IMAGE_SUFFIXES)}.",
                path=self.path,
                rows=missing,
                total=len(matches),
            )
        several = [number for number, paths in zip(numbers, matches, strict=True) if len(paths) > 1]
        if several:
            raise DataError(
                "ambiguous_file",
                f"{len(several)} of {len(matches)} names without ending fit more than one image file of {self.path}: "
                f"{row_list(several)}. Write them with their ending.",
                path=self.path,
                rows=several,
                total=len(matches),
            )

    def _check_unique(self, files: list[Path], numbers: Sequence[int]) -> None:
        real = [path.resolve() for path in files]
        counts = Counter(real)
        duplicates = [number for number, path in zip(numbers, real, strict=True) if counts[path] > 1]
        if duplicates:
            raise DataError(
                "duplicate_row",
                f"expected one row for each image, {len(duplicates)} of {len(files)} rows name an image that another "
                f"row names too: {row_list(duplicates)}. Keep one row of each image.",
                rows=duplicates,
                total=len(files),
            )
