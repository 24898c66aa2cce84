"""The process of a drill at the server: frames in, frames out. It ends with its drill, and takes nothing else along."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

from medfl.errors import MedflError
from medfl_flare.drill import words

KINDS = (words.ASKS, words.OVER, words.REFUSED)
"""What a frame's first byte stands for."""


def write_frame(stream: BinaryIO, kind: int, blob: bytes) -> None:
    """Write one frame: its kind, the number of bytes, and these."""
    stream.write(bytes([kind]) + len(blob).to_bytes(8, "little"))
    stream.write(blob)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Read one frame; None at the end."""
    head = stream.read(9)
    if len(head) < 9:
        return None
    size = int.from_bytes(head[1:], "little")
    blob = stream.read(size)
    return (head[0], blob) if len(blob) == size else None


def main(site_file: str) -> None:
    """Serve one drill over standard input and output.

    Args:
        site_file: Path of the server's own file.
    """
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no frame
    source = sys.stdin.buffer
    first = read_frame(source)
    if first is None:
        return

    def exchange(blob: bytes) -> bytes:
        write_frame(output, KINDS.index(words.ASKS), blob)
        answer = read_frame(source)
        if answer is None:
            raise SystemExit(0)  # the site left
        return answer[1]

    from medfl_flare.drill.rehearsed import rehearse  # it imports torch, which `Host` has no need of
    from medfl_flare.sites.file import read_site_file

    try:
        end = rehearse(read_site_file(Path(site_file)), *words.wish(first[1]), exchange)
        write_frame(output, KINDS.index(words.OVER), json.dumps(end).encode())
    except MedflError as error:
        write_frame(output, KINDS.index(words.REFUSED), str(error).encode())


if __name__ == "__main__":
    main(sys.argv[1])
