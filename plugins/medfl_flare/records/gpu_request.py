"""GPUs that a run requests of every site, in NVFlare's words for the job's metadata.

The researcher states the need. The resource manager in a site's own ``local/resources.json`` grants it, or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from medfl.records.record import Record
from medfl.types import Meta

COUNT_KEY, MEMORY_KEY = "num_of_gpus", "mem_per_gpu_in_GiB"
"""Keys of NVFlare's resource specification, which `GPUResourceManager` and the launchers of Slurm and Docker read."""


class GpuRequest(Record):
    """GPUs that each site must grant to a run.

    Attributes:
        count: Number of GPUs, >= 1.
        memory_gib: Memory of each GPU that must be free, in GiB of 2^30 bytes, >= 0.
    """

    count: Annotated[int, Field(ge=1, le=64)]
    memory_gib: Annotated[float, Field(ge=0, le=1024)] = 0.0

    def __str__(self) -> str:
        gpus = f"{self.count} GPU{'s' if self.count > 1 else ''}"
        return gpus + (f" with {self.memory_gib:g} GiB each" if self.memory_gib else "")

    def resource_spec(self, sites: Sequence[str]) -> Meta:
        """Return the value of ``resource_spec`` in a job's metadata, which maps each site to its resources."""
        return {site: {COUNT_KEY: self.count, MEMORY_KEY: self.memory_gib} for site in sites}


def requested_gpus(job_meta: Any, site: str | None = None) -> GpuRequest | None:
    """Return the request in a job's metadata, or None if it contains no valid one.

    Args:
        job_meta: The job's metadata, as NVFlare reports it.
        site: Name of the site; None stands for any site, as all sites get the same request.
    """
    spec = job_meta.get("resource_spec") if isinstance(job_meta, dict) else None
    resources = (spec.get(site) if site else next(iter(spec.values()), None)) if isinstance(spec, dict) else None
    if not isinstance(resources, dict):
        return None
    try:
        return GpuRequest(count=resources.get(COUNT_KEY), memory_gib=resources.get(MEMORY_KEY, 0.0))
    except ValidationError:
        return None
