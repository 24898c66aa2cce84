"""State of the participants on disk: one atomic file for each participant and step.

A file is written under a temporary name, flushed to the disk and renamed; then its folder is flushed. After a kill, a
full disk or a power cut, the disk has either the whole new step or the whole old one. A participant keeps its last two
steps, with the blobs (large constant tensors in separate files) that the steps refer to. A file that does not match its
checksum is skipped with a warning, and the step before it is used.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from medfl.contract import PeerMessage, State
from medfl.errors import DamagedError, StoreError
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import write_atomic
from medfl.utils.locks import LOCK_FILE, hold_lock

logger = logging.getLogger(__name__)


RETAINED_STEPS = 2
"""Number of the newest steps of a participant that are kept."""


STEP_FILE = re.compile(r"step-(\d{8})\.safetensors")
"""Pattern of the names of step files; the group is the number of the step."""


SENT_PREFIXES = ("reply/", "peer_message/")
"""Prefixes of the names of tensors that a site sent. The tensors are needed until the server has committed the step."""

DISCARDED = "sent_discarded"
"""Metadata key that marks a step whose sent tensors (`SENT_PREFIXES`) were deleted to free space.

The site can't send the reply of such a step again.
"""

StepNumbers = Collection[int]
"""Type of a collection of step numbers."""


LOCK_SECONDS = 1.0
"""Seconds to wait for the lock of a run folder. After a kill, the system needs a moment to end the old processes."""


@dataclass
class StoredStep:
    """Content of the file of one step.

    Attributes:
        step: Number of the step.
        tensors: All tensors of the file, by name. The tensors of the state have the prefix ``state/``.
        meta: Metadata as JSON. The entries ``state`` (its metadata) and ``blobs`` (its references to blobs) belong to
            the participant's state.
    """

    step: int
    tensors: Tensors
    meta: Meta

    def state(self) -> State:
        """Return the participant's state after the step."""
        return State(wire.select(self.tensors, "state/"), self.meta["state"], self.meta["blobs"])


