"""NVFlare's commands ``nvflare cert`` and ``nvflare package``, called as functions: what they say, or why they fail."""

from __future__ import annotations

import contextlib
import io
import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from medfl.errors import SettingsError, StoreError, pip_install
from medfl.types import Meta

ANOTHER = (
    "the answer is to another request than the one in that folder; name the folder of the right one, with --request"
)
CLEAR = {
    "KEY_ALREADY_EXISTS": "a request is there already; send that, or name another folder",
    "CERT_ALREADY_EXISTS": "a request is there already; send that, or name another folder",
    "CA_NOT_FOUND": "the root is not whole; name the folder of `medfl federate root`, and have all its files there",
    "CERT_CHAIN_INVALID": "the certificate is of another root than the one beside it; ask for a new answer",
    "CERT_EXPIRED": "the certificate is at its end; have a new request approved",
    "KEY_CERT_MISMATCH": "the private key is not the one of the certificate; name the folder in which the key of this "
    "very request was made",
    "REQUEST_DIR_MISMATCH": ANOTHER,
    "REQUEST_METADATA_MISMATCH": ANOTHER,
    "REQUEST_DIR_NOT_FOUND": "there is no such folder; name the one of `medfl federate request`, with --request",
    "REQUEST_DIR_INCOMPLETE": "the private key is not in that folder; name the one of `medfl federate request`, with "
    "--request. A kit takes the key out of there",
    "INVALID_SIGNED_ZIP": "the answer was cut or edited on its way; ask whoever approved it to send it once more",
    "ROOTCA_FINGERPRINT_MISMATCH": "the answer is of another root than the one whose fingerprint you were told: it is "
    "of another federation, or was exchanged on its way; ask for it once more",
}
"""NVFlare's word for an error to what is wrong and what to do."""


def call(name: str, notes: Path, **arguments: Any) -> Meta:
    """Call one of NVFlare's commands.

    Args:
        name: ``init``, ``request``, ``approve`` (of ``nvflare cert``) or ``package``.
        notes: Folder for NVFlare's own record of requests and approvals (``.nvflare`` in it; it has no key). NVFlare
            would write into the home folder.
        arguments: As its parser would give them.

    Returns:
        What it says of its success.

    Raises:
        SettingsError: If NVFlare is not installed, or refuses; with its reason.
        StoreError: If it can't write.
    """
    command = _commands()[name]
    from nvflare.tool import cli_output

    before, output = cli_output._output_format, io.StringIO()
    cli_output.set_output_format("json")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()), _home(notes):
            command(Namespace(**arguments))
    except SystemExit:
        pass  # an error; what it is stands in the output
    except OSError as error:
        raise StoreError("unwritable_file", f"NVFlare can't write: {error}", command=name) from error
    finally:
        cli_output.set_output_format(before)
    return _read(output.getvalue(), name)


def _commands() -> dict[str, Callable[[Namespace], int]]:
    try:
        from nvflare.tool.cert import cert_commands
        from nvflare.tool.package import package_cli, package_commands  # noqa: F401 - the one needs the other
    except ImportError as error:
        raise SettingsError(
            "missing_package",
            f"NVIDIA FLARE is not installed: {pip_install('flare')} ({error})",
            package="nvflare",
            extra="flare",
        ) from error
    return {
        "init": cert_commands.handle_cert_init,
        "request": cert_commands.handle_cert_request,
        "approve": cert_commands.handle_cert_approve,
        "package": package_commands.handle_package,
    }


def _read(output: str, name: str) -> Meta:
    """The one line of JSON that a command prints last."""
    try:
        result: Meta = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SettingsError(
            "unreadable_output",
            f"NVFlare's command '{name}' said nothing that could be read: {output[-300:]!r}",
            command=name,
        ) from None
    if result.get("status") == "ok":
        data: Meta = result["data"]
        return data
    code, message = str(result.get("error_code")), str(result.get("message")).rstrip(".")
    kind = StoreError if code == "OUTPUT_DIR_NOT_WRITABLE" else SettingsError
    text = f"{CLEAR[code]} (NVFlare: {message})" if code in CLEAR else f"NVFlare refuses: {message}"
    raise kind("refused_by_nvflare", text, command=name, nvflare_code=code, reason=message)


@contextlib.contextmanager
def _home(folder: Path) -> Iterator[None]:
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ["HOME"]
        if before is not None:
            os.environ["HOME"] = before
