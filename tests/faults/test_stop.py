"""Ctrl-C, a second process, a worker that dies, and a bug in a method: clear words, no process left, and on it goes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fault_harness import Child
from refusals import refused
from toys import Ring, Toy, snapshot

from medfl.contract import Capability, Reply, Request, Site
from medfl.engine.store import Store, lock_for_writing
from medfl.errors import ContractError, MedflError, StoreError
from medfl.toolkit.averaging import Averaging


class Waiting(Ring):
    """A ring whose site-2 stops in its second training until a file appears; it tells that it is there, and who."""

    folder: str

    def execute(self, site: Site, request: Request) -> Reply:
        go, here = Path(self.folder, "go"), Path(self.folder, "here")
        if site.name == "site-2" and request.op == "train" and site.round == 2 and not go.exists():
            here.with_suffix(".tmp").write_text(str(os.getpid()))
            here.with_suffix(".tmp").rename(here)
            while not go.exists():
                time.sleep(0.01)
        return super().execute(site, request)


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[Any, Path]:
    """Yield a case and the run folder of a run with two workers, one of which hangs in step 4."""
    (tmp_path / "signs").mkdir()
    return Toy(Waiting, folder=str(tmp_path / "signs")), tmp_path / "run"


def halted(case: Any, folder: Path, workers: int = 2) -> tuple[Child, int]:
    """Start a run and wait until it halts; also the process that halts."""
    child, here = Child(lambda: case.run(folder, workers=workers)), folder.parent / "signs" / "here"
    while not here.exists():
        assert not child.has_ended(), "the run did not come to its halt"
        time.sleep(0.01)
    return child, int(here.read_text())


def finish(case: Any, folder: Path, **options: Any) -> None:
    """Give the same command again, without a halt, and compare with an unbroken run."""
    (folder.parent / "signs" / "go").touch()
    case.run(folder, **options)
    case.run(folder.parent / "whole")
    assert snapshot(folder) == snapshot(folder.parent / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c(workers: int, waiting: Any, capfd: pytest.CaptureFixture[str]) -> None:
    case, folder = waiting
    child, _ = halted(case, folder, workers)
    child.kill(signal.SIGINT)
    assert child.end().startswith("KeyboardInterrupt")
    assert "Traceback" not in capfd.readouterr().err, "one Ctrl-C, one message: that of the command line"
    finish(case, folder, workers=workers)


def test_terminated(waiting: Any) -> None:
    """SIGTERM, as a batch system sends it to every process of a job."""
    case, folder = waiting
    child, _ = halted(case, folder)
    child.kill(signal.SIGTERM)
    assert child.end() == "killed"
    finish(case, folder, workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_second_process_on_one_folder(workers: int, waiting: Any) -> None:
    case, folder = waiting
    child, _ = halted(case, folder, workers)
    before = (folder / "run.json").stat().st_mtime_ns
    second = Child(lambda: case.run(folder)).end()
    assert second.startswith("StoreError: Another process is writing to the run folder"), second
    assert str(folder) in second
    assert Store(folder / "state" / "server").latest().step == 3  # type: ignore[union-attr] # reading is fine
    assert (folder / "run.json").stat().st_mtime_ns == before, "it wrote nothing"
    (folder.parent / "signs" / "go").touch()
    assert child.end() == "done"
    finish(case, folder)


def test_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_for_writing(tmp_path):
        raise ZeroDivisionError
    with lock_for_writing(tmp_path):
        pass


def test_worker_killed(waiting: Any) -> None:
    """Kill the process as the system does if memory runs out."""
    case, folder = waiting
    child, worker = halted(case, folder)
    assert worker != child.pid
    os.kill(worker, signal.SIGKILL)
    how = child.end()
    assert how.startswith("MedflError: A worker process ended while it ran 'step' for 'site-2'"), how
    assert "same command again" in how
    finish(case, folder, workers=2)


class Fails(Averaging):
    """Fails at one site in its second round unless a file says that it was mended."""

    mended: str
    how: str = "bug"

    def execute(self, site: Site, request: Request) -> Reply:
        if site.round == 2 and site.name == "site-2" and not Path(self.mended).exists():
            if self.how == "bug":
                return {}["a key"]  # type: ignore[no-any-return, index]
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StoreError("disk_full", "no more space, says the test")
        return super().execute(site, request)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("kind", "error", "code", "text"),
    [
        ("bug", RuntimeError, None, "KeyError in 'step' of 'site-2': 'a key'"),
        ("full", StoreError, "disk_full", "no more space, says the test"),
    ],
)
def test_error_in_a_methods_work(
    kind: str, error: type[Exception], code: str | None, text: str, workers: int, tmp_path: Path
) -> None:
    case = Toy(Fails, mended=str(tmp_path / "mended"), how=kind)
    with pytest.raises(error) as caught:
        case.run(tmp_path / "run", workers=workers)
    assert getattr(caught.value, "code", None) == code
    assert str(caught.value) == text
    where = "".join(getattr(caught.value, "__notes__", [])) or str(caught.value.__cause__ or caught.traceback)
    assert "key" in where or "test_stop" in where, "a method's author must find the line"
    (tmp_path / "mended").touch()
    case.run(tmp_path / "run", workers=workers)
    case.run(tmp_path / "whole")
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "whole")


class Posts(Ring):
    """Posts peer messages as no method should."""

    way: str

    def execute(self, site: Site, request: Request) -> Reply:
        reply = super().execute(site, request)
        if request.op == "send":
            if self.way == "twice":
                reply.peer_messages *= 2
            else:
                reply.peer_messages[0].to = self.way
        return reply


class Undeclared(Ring):
    """A ring that does not say that it posts peer messages."""

    supports: ClassVar[frozenset[Capability]] = frozenset()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "case", [Toy(Posts, way="twice"), Toy(Posts, way="nobody"), Toy(Posts, way="../../x"), Toy(Undeclared)]
)
def test_peer_messages_that_break_the_contract(case: Any, workers: int, tmp_path: Path) -> None:
    with refused(ContractError, "wrong_receivers") as caught:
        case.run(tmp_path / "run", workers=workers)
    assert caught.value.fields["site"] in {"site-1", "site-2", "site-3"}
    assert not (tmp_path / "x").exists()
    assert {path.name for path in (tmp_path / "run" / "state").iterdir()} == {"server"}, "nothing was saved or posted"


def test_every_error_of_a_worker_ends_the_pool(tmp_path: Path) -> None:
    """After an error no worker is left, also in a process that goes on."""

    def work() -> None:
        with pytest.raises(MedflError):
            Toy(Fails, mended=str(tmp_path / "never"), how="dies").run(tmp_path / "run", workers=2)
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    assert Child(work).end() == "done"
