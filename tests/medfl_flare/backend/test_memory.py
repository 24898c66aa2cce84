"""The server's memory beyond its model does not grow with the number of sites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from medfl.utils import wire

NUMBERS = 6_000_000
"""Number of values of the model, in two tensors of 24 MB together."""

MEGABYTES = 4 * NUMBERS / 1e6

SERVER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from medfl_flare.backend import remote_backend
from medfl_flare.backend.messages import Limits, check_tensors, unpack
from medfl_flare.backend.remote_backend import FlareBackend
from medfl.engine.backend import SiteResult
from medfl.engine.replies import DecodedReplies
from medfl.toolkit.aggregation import add_update, mean_update
from medfl.utils.files import map_file

def megabytes(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(lines[name].split()[0]) * 1024 / 1e6

folder, sites = Path(sys.argv[1]), [f"site-{number:02d}" for number in range(9)]
carrier = FlareBackend(SimpleNamespace(listen=lambda *about: None), sites, folder, Limits(), 5.0)
method = SimpleNamespace(filters=lambda: ())

beside = []

def counted(path):
    blob = map_file(path)
    beside.append(sum(str(folder) in line for line in open("/proc/self/maps")))
    return blob

remote_backend.map_file = counted

def fold(names):
    for name in names:  # each answer as it comes
        tensors = unpack(map_file(folder / f"{name}.safetensors"), Limits()).tensors
        check_tensors(tensors, prefixes=("model/",), shapes={}, norm_bound=None, who=name)
        del tensors
    replies = DecodedReplies(method, carrier.replies([SiteResult(name, 1) for name in names], []))
    mean = mean_update(replies, dict.fromkeys(names, 1 / len(names)))
    return {name: add_update(tensor, mean[name]) for name, tensor in old.items()}

old = {name: torch.zeros(8) for name in "ab"}
fold(sites[:1])  # what is imported at first use
before = megabytes("VmRSS")
old = {name: torch.zeros(int(sys.argv[2]) // 2) for name in "ab"}
peaks = []
for count in (3, 8):
    new = fold(sites[1 : count + 1])
    peaks.append(megabytes("VmHWM") - before)
    value = float(new["b"][-1])
    del new
print(json.dumps({"peaks": peaks, "value": value, "beside": max(beside)}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of a process")
def test_a_fold_of_eight_replies_needs_what_one_of_three_needs(tmp_path: Path) -> None:
    for number in range(9):
        tensors = {f"model/{name}": torch.full((NUMBERS // 2 if number else 8,), float(number)) for name in "ab"}
        blob = wire.encode(tensors, {"kind": "step", "meta": {}})
        (tmp_path / f"site-{number:02d}.safetensors").write_bytes(blob)
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(NUMBERS)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    measured = json.loads(done.stdout.splitlines()[-1])
    three, eight = measured["peaks"]
    assert measured["value"] == sum(range(1, 9)) / 8
    assert measured["beside"] == 1, "no reply beside another"
    assert eight - three < 0.5 * MEGABYTES
    assert eight < 5.2 * MEGABYTES, "the model, its mean in float64, a reply or the new model, and pieces of them"
