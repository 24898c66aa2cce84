"""Checks before a site connects: its machine, its folders and locks, its images, and the connection to the server.

Each check returns a sentence. It returns a `Caution` if a run may fail, and raises an error if a run will fail.
Sentences contain cause and remedy, and nothing about a patient.
"""

from __future__ import annotations


class Caution(str):
    """Finding of a check after which a run can begin but may fail later."""
