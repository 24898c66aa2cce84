"""YAML files that are made to fill the memory of their reader."""

from __future__ import annotations

BOMB = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
LOOP = "a: &a [*a]\n"
EXPLOSIVE = (BOMB, LOOP, f"a: {'[' * 3000}{']' * 3000}\n", "{a: " * 3000 + "1" + "}" * 3000, f"a: {'9' * 5000}")
