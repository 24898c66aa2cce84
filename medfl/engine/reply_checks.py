"""What of a reply is checked against the method's declarations: at the site that sends it, and where it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfl.contract import Method, Reply, Request
from medfl.privacy.policy import policy_of
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import Meta, Tensors
from medfl.utils.metadata import PEER_MESSAGE, AnyMetadata, MetaField, Text, check_metadata, one_of

GUEST = {
    "owner": MetaField("public", Text, after=(PEER_MESSAGE,)),
    "network": MetaField("public", one_of("networks"), after=(PEER_MESSAGE,)),
    "meta": MetaField("public", AnyMetadata, after=(PEER_MESSAGE,)),
}
"""Metadata schema of a model that is sent to another site for cross-site evaluation."""


def check_reply(
    method: Method, task: Task, request: Request, tensors: Tensors, meta: Any, who: str, private: bool = False
) -> None:
    """Refuse a reply that the method's `fold` could not use; the site asks this, and the server again.

    Args:
        method: The method.
        task: The learning problem.
        order: What the reply is to.
        tensors: Of the reply.
        meta: Of the reply, without what the core adds.
        who: Who sent it, for the message: "site 'site-01'".
        private: Whether the run has a privacy setting.

    Raises:
        RefusedError: If it is not what the method declares.
    """
    known = {"classes": len(task.objective.titles)} | request.meta
    check_metadata(meta, method.sends_meta, request.op, known, who, private)
    method.check_tensors(method.task_of(task), request, tensors)


def check_peer_message(schema: Mapping[str, MetaField], task: Task, settings: Settings, meta: Any, who: str) -> None:
    """Refuse the metadata of a peer message that do not fit their schema.

    Args:
        schema: `medfl.contract.Method.sends_meta`, or `GUEST`.
        task: The learning problem.
        settings: The run's.
        meta: Of the parcel.
        who: Who sent it, for the message.

    Raises:
        RefusedError: If it is not.
    """
    known = {
        "classes": len(task.objective.titles),
        "networks": sorted({task.network, *settings.networks_by_site.values()}),
    }
    check_metadata(meta, schema, PEER_MESSAGE, known, who, policy_of(settings).is_private)


def check_sent(method: Method, task: Task, settings: Settings, request: Request, reply: Reply, who: str) -> None:
    """At the site: refuse what the receivers would refuse. What is not declared at all is left to the filters.

    Raises:
        RefusedError: If reply or parcels are not what the method declares.
    """

    def declared(meta: Meta) -> Meta:
        return {key: value for key, value in meta.items() if key in method.sends_meta}

    check_reply(method, task, request, reply.tensors, declared(reply.meta), who, policy_of(settings).is_private)
    for peer_message in reply.peer_messages:
        check_peer_message(method.sends_meta, task, settings, declared(peer_message.meta), who)
