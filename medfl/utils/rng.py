"""Random streams that are pure functions of (seed, name, round, label), without state across rounds.

A stream does not depend on the order of the sites, on the process, or on restarts, so a run that was killed ends with
the same bits. `SecretStream` is for privacy noise: since the server knows the run's seed, it could subtract noise drawn
from it. A secret stream has a key that only the site knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import random
from collections.abc import Iterator

import numpy as np
import torch

from medfl.utils.seeds import seed_of


def make_generator(*key: str | int) -> torch.Generator:
    """Return a CPU generator whose seed is a hash of a key, for example ``(seed, "site-02", 3, "batches")``."""
    return torch.Generator().manual_seed(seed_of(*key))


@contextlib.contextmanager
def seeded_generators(*key: str | int, gpu: bool = True) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python from a key within the block, and restore them afterwards.

    Dropout, initialisers and third-party transforms use the global generators, so each step seeds them.

    Args:
        key: Strings and integers from which the seed is derived; different keys give unrelated numbers.
        gpu: Whether the generators of GPUs are seeded too, if CUDA is initialised.
    """
    seed = seed_of(*key)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if gpu and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        _seed_torch(seed, gpu)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _seed_torch(seed: int, gpu: bool = True) -> None:
    """Seed torch's global generators, including GPUs if `gpu` is true and CUDA is initialised.

    CUDA is not initialised and not queried here (see `medfl.training.devices`), because it would then fail in
    processes that are forked later. `torch.manual_seed` would also store a call with its stack for each device that
    might be initialised later; over many rounds that costs much time and memory.
    """
    torch.default_generator.manual_seed(seed)
    if gpu and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class SecretStream:
    """Cryptographic stream of random numbers (SHAKE-256 in counter mode over a keyed hash).

    Args:
        secret: Secret of the site, at least 16 bytes. No one else may know it.
        key: Purpose of the numbers, for example ``(run id, round, label, hash of the payload)``. The same secret and
            key always give the same numbers, so a repeated request draws no new noise.

    Raises:
        ValueError: If the secret is shorter than 16 bytes.
    """

    _CHUNK = 1 << 20  # numbers per block: bounds the memory of a large draw

    def __init__(self, secret: bytes, *key: str | int) -> None:
        if len(secret) < 16:
            raise ValueError(f"expected a site secret of at least 16 bytes, got {len(secret)}")
        self._key = hmac.new(secret, json.dumps(key).encode(), hashlib.sha256).digest()
        self._counter = 0

    def _uniform64(self, n: int) -> np.ndarray:
        """Draw n doubles in (0, 1), each with 53 random bits."""
        parts = []
        for start in range(0, n, self._CHUNK):
            size = min(self._CHUNK, n - start)
            block = hashlib.shake_256(self._key + self._counter.to_bytes(8, "big")).digest(8 * size)
            self._counter += 1
            parts.append(((np.frombuffer(block, dtype="<u8") >> 11).astype(np.float64) + 0.5) * 2.0**-53)
        return np.concatenate(parts) if parts else np.empty(0)

    def seed(self) -> int:
        """Draw a seed in [0, 2**63) for generators that are not cryptographic, such as torch's."""
        block = hashlib.shake_256(self._key + self._counter.to_bytes(8, "big")).digest(8)
        self._counter += 1
        return int.from_bytes(block, "big") >> 1

    def take(self, size: int) -> bytes:
        """Draw `size` bytes, for keys."""
        block = hashlib.shake_256(self._key + self._counter.to_bytes(8, "big")).digest(size)
        self._counter += 1
        return block

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Draw uniform numbers in (0, 1), float64, of the given shape."""
        return torch.from_numpy(self._uniform64(int(np.prod(shape)))).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Draw standard normal numbers, float64, of the given shape (Box-Muller)."""
        n = int(np.prod(shape))
        half = (n + 1) // 2
        radius = np.sqrt(-2.0 * np.log(self._uniform64(half)))
        angle = 2.0 * np.pi * self._uniform64(half)
        return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]).reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Draw Laplace numbers of scale 1 (variance 2), float64, of the given shape."""
        u = self._uniform64(int(np.prod(shape))) - 0.5
        return torch.from_numpy(-np.sign(u) * np.log1p(-2.0 * np.abs(u))).reshape(shape)


class SeparateStream:
    """Context manager that replaces torch's global generators by a separate stream, which continues in the next block.

    Use it for a second model whose dropout must not consume random numbers of the first one.

    Args:
        generator: Random generator that draws the seed of the stream.
        device: Device whose generator is replaced, besides the CPU's.
    """

    def __init__(self, generator: torch.Generator, device: str = "cpu") -> None:
        self._devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
        with torch.random.fork_rng(devices=self._devices):
            _seed_torch(int(torch.randint(2**62, (), generator=generator)))
            self._other = self._state()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *error: object) -> None:
        self._swap()

    @property
    def state(self) -> list[torch.Tensor]:
        """State of the CPU's generator, then of the device's if it has its own. Use it outside of the block only."""
        return [self._other[0], *self._other[1]]

    @state.setter
    def state(self, state: list[torch.Tensor]) -> None:
        self._other = state[0], state[1:]

    def _swap(self) -> None:
        """Exchange the global generators' state with the stored state."""
        here, (cpu, cuda) = self._state(), self._other
        torch.set_rng_state(cpu)
        for device, state in zip(self._devices, cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
        self._other = here

    def _state(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the state of the global generators."""
        return torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._devices]
