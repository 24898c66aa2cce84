"""What can be looked at before a site connects: its machine, its folders and locks, its images, the way to the server.

Each look returns a sentence; a `Caution` where a run may go wrong, and an error where it will. Sentences name cause and
remedy, and nothing of a patient.
"""

from __future__ import annotations


class Caution(str):
    """What was found, where a run can begin but may go wrong."""
