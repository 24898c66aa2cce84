"""How NVFlare sends large messages: so that a slow line carries each of them once.

By itself NVFlare has 16 MB on their way and sends all of that again after 5 s without an acknowledgement, which a line
below 25 Mbit/s can't give: a model took five times as long as the line needs.
"""

from __future__ import annotations

from medfl.types import Meta

FILE = "comm_config.json"
"""NVFlare's name for them in the folder ``local`` of a kit."""

SETTINGS: Meta = {
    "streaming_window_size": 4 * 2**20,
    "streaming_ack_interval": 2**20,
    "streaming_retry_wait": 30.0,
    "streaming_retry_timeout": 300.0,
}
"""Bytes that may be on their way, and seconds without an acknowledgement until something is sent again or given up.
That nothing at all is acknowledged for 60 s stays NVFlare's sign of a line that was cut: the message is sent anew.
"""
