"""State on disk: one atomic file for each participant and step.

A file is written under a temporary name, flushed to the disk, renamed, and the folder is flushed too. So after a kill,
a full disk or a power cut there is either the whole new step or the whole old one. The last two steps are kept, with
the large constants (blobs) that they name. A file whose content no longer matches its checksum is passed over, with a
warning, in favour of the step before it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from medfl.contract import PeerMessage, State
from medfl.errors import DamagedError, StoreError
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import write_atomic
from medfl.utils.locks import LOCK, held

logger = logging.getLogger(__name__)


KEEP = 2
"""How many steps of a participant are kept, the newest ones."""


SENT = ("reply/", "peer_message/")
"""Prefixes of tensors that a site sent, which are needed until the server has committed the step."""

DISCARDED = "sent_discarded"
"""In the meta of a step whose `SENT` tensors were deleted: it can't be answered from disk again."""

Steps = Collection[int]
"""Numbers of steps."""


PATIENCE = 1.0
"""Seconds to wait for a run folder: after a kill the system takes a moment to end the processes that held it."""


@dataclass
class Record:
    """What a participant saved at a step."""

    step: int
    tensors: Tensors
    meta: Meta

    def state(self) -> State:
        """The participant's state in this record."""
        return State(wire.select(self.tensors, "state/"), self.meta["state"], self.meta["blobs"])


