"""Made-up brain maps of four regions of the world, whose networks are of unlike widths and teach each other.

Each region has 16 subjects to train on and 84 to test on, of two scanning centres. In the first half of the rounds the
models travel and learn wherever they are; in the second each site's model learns beside a copy of another's (FedSKD
with ``start_fraction`` 0.5).

It is here to show volumes, unlike networks and every model at every site, not a gain: the maps are easy, and where
sites alone are good there is nothing to gain. On the seeds 0 to 2 the mean AUC goes from .891, .985 and .973 to .955,
.977 and .977: a gain of +.064 [.037, .095], -.008 [-.024, .004] and +.005 [-.013, .023]. The page says so. It says
nothing about data of yours.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medfl.data.ingest.prepare import prepare
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.plugins import load_plugins
from medfl_report.sections.holdings import draw_partition
from medfl_studies.demo.runs import Shown, report, run

METHODS = {
    "local": (),
    "fedskd": ("--method_args", "{'preset': 'paper_asd', 'p2p_scale': 1, 'start_fraction': 0.5}"),
}
NOTE = (
    "The brain maps are made up. They are here to show that volumes work, that sites of unlike networks can learn from "
    "each other (fedskd: models travel and teach, no weights are averaged), and what every model is worth at every "
    "site. They do not show that a site gains by it: that depends on the seed and on the last bits of a processor. The "
    "tables of this page say what this run shows."
)
"""What the page says at its top."""

NETWORKS = {"US-East": "resnet10_minus2", "US-Middle": "resnet10_minus4", "US-West": "resnet10_minus6"}
SIZE, TEST_SHARE = 16, 0.84


def brains(out: Path, rounds: int, per_centre: int, seed: int, console: Console) -> Shown:
    """From a made-up release of ABIDE, as NIfTI maps with a phenotypic file and an atlas, to a report.

    Args:
        out: Where everything goes.
        rounds: Rounds of each run.
        per_centre: Subjects of each of eight scanning centres.
        seed: Of data and runs.
        console: Shows what is done.

    Returns:
        The report, and who gains.
    """
    data = _prepare(out, per_centre, seed, console)
    options = [
        *(
            "--rounds",
            str(rounds),
            "--settings#epochs",
            "2",
            "--batch_size",
            "8",
            "--width",
            "12",
            "--settings#networks_by_site",
            str(NETWORKS),
        ),
        *("--settings#evaluate_every", "2", "--settings#cross_site_evaluation", "True"),
        *("--optimizer#lr", "0.001", "--seed", str(seed)),
    ]
    alone, together = (
        run("fmri_asd_classification", method, data, out / "runs" / method, [*options, *own], console)
        for method, own in METHODS.items()
    )
    return report(alone, together, out / "report.html", ("auc", "balanced_accuracy"), NOTE)


def _prepare(out: Path, per_centre: int, seed: int, console: Console) -> Path:
    """Release, pooled data set and partition, each made unless it is there."""
    release, pooled, data = out / "release", out / "pooled", out / "data"
    if not data.exists():
        registry = load_plugins()
        registry.synthetic("abide")(release, per_centre, seed=seed)
        console.print(f"\nMade-up brain maps, as ABIDE is published: {release}")
        atlas = next(release.glob("*atlas.nii.gz"))
        console.print(f"\nmedfl prep abide --source {release} --atlas {atlas} --size {SIZE} --out {pooled}")
        prepare(registry.dataset("abide")(source=release, size=SIZE, atlas=atlas), pooled, force=True)
        console.print(
            f"medfl partition {pooled} --out {data} --scheme by_site --column site --test-fraction {TEST_SHARE} "
            "--global-test none"
        )
        plan = PartitionPlan("by_site", column="site", test_fraction=TEST_SHARE, global_test="none")
        draw_partition(data, partition(pooled, data, plan, by_site))
    return data
