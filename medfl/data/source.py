"""Where the cases of a federation's sites come from: the one place that knows how a site's folder is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from medfl.data.cohort import Cohort, load_cohort
from medfl.data.label_map import LabelMap
from medfl.data.leaks import check_leaks
from medfl.data.sites import SiteData, load_global, load_site
from medfl.objectives import Objective
from medfl.settings import Execution


class Source(Protocol):
    """Reads the folders of sites: lists over one array of images (`Arrays`), or whatever a stock bundle reads.

    Attributes:
        weights: Where a bundle that somebody else wrote has its weights, relative to it: a site takes it home as it is,
            with its own there. None for a bundle of medfl, into whose configurations the run's values are written.
    """

    @property
    def weights(self) -> Sequence[Path] | None:
        """As said above."""
        ...

    def cohort(
        self,
        folder: Path,
        execution: Execution,
        sites: Sequence[str] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
    ) -> Cohort:
        """All data of a run; arguments and errors as in `medfl.data.cohort.load_cohort`."""
        ...

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """The data of one site.

        Args:
            folder: The site's.
            execution: How this machine loads.

        Raises:
            DataError: If anything is missing or contradicts the task.
        """
        ...

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """The test set that the server holds beside the sites; None if there is none."""
        ...

    def check_leaks(
        self,
        folder: Path,
        names: Sequence[str],
        public: str | None = None,
        allow: Sequence[str] = (),
        open_test: bool = True,
    ) -> list[str]:
        """Refuse patients and images in two places; arguments and errors as in `medfl.data.leaks.check_leaks`."""
        ...


@dataclass(frozen=True)
class Arrays:
    """Sites whose lists name rows of one array, as ``medfl prep`` and ``medfl partition`` write them.

    Attributes:
        objective: What is learned.
        mean: Subtracted from images in [0, 1]; one number, or one for each channel.
        std: Divides then; one number, or one for each channel, > 0.
    """

    objective: Objective
    mean: Sequence[float] = (0.5,)
    std: Sequence[float] = (0.5,)
    weights: None = None

    def cohort(
        self,
        folder: Path,
        execution: Execution,
        sites: Sequence[str] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
    ) -> Cohort:
        """As `Source.cohort`."""
        scale = (self.objective, self.mean, self.std)
        return load_cohort(folder, *scale, sites, public, label_map, execution.open_test)

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """As `Source.site`."""
        return load_site(folder, self.objective, self.mean, self.std, execution.open_test)

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """As `Source.shared_test`."""
        return load_global(folder, self.objective, self.mean, self.std) if execution.open_test else None

    def check_leaks(
        self,
        folder: Path,
        names: Sequence[str],
        public: str | None = None,
        allow: Sequence[str] = (),
        open_test: bool = True,
    ) -> list[str]:
        """As `Source.check_leaks`."""
        return check_leaks(folder, names, public, allow, open_test)