class Store:
    """The files of one participant.

    Args:
        folder: Its folder; created at the first write.

    Attributes:
        flushes: Whether a step is on the disk when `save` returns; else who counts on it has to call `flush_files`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.flushes = folder, True

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """The steps on disk, oldest first, valid or not."""
        return sorted(int(path.name[5:13]) for path in self.folder.glob("step-????????.safetensors"))

    def save(self, step: int, state: State, meta: Meta, extra: Tensors | None = None, keep: Steps = ()) -> None:
        """Save a step in one atomic file, then forget what is older than the last two.

        Args:
            step: Its number.
            state: The participant's state after it.
            meta: Everything else that belongs to the step; JSON.
            extra: More tensors, with prefixed names (a reply, parcels).
            keep: Steps after which the participant's state is still needed: each one's newest file stays, too.

        Raises:
            StoreError: If it can't be written; the previous step stays valid.
        """
        tensors = wire.prefixed(state.tensors, "state/") | (extra or {})
        content = meta | {"step": step, "state": state.meta, "blobs": state.blobs}
        write_atomic(self.path(step), wire.encode(tensors, content), self.flushes)
        self._prune(keep)

    def load(self, step: int) -> Record:
        """Read and verify one step.

        Raises:
            DamagedError: If the file is cut short or was changed.
            FileNotFoundError: If there is none.
        """
        return Record(step, *wire.decode(self.path(step).read_bytes()))

    def latest(self, before: int | None = None) -> Record | None:
        """The newest valid step (below `before`, if given), or None. Damaged files are named in a warning."""
        for step in reversed([step for step in self.steps() if before is None or step < before]):
            try:
                return self.load(step)
            except DamagedError as error:
                logger.warning("%s is damaged (%s); falling back to the step before it.", self.path(step), error)
        return None

    def mend(self) -> int:
        """Set damaged newest files aside (``*.damaged``); the newest valid step, or 0. Only for who may write here."""
        newest = self.latest()
        for step in self.steps():
            if newest is None or step > newest.step:
                self.path(step).replace(self.path(step).with_suffix(".damaged"))
        return newest.step if newest else 0

    def peek(self, before: int) -> State:
        """The state of the newest step below `before`, for looking only: other tensors are not read nor verified."""
        steps = [step for step in self.steps() if step < before]
        if not steps:
            return State()
        try:
            with safe_open(self.path(steps[-1]), framework="pt") as file:
                meta = json.loads(file.metadata()["medfl"])
            return State(self.read(steps[-1], "state/"), meta["state"], meta["blobs"])
        except (SafetensorError, ValueError, KeyError):
            record = self.latest(before)
            return record.state() if record else State()

    def read(self, step: int, prefix: str) -> Tensors:
        """Only the tensors under `prefix` of a step, without it; other tensors are not read."""
        with safe_open(self.path(step), framework="pt") as file:
            return {name[len(prefix) :]: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118

    def drop(self, step: int) -> None:
        """Forget a step, so that the one before it is the newest."""
        self.path(step).unlink(missing_ok=True)

    def free_space(self, keep: Steps = ()) -> None:
        """Delete what continuing a finished run does not need: older steps, and the `SENT` tensors of the others.

        Deletes nothing unless the newest step can be read. A kill at any moment leaves steps that can be continued.

        Args:
            keep: Steps after which the participant's state is still needed, beside the newest one.
        """
        steps = self.steps()
        newest = self.latest()
        if newest is None or newest.step != steps[-1]:
            return
        kept = {newest.step, *(steps[place - 1] for at in keep if (place := bisect_right(steps, at)))}
        with contextlib.suppress(OSError, StoreError):  # what can't be deleted now is left over, no more
            for step in sorted(kept):
                record = newest if step == newest.step else self.load(step)
                tensors = {name: tensor for name, tensor in record.tensors.items() if not name.startswith(SENT)}
                if len(tensors) < len(record.tensors):
                    write_atomic(self.path(step), wire.encode(tensors, record.meta | {DISCARDED: True}))
            for step in sorted({*steps} - kept):
                self.drop(step)
            self._delete_blobs(kept)
            Inbox(self.folder).forget(newest.step)

    def put(self, tensors: Tensors) -> str:
        """Write a large constant once; the same content has the same name.

        Returns:
            Its SHA-256.
        """
        digest = wire.digest(tensors)
        path = self._blob(digest)
        if not path.exists():
            write_atomic(path, wire.encode(tensors, {}))
        return digest

    def get(self, digest: str) -> Tensors:
        """Read a constant.

        Raises:
            StoreError: If it is gone or damaged.
        """
        try:
            return wire.decode(self._blob(digest).read_bytes())[0]
        except (OSError, DamagedError) as error:
            raise StoreError(
                "unreadable_file",
                f"The constant '{self._blob(digest)}' can't be read: {error}. Start the run in a new folder.",
                path=self._blob(digest),
            ) from error

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / f"{digest}.safetensors"

    def _prune(self, keep: Steps) -> None:
        steps = self.steps()
        kept = {*steps[-KEEP:], *(steps[bisect_right(steps, at) - 1] for at in keep)}
        # What can't be deleted or read now is left over, no more: the step is saved, and the next one prunes again.
        with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError):
            for step in sorted({*steps} - kept):
                self.drop(step)
            if len(steps) > KEEP:
                self._delete_blobs(kept)

    def _delete_blobs(self, kept: Steps) -> None:
        """Delete the constants that no kept step names."""
        blobs = list((self.folder / "blobs").glob("*.safetensors"))
        named = {digest for step in kept for digest in self._blobs_named_by(step)} if blobs else set()
        for blob in blobs:
            if blob.stem not in named:
                blob.unlink(missing_ok=True)

    def _blobs_named_by(self, step: int) -> list[str]:
        with safe_open(self.path(step), framework="pt") as file:
            return list(json.loads(file.metadata()["medfl"])["blobs"].values())


def copied(state: State) -> State:
    """A state that shares nothing with the given one."""
    meta = json.loads(json.dumps(state.meta))
    return State({name: tensor.clone() for name, tensor in state.tensors.items()}, meta, dict(state.blobs))


class Inbox:
    """Parcels that wait for a site. A parcel posted in step p is read by the receiver's first step after p.

    Which parcels a step reads follows from the file names alone, so reading consumes nothing and a step that is done
    again after a crash finds the same parcels.

    Args:
        folder: The receiver's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "inbox"

    def post(self, step: int, sender: str, peer_message: PeerMessage) -> None:
        """Store a parcel (flushed to disk); the same sender, step and receiver is stored once."""
        path = self.folder / f"{step:08d}-{sender}.safetensors"
        if not path.exists():
            write_atomic(path, wire.encode(peer_message.tensors, {"meta": peer_message.meta, "sender": sender}))

    def read(self, since: int, before: int) -> list[PeerMessage]:
        """Parcels posted in steps [since, before), sorted by sender."""
        peer_messages = []
        for path in sorted(self.folder.glob("????????-*.safetensors")):
            if since <= int(path.name[:8]) < before:
                try:
                    tensors, meta = wire.decode(path.read_bytes())
                except DamagedError as error:
                    raise DamagedError(
                        "damaged_file", f"The parcel '{path}' can't be read. {error}", path=path, cause=error.code
                    ) from error
                peer_messages.append(PeerMessage(self.folder.parent.name, tensors, meta["meta"], meta["sender"]))
        return sorted(peer_messages, key=lambda peer_message: peer_message.sender)

    def waiting_bytes(self, sender: str, step: int) -> int:
        """Bytes of the parcels of a sender that wait, but for that of a step, which is stored once."""
        paths = self.folder.glob(f"????????-{sender}.safetensors")
        return sum(path.stat().st_size for path in paths if int(path.name[:8]) != step)

    def drop(self, sender: str) -> None:
        """Delete all parcels of a sender."""
        for path in self.folder.glob(f"????????-{sender}.safetensors"):
            path.unlink(missing_ok=True)

    def forget(self, before: int) -> None:
        """Delete parcels posted before a step that no kept step can read again."""
        with contextlib.suppress(OSError):  # what can't be deleted now is left over, no more
            for path in self.folder.glob("????????-*.safetensors"):
                if int(path.name[:8]) < before:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_writer(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a run folder for writing. Others may read it meanwhile. The lock ends with the process, however it ends.

    It is held by the workers that a process forks, too: after a kill of their parent it ends when the last of them has.
    Half-written files that a kill left behind are removed.

    Args:
        folder: The run folder.
        patience: Seconds to wait for another process.

    Raises:
        StoreError: If another process holds it, or the folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"Could not write to the run folder '{folder}': {error.strerror}.",
            path=folder,
            reason=error.strerror,
        ) from error
    with held(folder / LOCK, patience) as alone:
        if not alone:
            raise StoreError(
                "folder_in_use",
                f"Another process is writing to the run folder '{folder}'. Wait for it, stop it, or name another "
                "folder with --output_dir. Reading the folder meanwhile is fine.",
                path=folder,
            )
        for stale in folder.rglob(".*.tmp"):
            with contextlib.suppress(OSError):
                stale.unlink()
        yield
