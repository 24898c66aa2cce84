"""Check replies and peer messages against the method's declarations, at the sender and again at the receiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfl.contract import Method, Reply, Request
from medfl.privacy.policy import policy_of
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import Meta, Tensors
from medfl.utils.metadata import PEER_MESSAGE, AnyMetadata, MetaField, Text, check_metadata, one_of

EVALUATED_MODEL_SCHEMA = {
    "owner": MetaField("public", Text, after=(PEER_MESSAGE,)),
    "network": MetaField("public", one_of("networks"), after=(PEER_MESSAGE,)),
    "meta": MetaField("public", AnyMetadata, after=(PEER_MESSAGE,)),
}
"""Metadata schema of a model that is sent to another site for cross-site evaluation."""


def check_reply(
    method: Method, task: Task, request: Request, tensors: Tensors, meta: Any, who: str, private: bool = False
) -> None:
    """Check the metadata and tensors of a reply against the method's declarations.

    The site calls this before it sends a reply, and the server again before `Method.aggregate`.

    Args:
        method: The method.
        task: The learning problem.
        request: Request that the reply answers.
        tensors: Tensors of the reply.
        meta: Metadata of the reply, without the keys that medfl itself adds for quantisation and filters.
        who: Sender for messages, as in "site 'site-01'".
        private: Whether the run has a privacy setting.

    Raises:
        RefusedError: If the reply does not fit the declarations.
    """
    known = {"classes": len(task.objective.titles)} | request.meta
    check_metadata(meta, method.sends_meta, request.op, known, who, private)
    method.check_tensors(method.task_of(task), request, tensors)


def check_peer_message(schema: Mapping[str, MetaField], task: Task, settings: Settings, meta: Any, who: str) -> None:
    """Check the metadata of a peer message against their schema.

    Args:
        schema: Schema of the metadata: `medfl.contract.Method.sends_meta`, or `EVALUATED_MODEL_SCHEMA`.
        task: The learning problem.
        settings: Settings of the run.
        meta: Metadata of the message.
        who: Sender for messages, as in "site 'site-01'".

    Raises:
        RefusedError: If the metadata do not fit the schema.
    """
    known = {
        "classes": len(task.objective.titles),
        "networks": sorted({task.network, *settings.networks_by_site.values()}),
    }
    check_metadata(meta, schema, PEER_MESSAGE, known, who, policy_of(settings).is_private)


def check_before_sending(
    method: Method, task: Task, settings: Settings, request: Request, reply: Reply, who: str
) -> None:
    """Check a site's reply and its peer messages before they leave, as the receivers will check them.

    Metadata keys that the method does not declare are ignored here; `medfl.engine.filters` refuses them.

    Args:
        method: The method.
        task: The learning problem.
        settings: Settings of the run.
        request: Request that the reply answers.
        reply: The reply, with its peer messages.
        who: Sender for messages, as in "site 'site-01'".

    Raises:
        RefusedError: If the reply or a peer message does not fit the declarations.
    """

    def declared(meta: Meta) -> Meta:
        return {key: value for key, value in meta.items() if key in method.sends_meta}

    check_reply(method, task, request, reply.tensors, declared(reply.meta), who, policy_of(settings).is_private)
    for peer_message in reply.peer_messages:
        check_peer_message(method.sends_meta, task, settings, declared(peer_message.meta), who)
