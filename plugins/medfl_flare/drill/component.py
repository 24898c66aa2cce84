"""Drills as a part of NVFlare's server: messages of sites go to `Host`."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from medfl_flare.drill.host import Host
from medfl_flare.drill.words import BLOB, KEY, KIND, TOPIC


class Drills(FLComponent):
    """A component of the server's own process; ``local/resources.json`` names it."""

    def __init__(self) -> None:
        super().__init__()
        self._host: Host | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Called by NVFlare."""
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            self._host = Host(Path(engine.get_workspace().get_site_config_dir()).absolute() / "medfl-site.toml")
            engine.register_aux_message_handler(TOPIC, self._on_message)
        elif event_type == EventType.SYSTEM_END and self._host is not None:
            self._host.close()

    def _on_message(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        key, kind, blob = request.get(KEY), request.get(KIND), request.get(BLOB)
        if self._host is None or not (isinstance(key, str) and isinstance(kind, str) and isinstance(blob, bytes)):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[KIND], reply[BLOB] = self._host.answer(key, kind, blob)
        return reply
