"""Every bundle of a folder on trial: adopted, trained on made-up cases, taken home.

As a program it prints a table in Markdown: ``python tests/helpers/zoo_trial.py ZOO [--only NAME] [--options FILE]``,
where the file holds for some bundles options of their own: ``{"NAME": {"train#dataloader#batch_size": 1}}``.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from synthetic_cases import Kind, NotDerivable, make_sites

from medfl.bundle.federation import read_federation
from medfl.errors import MedflError
from medfl_adopt.adopting import adopt

METHODS = ("fedavg", "fedprox", "fedbn", "ditto", "fedper", "fedskd")
"""Methods that a bundle is trained with; a method whose needs the network does not meet is refused at the start."""

SIZES = (32, 64)
"""Width of images and patches: the first that the network takes."""

COUNTS = {"north": 4, "south": 5}
"""Site to cases in each of its lists."""


@dataclass
class Trial:
    """Result of one bundle.

    Attributes:
        name: Of the bundle.
        objective: What it learns; empty if it was refused.
        refusal: Why it was not adopted, or why nothing could be trained; empty otherwise.
        size: Width of images and patches.
        methods: Method to ``yes``, or why it did not train.
        home: Site to ``yes``, or the faults of its exported bundle.
        seconds: All in all.
    """

    name: str
    objective: str = ""
    refusal: str = ""
    size: int | None = None
    methods: dict[str, str] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def trained(self) -> list[str]:
        """The methods that trained."""
        return [name for name, outcome in self.methods.items() if outcome == "yes"]

    def line(self) -> str:
        """A row of the table."""
        others = [f"{name}: {outcome}" for name, outcome in self.methods.items() if outcome != "yes"]
        cells = [self.name, self.objective or "-", "; ".join(filter(None, (self.refusal, *others))) or "-"]
        cells += [", ".join(self.trained) or "-", str(self.size or "-")]
        home = "yes" if set(self.home.values()) == {"yes"} else ("; ".join(self.home.values()) or "-")
        return "| " + " | ".join([*(cell.replace("|", "/").replace("\n", " ") for cell in cells), home]) + " |"


HEAD = "| bundle | adopted as | refused because | trained with | width | home |\n| --- | --- | --- | --- | --- | --- |"


def try_bundle(
    bundle: Path, folder: Path, options: Mapping[str, Any] | None = None, methods: Sequence[str] = METHODS
) -> Trial:
    """Adopt a bundle, train it for two rounds of two steps with each method, and check the exported bundles.

    Args:
        bundle: A stock bundle.
        folder: For all that is made.
        options: Options of the run; they replace derived options.
        methods: Names of the methods; the first one finds the size.
    """
    start = time.perf_counter()
    trial = Trial(bundle.name)
    try:
        trial.objective = adopt(bundle, folder / "out").objective.kind
        for trial.size in SIZES:
            kind = Kind(folder / "out", trial.size)
            make_sites(kind, folder / f"D{trial.size}", COUNTS)
            derived = kind.smaller() | dict(options or {})
            trial.methods = {methods[0]: _train(folder, trial.size, methods[0], derived)}
            if trial.trained:
                break
        for method in methods[1:] if trial.trained else ():
            trial.methods[method] = _train(folder, trial.size, method, derived)
        for site in COUNTS if trial.trained else ():
            trial.home[site] = _home(bundle, folder / f"run{trial.size}-{methods[0]}" / "sites" / site, derived)
    except (MedflError, NotDerivable) as error:
        trial.refusal = _short(error, bundle)
    trial.seconds = time.perf_counter() - start
    return trial


def _train(folder: Path, size: int, method: str, options: Mapping[str, Any]) -> str:
    places = {
        "bundle_root": str(folder / "out"),
        "dataset_dir": str(folder / f"D{size}"),
        "output_dir": str(folder / f"run{size}-{method}"),
    }
    values = {"rounds": 2, "steps": 2, "settings#batch_size": 2, "device": "cpu", "method": method}
    try:
        result = read_federation(folder / "out", values | places | dict(options)).simulate()
    except MedflError as error:
        return _short(error, folder)
    except Exception as error:  # of the bundle's network, loss or transforms
        return f"{type(error).__name__}: {_short(error, folder)}"
    finite = all(
        tensor.isfinite().all() for models in result.models["north"].values() for tensor in models.tensors.values()
    )
    return "yes" if finite and result.outcome.status == "finished" else "the models are not finite"


def _home(stock: Path, home: Path, options: Mapping[str, Any]) -> str:
    """Return the faults of an exported bundle: its files must be the stock bundle's, and its weights must fit."""
    for path in stock.rglob("*"):
        place = home / path.relative_to(stock)
        if path.is_file() and path.parts[-2] != "models" and place.read_bytes() != path.read_bytes():
            return f"'{path.relative_to(stock)}' is not the stock bundle's"
    parser = ConfigParser()
    (config,) = [path for path in (home / "configs").iterdir() if path.stem == "train"]
    parser.read_config(str(config))
    parser["bundle_root"], parser["device"] = str(home), torch.device("cpu")
    for id_, value in options.items():
        parser[id_] = value
    network = parser.get_parsed_content("network_def" if "network_def" in parser else "network")
    for path in (home / "models").glob("*.pt"):
        network.load_state_dict(torch.load(path, weights_only=True))
    return "yes" if list((home / "models").glob("*.pt")) else "there are no weights"


def _short(error: Exception, place: Path) -> str:
    """The first sentences of a message, without this machine's paths."""
    text = " ".join(str(error).replace(str(place), "BUNDLE").split())
    text = text.removeprefix("the bundle 'BUNDLE' can't be adopted, by ")
    return text if len(text) < 240 else f"{text[:240]}..."


def bundles_of(zoo: Path) -> list[Path]:
    """The bundles in a folder, sorted."""
    return sorted(path.parent.parent for path in zoo.glob("*/configs/metadata.json"))


def main() -> None:
    """Try the bundles of a folder, and print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--only", action="append", help="name of a bundle; may be given several times")
    parser.add_argument("--options", type=Path, help="JSON: bundle to its options")
    words = parser.parse_args()
    options = json.loads(words.options.read_text()) if words.options else {}
    logging.disable(logging.WARNING)
    print(HEAD, flush=True)
    for bundle in bundles_of(words.zoo):
        if not words.only or bundle.name in words.only:
            with tempfile.TemporaryDirectory() as folder:
                print(try_bundle(bundle, Path(folder), options.get(bundle.name)).line(), flush=True)


if __name__ == "__main__":
    main()
