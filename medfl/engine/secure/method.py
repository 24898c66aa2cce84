"""Wrapper of a method for secure aggregation, which replaces the method's messages between the server and the sites.

For the server loop, the journal and the backends, the wrapper is a method whose rounds have a few more steps. So a run
continues after a kill like any other run. An operation is one of these steps: the requests of the server and the
replies of the sites.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from medfl.contract import Filter, Method, PayloadKind, Plan, Replies, Reply, Request, Server, Site
from medfl.engine.backend import MethodFactory
from medfl.engine.reply_checks import check_before_sending
from medfl.engine.secure.ops import MASKED, OPS, PREFIX, check_reply, layout_of, numbers_of
from medfl.engine.secure.register import SecretUseRegister
from medfl.engine.secure.server import ServerOperation
from medfl.engine.secure.site import NoiseFactory, SiteOperation, SiteTools
from medfl.errors import RefusedError
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import Tensors
from medfl.utils.metadata import MetaField

if TYPE_CHECKING:
    from medfl.privacy.signatures import Signer


@dataclass(frozen=True)
class SecureMethod:
    """Wrapper of a method whose updates leave the sites as masked numbers. The server can read only their sum.

    Attributes:
        inner: The wrapped method.
        settings: Settings of the run, with ``secure_aggregation``.
        tools: Resources of a site that the wrapped method does not see; None at the server.
    """

    inner: Method
    settings: Settings
    tools: SiteTools | None = None

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the wrapped method."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def at(
        self, folder: Path, noise: NoiseFactory, signer: Signer | None, sites: Collection[str] | None = None
    ) -> Method:
        """Return a copy of the wrapper with the resources of a site (`SiteTools`).

        Args:
            folder: Folder of the site in the run.
            noise: Function that records a release in the site's privacy account and returns the stream of its noise.
            signer: Signer of the site, or None on one machine.
            sites: Names of the run's sites; None accepts every name.
        """
        return cast(Method, replace(self, tools=SiteTools(SecretUseRegister(folder), noise, signer, sites)))

    @property
    def sends(self) -> dict[str, PayloadKind]:
        """Payload kind of the tensors that a site sends, by the prefix of their names.

        The tensors are keys, encrypted shares and masked numbers, which reveal nothing about the site's data.
        """
        return {PREFIX: "statistic"}

    @cached_property
    def sends_meta(self) -> dict[str, MetaField]:
        """Schema of the metadata that a site sends: the public metadata of the wrapped method, by key.

        All fields are optional, as the requests of the operations have other ops than the method's own request.
        """
        return {
            key: replace(field, after=())
            for key, field in self.inner.sends_meta.items()
            if field.visibility == "public"
        }

    def filters(self) -> tuple[Filter, ...]:
        """Return the filters that encode a reply: none, because masked numbers can't be compressed."""
        return ()

    def plan(self, server: Server) -> Plan | None:
        """Return the plan of the next operation: the requests of a step and their receivers.

        Args:
            server: State of the server, which contains the progress of the aggregation.

        Returns:
            None if the wrapped method has no further step.
        """
        return ServerOperation(server, self.inner).plan()

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Store the replies of an operation in the server's state; after the last operation, aggregate the mean update.

        Args:
            server: State of the server.
            replies: Replies of the operation.
        """
        ServerOperation(server, self.inner).aggregate(replies)

    def execute(self, site: Site, request: Request) -> Reply:
        """Execute the site's part of an operation, or a request of the wrapped method whose reply has no tensors.

        Args:
            site: The site.
            request: Request of the server.

        Raises:
            RefusedError: If the reply would contain tensors or peer messages without a mask.
        """
        assert self.tools is not None, "a site has tools"
        if request.op in OPS:
            return SiteOperation(site, request, self.inner, self.tools).execute()
        sent = replace(request, tensors=dict(request.tensors), meta=dict(request.meta))
        reply = self.inner.execute(site, request)
        check_before_sending(self.inner, site.task, self.settings, sent, reply, f"site '{site.name}'")
        if reply.tensors or reply.peer_messages:
            raise RefusedError(
                "unmasked_reply",
                f"Under secure aggregation a site sends only masked values, and the request '{request.op}' asks for "
                "an unmasked reply: the server is dishonest, or has another setting.",
                op=request.op,
            )
        return replace(reply, meta={key: value for key, value in reply.meta.items() if key in self.sends_meta})

    def check_tensors(self, task: Task, request: Request, tensors: Tensors) -> None:
        """Check that a reply has the names, shapes and dtypes of tensors that belong to the request's operation.

        Args:
            task: The learning problem.
            request: Request that the reply answers.
            tensors: Tensors of the reply.

        Raises:
            RefusedError: If a name, shape or dtype differs.
        """
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


def wrap_method(make_method: MethodFactory, settings: Settings) -> MethodFactory:
    """Return a factory of the method that the backend runs: its wrapper for secure aggregation, or the method itself.

    Args:
        make_method: Factory of the method.
        settings: Settings of the run.
    """
    if settings.secure_aggregation is None:
        return make_method
    return lambda: cast(Method, SecureMethod(make_method(), settings))
