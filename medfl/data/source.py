"""Interface through which a run loads the data of its sites, and its implementation for arrays of images."""

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


class DataSource(Protocol):
    """Interface for loading the data of a run from site folders.

    `ArraySource` implements it for data lists that address rows of one image array. `medfl_adopt` implements it for
    bundles that were not written for medfl and read their own files.

    Attributes:
        weights: Weight files of a bundle that was not written for medfl, relative to the bundle. A site exports such a
            bundle unchanged, with its trained weights in these files. None for a bundle of medfl: the export writes the
            run's values into its configuration files.
    """

    @property
    def weights(self) -> Sequence[Path] | None:
        """Weight files of a bundle that was not written for medfl, relative to the bundle; None for medfl bundles."""
        ...

    def cohort(
        self,
        folder: Path,
        execution: Execution,
        sites: Sequence[str] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
    ) -> Cohort:
        """Load all data of a run: the sites, the server's test set and public data.

        Args:
            folder: Folder with one folder for each site.
            execution: Execution settings of this machine; ``open_test`` says whether test images are loaded.
            sites: Names of the sites to load; None loads all.
            public: Folder of the public data, relative to `folder`; None if there are no public data.
            label_map: Maps each class name of the public data to a class name of the sites, or to None to leave its
                images out. Without it, classes with equal names are matched.

        Raises:
            DataError: If data are missing, do not fit the task, or differ in their form.
            SettingsError: If `label_map` is not valid.
        """
        ...

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """Load the data of one site.

        Args:
            folder: Folder of the site.
            execution: Execution settings of this machine; ``open_test`` says whether test images are loaded.

        Raises:
            DataError: If data are missing or do not fit the task.
        """
        ...

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """Load the server's test set; return None if there is none, or if test images may not be loaded.

        Args:
            folder: Folder with one folder for each site.
            execution: Execution settings of this machine; ``open_test`` says whether test images are loaded.
        """
        ...

    def check_leaks(
        self,
        folder: Path,
        names: Sequence[str],
        public: str | None = None,
        allow: Sequence[str] = (),
        open_test: bool = True,
    ) -> list[str]:
        """Raise if two places share patients or images. A place is a split of a site, of the server or of public data.

        Args:
            folder: Folder with one folder for each site.
            names: Names of the sites.
            public: Folder name of the public data; None if there are none.
            allow: Kinds of leaks that are allowed: ``subjects``, ``pixels``.
            open_test: Whether test images are compared too.

        Returns:
            A sentence for each allowed leak, for the report.

        Raises:
            DataError: If there is a leak that is not allowed.
        """
        ...


@dataclass(frozen=True)
class ArraySource:
    """Source for data lists that address rows of one image array, as ``medfl prep`` and ``medfl partition`` write them.

    Attributes:
        objective: Training objective of the task.
        mean: Mean to subtract from images in [0, 1]; one number, or one for each channel.
        std: Standard deviation to divide by after that; one number, or one for each channel, > 0.
        weights: Always None, because bundles for such data lists are written for medfl.
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
        """Load all data of a run: the sites, the server's test set and public data. See `DataSource.cohort`."""
        return load_cohort(
            folder,
            self.objective,
            self.mean,
            self.std,
            sites=sites,
            public=public,
            label_map=label_map,
            open_test=execution.open_test,
        )

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """Load the data of one site from its folder. See `DataSource.site`."""
        return load_site(folder, self.objective, self.mean, self.std, execution.open_test)

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """Load the server's test set; return None if there is none. See `DataSource.shared_test`."""
        return load_global(folder, self.objective, self.mean, self.std) if execution.open_test else None

    def check_leaks(
        self,
        folder: Path,
        names: Sequence[str],
        public: str | None = None,
        allow: Sequence[str] = (),
        open_test: bool = True,
    ) -> list[str]:
        """Raise if two splits of the data share patients or images. See `DataSource.check_leaks`."""
        return check_leaks(folder, names, public, allow, open_test)
