"""The policy of a run without differential privacy."""

from __future__ import annotations

from typing import ClassVar

from medfl.contract import PayloadKind
from medfl.privacy.policy import PrivacyPolicy
from medfl.utils.metadata import Visibility


class NoPrivacy(PrivacyPolicy):
    """No promise: nothing is clipped or noised, and all that the method declares may leave a site."""

    is_private: ClassVar[bool] = False
    discloses_integers: ClassVar[bool] = True
    discloses_training_scores: ClassVar[bool] = True

    def discloses(self, kind: PayloadKind) -> bool:
        """Whether tensors of a kind may leave a site: always."""
        return True

    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Whether metadata may leave a site: always."""
        return True

    def discloses_peer_messages(self) -> bool:
        """Whether a site may send messages to other sites: always."""
        return True
