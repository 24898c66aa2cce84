"""A site's line to the server in a drill, by NVFlare's cells: the kit's certificate opens it, and no site joins by it.

The server takes such a visitor's messages and does not count it among its clients.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medfl.errors import MedflError, SettingsError, pip_install
from medfl_flare.connection import quiet
from medfl_flare.drill import words
from medfl_flare.drill.at_site import Ask
from medfl_flare.kit import processes

logger = logging.getLogger(__name__)

LOGIN = 20.0
"""Seconds to wait for the server when the line is opened."""

PATIENCE = 300.0
"""Seconds for a message and its answer: a large one may take long over a slow line."""


@contextlib.contextmanager
def open_line(kit: Path, site: str) -> Iterator[Ask]:
    """A line to the server of a site's kit, for the length of the block.

    Args:
        kit: The site's startup kit.
        site: Its name, as in its certificate.

    Raises:
        SettingsError: If NVFlare is not installed, or the site runs here: the server would take one for the other.
        MedflError: If the server can't be reached, or refuses the kit.
    """
    if running := processes(kit):
        raise SettingsError(
            "kit_already_running",
            f"the site runs (process {running[0]}), and the server knows a site by its name; drill before it starts, "
            f"or stop it for as long (`medfl federate stop {kit}`)",
            path=kit,
            process=running[0],
        )
    with quiet():
        cell = _cell(kit, site)
    try:
        with quiet():
            _log_in(cell, kit, site)
        yield _asking(cell, site)
    finally:
        with contextlib.suppress(Exception), quiet():
            cell.stop()


def _server(kit: Path) -> Any:
    try:
        return json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))["servers"][0]
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError("invalid_kit", f"'{kit}' is no kit of a site ({error!r})", path=kit) from None


def _cell(kit: Path, site: str) -> Any:
    try:
        from nvflare.apis.utils.decomposers import flare_decomposers
        from nvflare.fuel.f3.cellnet.cell import Cell
        from nvflare.fuel.f3.cellnet.fqcn import FQCN
        from nvflare.fuel.f3.cellnet.net_agent import NetAgent
        from nvflare.fuel.f3.drivers.driver_params import DriverParams
    except ImportError as error:
        raise SettingsError(
            "missing_package",
            f"NVIDIA FLARE is not installed: {pip_install('flare')} ({error})",
            package="nvflare",
            extra="flare",
        ) from error
    server, startup = _server(kit), kit.resolve() / "startup"
    credentials = {
        DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
        DriverParams.CLIENT_CERT.value: str(startup / "client.crt"),
        DriverParams.CLIENT_KEY.value: str(startup / "client.key"),
    }
    flare_decomposers.register()
    cell = Cell(
        fqcn=f"{site}.drill_{uuid.uuid4().hex[:8]}",
        root_url=f"{server['service'].get('scheme', 'http')}://{server['service']['target']}",
        secure=True,
        credentials=credentials,
        create_internal_listener=False,
        parent_url=None,
        auth_identity_map={FQCN.ROOT_SERVER: server["identity"]},
    )
    NetAgent(cell)
    cell.start()
    return cell


def _log_in(cell: Any, kit: Path, site: str) -> None:
    """Prove who is there; the server gives a token for further messages."""
    from nvflare.apis.fl_constant import ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal
    from nvflare.fuel.sec.authn import set_add_auth_headers_filters
    from nvflare.private.fed.authenticator import Authenticator

    server, startup = _server(kit), kit.resolve() / "startup"
    authenticator = Authenticator(
        cell=cell,
        project_name=server["name"],
        client_name=site,
        client_type="drill",
        expected_sp_identity=server["identity"],
        secure_mode=True,
        root_cert_file=str(startup / "rootCA.pem"),
        private_key_file=str(startup / "client.key"),
        cert_file=str(startup / "client.crt"),
        msg_timeout=LOGIN / 4,
        retry_interval=1.0,
        timeout=LOGIN,
    )
    context = FLContext()
    context.set_public_props({ReservedKey.IDENTITY_NAME: site})
    try:
        token, signature, session, _ = authenticator.authenticate(context, Signal())
    except Exception as error:
        raise MedflError(
            "login_failed",
            f"the server at {server['service']['target']} does not let the site in ({error}). `medfl site check --kit "
            "KIT` says whether it can be reached, and whether the kit is of its generation",
            server=server["service"]["target"],
            site=site,
        ) from error
    set_add_auth_headers_filters(cell, site, token, signature, session)


def _asking(cell: Any, site: str) -> Ask:
    from nvflare.apis.fl_constant import ReservedKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
    from nvflare.fuel.f3.cellnet.fqcn import FQCN
    from nvflare.private.defs import new_cell_message

    key, context = uuid.uuid4().hex, FLContext()
    context.set_public_props({ReservedKey.IDENTITY_NAME: site})

    def ask(kind: str, blob: bytes) -> tuple[str, bytes]:
        request = Shareable({words.KEY: key, words.KIND: kind, words.BLOB: blob})
        request.set_peer_props(context.get_all_public_props())
        with quiet():
            answer = cell.send_request(
                channel=CellChannel.AUX_COMMUNICATION,
                topic=words.TOPIC,
                target=FQCN.ROOT_SERVER,
                request=new_cell_message({}, request),
                timeout=PATIENCE,
            )
        status, reply = answer.get_header(MessageHeaderKey.RETURN_CODE), answer.payload
        if not isinstance(reply, Shareable):
            raise MedflError(
                "connection_lost",
                f"the line to the server broke ({status}); look at its console.log and drill again",
                status=str(status),
            )
        if reply.get_return_code() == ReturnCode.TOPIC_UNKNOWN:
            raise MedflError(
                "drills_not_supported",
                "the server knows no drills: its kit was made by an earlier medfl. Its administrator adds the "
                "component 'medfl_drills' to local/resources.json (docs/deploy.md) and starts it again",
            )
        kind, blob = reply.get(words.KIND), reply.get(words.BLOB)
        if not (isinstance(kind, str) and isinstance(blob, bytes)):
            raise MedflError(
                "invalid_message",
                f"the server did not understand ({reply.get_return_code()}); both need the same version",
                status=str(reply.get_return_code()),
            )
        return kind, blob

    return ask
