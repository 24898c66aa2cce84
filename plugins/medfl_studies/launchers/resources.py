"""Resources of a job on a cluster: the section ``resources`` of a study file and of its rows."""

from __future__ import annotations

from pydantic import Field

from medfl.settings import StrictModel


class Resources(StrictModel):
    """Resources of a job. A key without a value means the cluster's own default.

    Attributes:
        cpus: Number of CPU cores.
        memory: Memory of the job with its unit, for example ``16GB``.
        gpus: Number of GPUs.
        minutes: Time limit. A run that reaches it is queued again and continues.
        partition: Partition (queue) of the cluster.
    """

    cpus: int | None = Field(None, ge=1)
    memory: str | None = Field(None, pattern=r"^[1-9][0-9]*(MB|GB|TB)$")
    gpus: int | None = Field(None, ge=0)
    minutes: int | None = Field(None, ge=1)
    partition: str | None = Field(None, pattern=r"^[\w.-]+(,[\w.-]+)*$")

    def merged(self, other: Resources) -> Resources:
        """Return the resources with the values of another section in place of these.

        Args:
            other: Section whose values have priority; its keys without a value change nothing.
        """
        return self.model_copy(update=other.model_dump(exclude_none=True))
