"""A method under secure aggregation: the method itself, but for its exchanges with the sites.

The loop, the journal and both carriers see a method whose rounds have a few steps more, so a run goes on after a kill
as any other does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from medfl.contract import Filter, Method, PayloadKind, Plan, Replies, Reply, Request, Server, Site
from medfl.engine.backend import MethodFactory
from medfl.engine.reply_checks import check_sent
from medfl.engine.secure.ops import MASKED, OPS, PREFIX, check_reply, layout_of, numbers_of
from medfl.engine.secure.register import Register
from medfl.engine.secure.server import ServerEnd
from medfl.engine.secure.site import NoiseFactory, SiteEnd, SiteTools
from medfl.errors import RefusedError
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import Tensors
from medfl.utils.metadata import MetaField

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer


@dataclass(frozen=True)
class Secured:
    """A method whose updates leave as masked numbers, of which only the sum can be read.

    Attributes:
        inner: The method.
        settings: The run's, with `secure_aggregation`.
        tools: At a site, what it has beside what its method sees.
    """

    inner: Method
    settings: Settings
    tools: SiteTools | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the method's own."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def at(
        self, folder: Path, noise: NoiseFactory, signer: Signer | None, sites: Collection[str] | None = None
    ) -> Method:
        """Return the same method with what a site has beside it.

        Args:
            folder: The site's folder of the run.
            noise: See `SiteTools`.
            signer: See `SiteTools`.
            sites: See `SiteTools`.
        """
        return cast(Method, replace(self, tools=SiteTools(Register(folder), noise, signer, sites)))

    @property
    def sends(self) -> dict[str, PayloadKind]:
        """Keys, sealed shares, masked numbers: what tells nothing on its own."""
        return {PREFIX: "statistic"}

    @cached_property
    def sends_meta(self) -> dict[str, MetaField]:
        """The method's public facts; none has to be there, as orders have other names here."""
        return {
            key: replace(field, after=())
            for key, field in self.inner.sends_meta.items()
            if field.visibility == "public"
        }

    def filters(self) -> tuple[Filter, ...]:
        """None: bytes that look like noise can't be made fewer."""
        return ()

    def plan(self, server: Server) -> Plan | None:
        """The next operation."""
        return ServerEnd(server, self.inner).plan()

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Take in the replies of an operation."""
        ServerEnd(server, self.inner).aggregate(replies)

    def execute(self, site: Site, request: Request) -> Reply:
        """Carry an operation out; or an order after which nothing leaves."""
        assert self.tools is not None, "a site has tools"
        if request.op in OPS:
            return SiteEnd(site, request, self.inner, self.tools).execute()
        sent = replace(request, tensors=dict(request.tensors), meta=dict(request.meta))
        reply = self.inner.execute(site, request)
        check_sent(self.inner, site.task, self.settings, sent, reply, f"site '{site.name}'")
        if reply.tensors or reply.peer_messages:
            raise RefusedError(
                "unmasked_reply",
                f"Under secure aggregation a site sends only masked values, and the request '{request.op}' asks for "
                "an unmasked reply: the server is dishonest, or has another setting.",
                op=request.op,
            )
        return replace(reply, meta={key: value for key, value in reply.meta.items() if key in self.sends_meta})

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Refuse replies of another form than that of their operation."""
        if request.op not in OPS:
            if tensors:
                raise RefusedError(
                    "unexpected_tensors",
                    f"expected no tensors in a reply to '{request.op}', got {len(tensors)}",
                    op=request.op,
                    found=len(tensors),
                )
            return
        secure = self.settings.secure_aggregation
        assert secure is not None
        numbers = numbers_of(layout_of(request.tensors, self.inner.sends)) if request.op == MASKED else 0
        check_reply(request, tensors, (numbers + 1) * secure.bits // 8)


def secured(make_method: MethodFactory, settings: Settings) -> MethodFactory:
    """What makes the method of a run: under secure aggregation its wrapper, otherwise the method itself.

    Args:
        make_method: Makes the method.
        settings: The run's.
    """
    if settings.secure_aggregation is None:
        return make_method
    return lambda: cast(Method, Secured(make_method(), settings))
