"""NVFlare's commands ``nvflare cert`` and ``nvflare package``, called as functions with typed results and errors."""

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

_OTHER_REQUEST_ADVICE = (
    "the answer is for another request than the one in that folder; name the folder of the right request with --request"
)
ERROR_ADVICE = {
    "KEY_ALREADY_EXISTS": "the folder already contains a request; send that, or name another folder",
    "CERT_ALREADY_EXISTS": "the folder already contains a request; send that, or name another folder",
    "CA_NOT_FOUND": "the root is incomplete; name the folder of `medfl federate root` with all its files",
    "CERT_CHAIN_INVALID": "the certificate is signed by another root than the one in the answer; ask for a new answer",
    "CERT_EXPIRED": "the certificate has expired; have a new request approved",
    "KEY_CERT_MISMATCH": "the private key does not belong to the certificate; name the folder in which the key of this "
    "request was made",
    "REQUEST_DIR_MISMATCH": _OTHER_REQUEST_ADVICE,
    "REQUEST_METADATA_MISMATCH": _OTHER_REQUEST_ADVICE,
    "REQUEST_DIR_NOT_FOUND": "the folder does not exist; name the folder of `medfl federate request` with --request",
    "REQUEST_DIR_INCOMPLETE": "the private key is not in that folder; name the folder of `medfl federate request` with "
    "--request. Making a kit moves the key out of that folder",
    "INVALID_SIGNED_ZIP": "the answer was truncated or edited in transit; ask the coordinator to send it again",
    "ROOTCA_FINGERPRINT_MISMATCH": "the answer has another root than the fingerprint that you gave: it is of another "
    "federation, or someone replaced it in transit; ask the coordinator to send it again",
}
"""Maps NVFlare's error code to a sentence with the cause and what to do."""


def call_nvflare(name: str, notes: Path, **arguments: Any) -> Meta:
    """Call one of NVFlare's commands.

    Args:
        name: ``init``, ``request``, ``approve`` (of ``nvflare cert``) or ``package``.
        notes: Folder for NVFlare's own record of requests and approvals, in a subfolder ``.nvflare`` without keys. By
            default NVFlare would write it to the home folder.
        arguments: Arguments as NVFlare's parser would pass them.

    Returns:
        The data that the command reports on success.

    Raises:
        SettingsError: If NVFlare is not installed, or if it refuses; with its reason.
        StoreError: If NVFlare can't write its files.
    """
    command = _commands()[name]
    from nvflare.tool import cli_output

    before, output = cli_output._output_format, io.StringIO()
    cli_output.set_output_format("json")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()), _home_folder(notes):
            command(Namespace(**arguments))
    except SystemExit:
        pass  # an error; the output contains its code
    except OSError as error:
        raise StoreError("unwritable_file", f"NVFlare can't write: {error}", command=name) from error
    finally:
        cli_output.set_output_format(before)
    return _read_result(output.getvalue(), name)


def _commands() -> dict[str, Callable[[Namespace], int]]:
    """Import NVFlare and return its commands by name."""
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


def _read_result(output: str, name: str) -> Meta:
    """Return the data in the last line of a command's output, or raise its error."""
    try:
        result: Meta = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SettingsError(
            "unreadable_output",
            f"NVFlare's command '{name}' printed no valid JSON: {output[-300:]!r}",
            command=name,
        ) from None
    if result.get("status") == "ok":
        data: Meta = result["data"]
        return data
    code, message = str(result.get("error_code")), str(result.get("message")).rstrip(".")
    kind = StoreError if code == "OUTPUT_DIR_NOT_WRITABLE" else SettingsError
    text = f"{ERROR_ADVICE[code]} (NVFlare: {message})" if code in ERROR_ADVICE else f"NVFlare refuses: {message}"
    raise kind("refused_by_nvflare", text, command=name, nvflare_code=code, reason=message)


@contextlib.contextmanager
def _home_folder(folder: Path) -> Iterator[None]:
    """Context manager that sets the environment variable HOME to a folder."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ["HOME"]
        if before is not None:
            os.environ["HOME"] = before
