"""``medfl run``: sugar over ``python -m monai.bundle run`` with the federated overlay and stricter options."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from medfl.bundle.files import find_bundle
from medfl.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def command(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(help="The bundle's folder, or a name of `medfl list bundles`.")],
    dataset_dir: Annotated[
        Path | None, typer.Option(help="Folder with one folder per site; needed unless the run is for other machines.")
    ] = None,
) -> None:
    """Run a federation over a bundle.

    Every other option names an id of the bundle's configuration, as in MONAI: --method fedprox --method_args#mu 0.1
    --rounds 20 --optimizer#lr 0.05 --workers 2 --output_dir runs/one
    """
    overrides = parse_overrides(context.args)
    if dataset_dir is None and overrides.get("carrier", "local") == "local":
        raise SettingsError("expected --dataset-dir, the folder with one folder per site (`medfl partition` makes it).")
    run_bundle(bundle, ({} if dataset_dir is None else {"dataset_dir": str(dataset_dir)}) | overrides)


def run_bundle(bundle: str, options: dict[str, Any]) -> None:
    """Run a federation over a bundle.

    Args:
        bundle: The bundle's folder, or a name of `medfl list bundles`.
        options: Id of the bundle's configuration to value.

    Raises:
        SettingsError: If it is no bundle.
    """
    root = find_bundle(bundle)
    configs = [root / "configs" / name for name in ("train.json", "federate.json")]
    for config in configs:
        if not config.is_file():
            raise SettingsError(f"'{root}' is no bundle that medfl can run: expected the file '{config}'.")
    from medfl.workflow import FederatedWorkflow

    logging.getLogger("monai.bundle.workflows").setLevel(logging.WARNING)  # its import sets a level of its own
    workflow = FederatedWorkflow(
        [str(config) for config in configs],
        **({"bundle_root": str(root)} | options),
    )
    workflow.initialize()
    workflow.run()
    workflow.finalize()


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """``--name value`` and ``--name=value`` pairs; values are Python literals where they look like one.

    Raises:
        SettingsError: If a word is not part of such a pair.
    """
    import ast

    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or (not equals and not rest):
            raise SettingsError(f"expected options as '--name value', got '{word}'")
        text = value if equals else rest.pop(0)
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found
