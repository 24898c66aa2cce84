"""How a commit leaves the run."""

from __future__ import annotations

RUNNING, FINISHED, DIVERGED, INCOMPLETE = "running", "finished", "diverged", "incomplete"
"""It goes on; all its rounds are over; a reply or a model is not finite; too few sites answered."""
