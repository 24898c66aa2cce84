"""Tests that freed memory is kept during training, released in pauses, and left alone if the user configures it."""

from __future__ import annotations

import ctypes
import os
import types
from collections.abc import Callable, Iterator

import pytest
from mapped_blocks import LARGE, is_mapped

from medfl.utils import memory

on_glibc = pytest.mark.skipif(is_mapped() is None, reason="the C library is not glibc >= 2.33")


def in_child(look: Callable[[], object]) -> str:
    """Return the repr of a function's result in a forked process, which has its own allocator state."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, repr(look()).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    set_thresholds = memory._set_thresholds
    set_thresholds.cache_clear()
    yield
    set_thresholds.cache_clear()


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@on_glibc
def test_large_blocks_come_from_the_heap_in_this_process_and_in_its_forks() -> None:
    def look() -> object:
        kept = memory.keep_freed_memory()
        return kept, is_mapped(), in_child(is_mapped), memory.keep_freed_memory()

    assert in_child(look) == "(True, False, 'False', True)"


@on_glibc
def test_freed_memory_stays_until_it_is_released() -> None:
    def look() -> object:
        memory.keep_freed_memory()
        library = ctypes.CDLL(None)
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.argtypes = [ctypes.c_void_p]
        before = resident()
        block = library.malloc(LARGE)
        ctypes.memset(block, 1, LARGE)
        library.free(block)
        freed = resident()
        memory.release_memory()
        return freed - before > 0.9 * LARGE, resident() - before < 0.1 * LARGE

    assert in_child(look) == "(True, True)"


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "1"), ("GLIBC_TUNABLES", "glibc.malloc.perturb=0")],
)
def test_a_user_who_configures_the_allocator_is_left_alone(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_set_thresholds", lambda: pytest.fail("the thresholds were set"))
    monkeypatch.setenv(name, value)
    assert memory.keep_freed_memory() is False


@pytest.mark.parametrize("symbols", [{}, {"mallopt": lambda parameter, value: pytest.fail("called")}])
def test_another_c_library_is_left_alone(symbols: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither macOS nor musl has a `mallopt`; other libraries have one with different parameters."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace(**symbols))
    assert memory.keep_freed_memory() is False


def test_windows_has_no_such_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: None) -> None:
        raise TypeError("expected a name")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert memory.keep_freed_memory() is False


def test_an_older_glibc_gets_the_largest_threshold_that_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        if parameter == memory.M_MMAP_THRESHOLD and value > memory.MAX_OLD_MMAP_THRESHOLD:
            return 0
        accepted[parameter] = value
        return 1

    library = types.SimpleNamespace(mallopt=mallopt, gnu_get_libc_version=lambda: b"2.31")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert memory.keep_freed_memory() is True
    assert accepted == {memory.M_MMAP_THRESHOLD: 2**25, memory.M_TRIM_THRESHOLD: memory.KEPT_BYTES}