class Store:
    """Step files and blobs of one participant.

    Args:
        folder: Folder of the participant. The first write creates it.

    Attributes:
        flushes: Whether `save` flushes the step's file to the disk. If not, the caller must call
            `medfl.utils.files.flush_files` before it relies on the step.
    """

    __slots__ = ("_written", "flushes", "folder")  # a run can have 100,000 sites

    def __init__(self, folder: Path) -> None:
        self.folder, self.flushes = folder, True
        self._written: tuple[int, int, int] | None = None

    def path(self, step: int) -> Path:
        """Return the path of the file of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """Return the numbers of the steps on disk, ascending, including damaged ones."""
        try:
            names = os.listdir(self.folder)  # in a simulation most folders don't exist, which a glob notices slowly
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := STEP_FILE.fullmatch(name)))

    def save(self, step: int, state: State, meta: Meta, extra: Tensors | None = None, keep: StepNumbers = ()) -> None:
        """Write a step to one atomic file, then delete older steps and the blobs that only they refer to.

        Args:
            step: Number of the step.
            state: State of the participant after the step.
            meta: All other metadata of the step, as JSON.
            extra: Further tensors, with prefixed names (the reply and the peer messages).
            keep: Steps after which the participant's state is still needed. For each of them, the newest file up to
                that step is kept, besides the newest `RETAINED_STEPS` files.

        Raises:
            StoreError: If the file can't be written. The previous step stays valid.
        """
        tensors = wire.prefixed(state.tensors, "state/") | (extra or {})
        content = meta | {"step": step, "state": state.meta, "blobs": state.blobs}
        write_atomic(self.path(step), wire.encode(tensors, content, "crc32"), self.flushes)
        self._written = self._file_stamp(step)
        self._prune(keep)

    def load(self, step: int) -> StoredStep:
        """Read one step and verify its checksum.

        Raises:
            DamagedError: If the file is truncated or was changed.
            FileNotFoundError: If the step is not stored.
        """
        return StoredStep(step, *wire.decode(self.path(step).read_bytes()))

    def latest(self, before: int | None = None) -> StoredStep | None:
        """Read the newest valid step, and log a warning for each damaged file.

        Args:
            before: Only steps below this number are read; None reads all.

        Returns:
            None if no valid step is stored.
        """
        for step in reversed([step for step in self.steps() if before is None or step < before]):
            try:
                return self.load(step)
            except DamagedError as error:
                logger.warning("'%s' is damaged (%s). The step before it is used.", self.path(step), error)
        return None

    def last_state(self, before: int) -> tuple[int, State]:
        """Return the newest valid step below `before` and the state after it; 0 and an empty state without one.

        If this object has written the newest step and its file is unchanged since, the checksum is not verified again,
        and the sent tensors are not read.
        """
        newest = next((step for step in reversed(self.steps()) if step < before), 0)
        if self._written is not None and newest == self._written[0] and self._written == self._file_stamp(newest):
            return newest, self._read_state_after(newest)
        record = self.latest(before)
        return (0, State()) if record is None else (record.step, record.state())

    def _file_stamp(self, step: int) -> tuple[int, int, int]:
        """Return the number of a stored step, the time of the last change of its file in ns, and the file's size."""
        status = self.path(step).stat()
        return step, status.st_mtime_ns, status.st_size

    def set_damaged_aside(self) -> int:
        """Rename damaged files above the newest valid step to ``*.damaged``, and return the newest valid step.

        The caller must hold the run folder for writing.

        Returns:
            0 if no valid step is stored.
        """
        newest = self.latest()
        for step in self.steps():
            if newest is None or step > newest.step:
                self.path(step).replace(self.path(step).with_suffix(".damaged"))
        return newest.step if newest else 0

    def read_state(self, before: int) -> State:
        """Read the state of the newest step below `before`. Change nothing on the disk.

        The other tensors of the file are not read, so the checksum is not verified. If the file can't be parsed, the
        newest valid step before it is used.

        Returns:
            An empty state if no step is stored.
        """
        steps = [step for step in self.steps() if step < before]
        return self._read_state_after(steps[-1]) if steps else State()

    def _read_state_after(self, step: int) -> State:
        """Read the state after a stored step like `read_state`."""
        try:
            with safe_open(self.path(step), framework="pt") as file:
                meta = json.loads(file.metadata()["medfl"])
                return State(_read_tensors(file, "state/"), meta["state"], meta["blobs"])
        except (SafetensorError, ValueError, KeyError):
            record = self.latest(before=step + 1)
            return record.state() if record else State()

    def read(self, step: int, prefix: str) -> Tensors:
        """Read the tensors of a step whose names begin with a prefix, and return them by name without the prefix.

        The other tensors are not read, so the checksum is not verified.
        """
        with safe_open(self.path(step), framework="pt") as file:
            return _read_tensors(file, prefix)

    def delete_step(self, step: int) -> None:
        """Delete the file of a step, if it exists."""
        self.path(step).unlink(missing_ok=True)

    def free_space(self, keep: StepNumbers = ()) -> None:
        """Delete files and tensors that are not needed to continue a finished run with more rounds.

        Deleted are the older steps, the blobs that only they refer to, the `SENT_PREFIXES` tensors of the remaining
        steps, and old peer messages. Nothing is deleted if the newest step can't be read. A kill at any moment leaves
        steps from which the run can continue.

        Args:
            keep: Steps after which the participant's state is still needed, besides the newest one.
        """
        steps = self.steps()
        newest = self.latest()
        if newest is None or newest.step != steps[-1]:
            return
        kept = {newest.step, *(steps[place - 1] for at in keep if (place := bisect_right(steps, at)))}
        with contextlib.suppress(OSError, StoreError):  # a file that can't be deleted only takes space
            for step in sorted(kept):
                record = newest if step == newest.step else self.load(step)
                tensors = {
                    name: tensor for name, tensor in record.tensors.items() if not name.startswith(SENT_PREFIXES)
                }
                if len(tensors) < len(record.tensors):
                    write_atomic(self.path(step), wire.encode(tensors, record.meta | {DISCARDED: True}, "crc32"))
            for step in sorted({*steps} - kept):
                self.delete_step(step)
            self._delete_blobs(kept)
            Inbox(self.folder).delete_before(newest.step)

    def put(self, tensors: Tensors) -> str:
        """Write tensors as a blob (large constant), unless a file with the same content exists.

        Returns:
            SHA-256 of the content, which is the name of the blob.
        """
        digest = wire.digest(tensors)
        path = self._blob(digest)
        if not path.exists():
            write_atomic(path, wire.encode(tensors, {}))
        return digest

    def get(self, digest: str) -> Tensors:
        """Read the tensors of a blob.

        Args:
            digest: SHA-256 of the blob's content, which `put` returned.

        Raises:
            StoreError: If the file is missing or damaged.
        """
        try:
            return wire.decode(self._blob(digest).read_bytes())[0]
        except (OSError, DamagedError) as error:
            raise StoreError(
                "unreadable_file",
                f"The stored constant '{self._blob(digest)}' can't be read: {error}. Start the run in a new folder.",
                path=self._blob(digest),
            ) from error

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / f"{digest}.safetensors"

    def _prune(self, keep: StepNumbers) -> None:
        steps = self.steps()
        kept = {*steps[-RETAINED_STEPS:], *(steps[bisect_right(steps, at) - 1] for at in keep)}
        # The step is saved. A file that can't be deleted or read now only takes space; the next step prunes again.
        with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError):
            for step in sorted({*steps} - kept):
                self.delete_step(step)
            if len(steps) > RETAINED_STEPS:
                self._delete_blobs(kept)

    def _delete_blobs(self, kept: StepNumbers) -> None:
        """Delete the blobs that no kept step refers to."""
        blobs = list((self.folder / "blobs").glob("*.safetensors"))
        named = {digest for step in kept for digest in self._blobs_named_by(step)} if blobs else set()
        for blob in blobs:
            if blob.stem not in named:
                blob.unlink(missing_ok=True)

    def _blobs_named_by(self, step: int) -> list[str]:
        with safe_open(self.path(step), framework="pt") as file:
            return list(json.loads(file.metadata()["medfl"])["blobs"].values())


