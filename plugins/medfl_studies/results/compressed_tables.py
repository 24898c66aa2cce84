"""Tables as compressed CSV files whose bytes depend on their content alone, and the rounding of predictions."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from medfl.errors import StoreError
from medfl.utils.files import gzip_bytes, write_atomic

MAX_ROUNDING_ERROR = 5e-4
"""Largest change of a score by the rounding of predictions: half of the last digit that tables show."""


def write_table(path: Path, table: pd.DataFrame, digits: int | None = None) -> None:
    """Write a table as ``csv.gz``, without a time stamp or a file name in it.

    Args:
        path: Path of the file.
        table: The table; its rows are written in their order.
        digits: Number of significant digits of floating-point numbers; None for as many as restore the same number.
    """
    text = table.to_csv(index=False, float_format=None if digits is None else f"%.{digits}g", lineterminator="\n")
    write_atomic(path, gzip_bytes(text.encode()))


def read_table(path: Path, texts: tuple[str, ...]) -> pd.DataFrame:
    """Read a table of `write_table`.

    Args:
        path: Path of the file.
        texts: Names of the columns with text, of which an empty cell is an empty text.

    Raises:
        StoreError: If the file can't be read.
    """
    try:
        table = pd.read_csv(
            path,
            compression="gzip",
            dtype=dict.fromkeys(texts, "object"),
            low_memory=False,
        )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise StoreError(
            "unreadable_file",
            f"'{path}' can't be read: {error}. Put it back from version control, or collect the study again.",
            path=path,
        ) from None
    named = [name for name in texts if name in table]
    return table.assign(**{name: table[name].fillna("") for name in named})


def round_probabilities(table: pd.DataFrame, decimals: int) -> pd.DataFrame:
    """Return predictions with rounded probabilities of classes.

    The predicted class of every case is kept: a case whose largest probability would be another one, or tied, keeps
    its probabilities as they are.

    Args:
        table: Predictions, with the probabilities of the classes in the columns ``p0``, ``p1`` and so on.
        decimals: Number of decimals.

    Raises:
        StoreError: If the predictions are no probabilities of two or more classes.
    """
    columns = [name for name in map(str, table.columns) if re.fullmatch(r"p\d+", name)]
    exact = table[columns].to_numpy(dtype=float)
    if len(columns) < 2:
        raise StoreError(
            "no_probabilities",
            "expected probabilities of two or more classes, which --decimals rounds, the predictions have the columns "
            f"{', '.join(map(str, table.columns))}. Give --digits instead.",
            columns=list(table.columns),
        )
    rounded = exact.round(decimals)
    ordered = np.sort(rounded, axis=1)
    same = (rounded.argmax(axis=1) == exact.argmax(axis=1)) & (ordered[:, -1] > ordered[:, -2])
    return table.assign(**dict(zip(columns, np.where(same[:, None], rounded, exact).T, strict=True)))


def replace_rows(earlier: pd.DataFrame, new: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the rows of both tables, without the earlier ones whose values in the columns `key` occur in the new."""
    replaced = set(new[key].astype(str).itertuples(index=False, name=None))
    kept = [values not in replaced for values in earlier[key].astype(str).itertuples(index=False, name=None)]
    return pd.concat([table for table in (earlier[kept], new) if not table.empty] or [new], ignore_index=True)
