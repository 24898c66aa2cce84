"""A startup kit from the signed answer and the key that never left."""

from __future__ import annotations

import tempfile
from pathlib import Path

from medfl.errors import SettingsError, StoreError
from medfl.privacy.signatures import read_signer
from medfl.utils.files import private_files
from medfl_flare.keys.commands import call
from medfl_flare.keys.request import KINDS, RESEARCHER, SERVER, fingerprint, local_request
from medfl_flare.provision import Project, prepare_kit


def package(answer: Path, request: Path, root: str, out: Path) -> Path:
    """Make a startup kit, and move the private key out of the request's folder into it.

    Args:
        answer: The file of `medfl_flare.keys.approve`, as it came.
        request: Folder of the request that it answers, with the key.
        root: Fingerprint of the root certificate, as whoever approved told it over another channel.
        out: Folder of the kit; there must be none.

    Returns:
        The kit.

    Raises:
        SettingsError: If the answer is of another root, to another request, of another key, edited, or at its end.
        StoreError: If the kit can't be written.
    """
    if out.exists():
        raise SettingsError("folder_exists", f"'{out}' is there already; name another folder for the kit", path=out)
    about, expected = local_request(request), fingerprint(root)
    name, kind = str(about.get("name")), (about.get("kind"), about.get("cert_type"))
    try:
        with private_files():
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out.parent, prefix=".kit-") as temporary:
                files = {"input": str(answer), "workspace": temporary, "request_dir": str(request)}
                made = call("package", request, **files, expected_fingerprint=expected, force=False)
                kit = Path(made["output_dir"])
                prepare_kit(kit, _around(name, kind), name, researcher=KINDS[RESEARCHER][1])
                read_signer(kit)  # whatever NVFlare checked: the key fits, and the root stands behind it
                kit.rename(out)
            (request / f"{name}.key").unlink()
    except OSError as error:
        raise StoreError("unwritable_folder", f"the kit '{out}' can't be written: {error}", path=out) from error
    return out


def _around(name: str, kind: tuple[object, object]) -> Project:
    """A project as far as a kit's owner matters."""
    if kind == KINDS[SERVER]:
        return Project(name, (), "")
    return Project("", (), name) if kind == KINDS[RESEARCHER] else Project("", (name,), "")