def _read_tensors(file: Any, prefix: str) -> Tensors:
    """Read the tensors of an open safetensors file whose names begin with a prefix, by name without the prefix."""
    return {name[len(prefix) :]: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118


def copy_state(state: State) -> State:
    """Return a deep copy of a state."""
    meta = json.loads(json.dumps(state.meta))
    return State({name: tensor.clone() for name, tensor in state.tensors.items()}, meta, dict(state.blobs))


class Inbox:
    """Peer messages (messages from other sites) that wait for a site, the receiver.

    The receiver reads a message in its first step after the step in which the message was sent.

    The file names alone decide which messages a step reads. Reading deletes nothing, so a step that is repeated after a
    crash reads the same messages.

    Args:
        folder: Folder of the receiver.
    """

    def __init__(self, folder: Path) -> None:
        self._site_folder = folder

    @property
    def folder(self) -> Path:
        """Folder of the waiting messages. Sites share no path objects, so a stored one would take 300 bytes of each."""
        return self._site_folder / "inbox"

    def post(self, step: int, sender: str, peer_message: PeerMessage) -> None:
        """Write a peer message and flush it to the disk, unless the message of that sender and step is stored.

        Args:
            step: Step in which the message was sent.
            sender: Name of the sender.
            peer_message: The message.
        """
        path = self.folder / f"{step:08d}-{sender}.safetensors"
        if not path.exists():
            write_atomic(path, wire.encode(peer_message.tensors, {"meta": peer_message.meta, "sender": sender}))

    def read(self, since: int, before: int) -> list[PeerMessage]:
        """Read the peer messages that were sent in the steps [since, before), sorted by sender.

        Raises:
            DamagedError: If the file of a message is damaged.
        """
        peer_messages = []
        for path in sorted(self.folder.glob("????????-*.safetensors")):
            if since <= int(path.name[:8]) < before:
                try:
                    tensors, meta = wire.decode(path.read_bytes())
                except DamagedError as error:
                    raise DamagedError(
                        "damaged_file", f"The peer message '{path}' can't be read. {error}", path=path, cause=error.code
                    ) from error
                peer_messages.append(PeerMessage(self._site_folder.name, tensors, meta["meta"], meta["sender"]))
        return sorted(peer_messages, key=lambda peer_message: peer_message.sender)

    def waiting_bytes(self, sender: str, step: int) -> int:
        """Return the size in bytes of a sender's waiting messages, without the message of one step.

        Args:
            sender: Name of the sender.
            step: Step whose message does not count, as a repeated message is stored once.
        """
        paths = self.folder.glob(f"????????-{sender}.safetensors")
        return sum(path.stat().st_size for path in paths if int(path.name[:8]) != step)

    def delete_messages_of(self, sender: str) -> None:
        """Delete all peer messages of a sender."""
        for path in self.folder.glob(f"????????-{sender}.safetensors"):
            path.unlink(missing_ok=True)

    def delete_before(self, before: int) -> None:
        """Delete the peer messages that were sent before a step.

        Args:
            before: Number of the step.
        """
        with contextlib.suppress(OSError):  # a file that can't be deleted only takes space
            for path in self.folder.glob("????????-*.safetensors"):
                if int(path.name[:8]) < before:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_for_writing(folder: Path, patience: float = LOCK_SECONDS) -> Iterator[None]:
    """Lock a run folder for writing during a block. Delete temporary files that a killed process left in it.

    Other processes may read the folder meanwhile. The operating system releases the lock when the process ends, for
    any reason. Forked workers hold the lock too: if their parent is killed, it is released when the last of them ends.

    Args:
        folder: Path of the run folder. It is created if it does not exist.
        patience: Seconds to wait for another process.

    Raises:
        StoreError: If another process holds the lock, or the folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK_FILE).touch()
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"Could not write to the run folder '{folder}': {error.strerror}.",
            path=folder,
            reason=error.strerror,
        ) from error
    with hold_lock(folder / LOCK_FILE, patience) as is_locked:
        if not is_locked:
            raise StoreError(
                "folder_in_use",
                f"Another process is writing to the run folder '{folder}'. Wait for it, stop it, or name another "
                "folder with --output_dir. Reading the folder meanwhile is possible.",
                path=folder,
            )
        for stale in folder.rglob(".*.tmp"):
            with contextlib.suppress(OSError):
                stale.unlink()
        yield
