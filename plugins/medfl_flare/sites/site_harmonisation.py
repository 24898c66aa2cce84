"""A site's part in the harmonisation of features: it sends its sums, and maps its features by the server's moments.

The features themselves never leave the site. A run on one machine uses the same functions
(`medfl.engine.runs.features.feature_harmonisation`).
"""

from __future__ import annotations

import logging

from medfl.data.harmonisation.combat import FeatureMap
from medfl.engine.runs.features.feature_harmonisation import harmonise_site, sum_features
from medfl.engine.site import SiteRunner
from medfl.types import Meta, Tensors
from medfl_flare.backend.feature_messages import read_moments, sums_to_reply
from medfl_flare.backend.messages import Message

logger = logging.getLogger(__name__)


class SiteHarmonisation:
    """Harmonisation of the features of one site in a run.

    Args:
        host: Runner of the site, whose data contain features.

    Attributes:
        feature_map: Map of the site; None until the server has sent the moments.
    """

    def __init__(self, host: SiteRunner) -> None:
        self._host, self._data = host, host.data
        self.feature_map: FeatureMap | None = None

    def send_sums(self, message: Message) -> tuple[Tensors, Meta]:
        """Return the sums over the features of this site's training images.

        Args:
            message: Message of the server, of the kind ``feature_sums``.

        Returns:
            For each feature the sum and the sum of squared deviations; metadata with the number of images, ``count``.
        """
        sums = sum_features(self._data)
        logger.info(
            "The number of training images and, for each of %d features of the frozen encoder, the sum and the sum of "
            "squared deviations leave this site.",
            len(sums.total),
        )
        return sums_to_reply(sums)

    def harmonise(self, message: Message) -> tuple[Tensors, Meta]:
        """Compute this site's map, and let the site train and score on harmonised features.

        A repeated message changes nothing.

        Args:
            message: Message of the server, of the kind ``feature_moments``.

        Returns:
            No tensors and no metadata.

        Raises:
            RefusedError: If the moments are invalid.
            DataError: If the map can't be computed.
        """
        pooled = read_moments(message.tensors, len(sum_features(self._data).total), "the server")
        self.feature_map = harmonise_site(self._host, self._data, pooled)
        return {}, {}
