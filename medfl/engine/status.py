"""Status values of a run, as the server's commits and ``summary.json`` contain them."""

from __future__ import annotations

RUNNING, FINISHED, DIVERGED, INCOMPLETE = "running", "finished", "diverged", "incomplete"
"""Values of the status of a run.

``running``: the run continues. ``finished``: all its rounds are over. ``diverged``: a reply or a model is not finite.
``incomplete``: too few sites replied.
"""
