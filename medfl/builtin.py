"""medfl's built-in plugin: networks, partitions, data sets, objectives, robust rules and privacy mechanisms.

Each function is a hook that returns records: a name, the class or function to import, and a summary.
"""

from __future__ import annotations

from medfl.plugins import (
    DatasetRecord,
    NetworkRecord,
    ObjectiveRecord,
    PartitionRecord,
    PrivacyMechanismRecord,
    RobustRuleRecord,
    hookimpl,
)


@hookimpl
def medfl_networks() -> list[NetworkRecord]:
    """Return the records of the networks in `medfl.networks`."""
    return [
        NetworkRecord("cnn4", "medfl.networks.cnn:CNN4", "a small convolutional network for small images"),
        NetworkRecord(
            "convnet", "medfl.networks.convnet:ConvNet", "a convolutional network of any width, in 2-D and 3-D"
        ),
        NetworkRecord("resnet", "medfl.networks.resnet:ResNet", "a residual network in 2-D and 3-D, of any width"),
    ]


@hookimpl
def medfl_partitions() -> list[PartitionRecord]:
    """Return the records of the partitions in `medfl.data.partition`, which split a pooled data set into sites."""
    return [
        PartitionRecord("iid", "medfl.data.partition.iid:iid", "random shares of equal size and class balance"),
        PartitionRecord(
            "dirichlet_class",
            "medfl.data.partition.class_skew:dirichlet_class",
            "different class shares at each site, drawn from a Dirichlet distribution (alpha, min_size)",
        ),
        PartitionRecord(
            "dirichlet_class_balanced",
            "medfl.data.partition.class_skew:dirichlet_class_balanced",
            "as dirichlet_class, but a site with the mean number of images gets no more (alpha, min_size)",
        ),
        PartitionRecord("label_k", "medfl.data.partition.class_skew:label_k", "every site has k classes (k)"),
        PartitionRecord(
            "subset", "medfl.data.partition.class_skew:subset", "nearly all images of a site have one class (share)"
        ),
        PartitionRecord(
            "limited_classes",
            "medfl.data.partition.class_skew:limited_classes",
            "some classes are rare at some sites (classes, at, share)",
        ),
        PartitionRecord(
            "by_site", "medfl.data.partition.by_column:by_site", "one site for each value of a column (--column)"
        ),
        PartitionRecord(
            "by_source",
            "medfl.data.partition.by_column:by_source",
            "several small sites for each value of a column, each with few classes (--column, sites_per_source, "
            "min_classes)",
        ),
    ]


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """Return the records of the data sets ``folder`` and ``table``: a hospital's own images, and its own table."""
    return [
        DatasetRecord(
            "folder",
            "medfl.data.ingest.folder_spec:FolderSpec",
            summary="Your own image files with a table of targets. File names and patient identifiers are not kept.",
            synthetic="medfl.data.ingest.folder_synthetic:write_release",
            synthetic_options={
                "images": "images",
                "table": "labels.csv",
                "image_column": "file",
                "target": "class:diagnosis",
                "group_column": "patient",
                "site_column": "hospital",
                "split_column": "part",
                "keep_column": ("sex",),
                "size": "10x15",
            },
            order=900,
        ),
        DatasetRecord(
            "table",
            "medfl.data.ingest.columns.table_spec:TableSpec",
            summary="Your own table of numbers and categories, such as clinical data.",
            synthetic="medfl.data.ingest.columns.table_synthetic:write_release",
            synthetic_options={
                "table": "clinical.csv",
                "target": "class:outcome",
                "group_column": "patient",
                "site_column": "hospital",
            },
            order=910,
        ),
    ]


@hookimpl
def medfl_objectives() -> list[ObjectiveRecord]:
    """Return the records of the objectives in `medfl.objectives`: kinds of tasks, such as classification."""
    return [
        ObjectiveRecord("multiclass", "medfl.objectives.multiclass:Multiclass", "each case has one of several classes"),
        ObjectiveRecord("binary", "medfl.objectives.binary:Binary", "a finding is present or absent"),
        ObjectiveRecord(
            "multilabel", "medfl.objectives.multilabel:Multilabel", "several findings, each present or absent"
        ),
        ObjectiveRecord("regression", "medfl.objectives.regression:Regression", "one or more numbers"),
        ObjectiveRecord("survival", "medfl.objectives.survival:Survival", "time until an event, possibly censored"),
        ObjectiveRecord("segmentation", "medfl.objectives.segmentation:Segmentation", "masks, in 2-D and 3-D"),
    ]


@hookimpl
def medfl_robust_rules() -> list[RobustRuleRecord]:
    """Return the records of the robust rules in `medfl.toolkit.robust`, which replace the mean of the updates."""
    return [
        RobustRuleRecord(
            "median", "medfl.toolkit.robust.median:Median", "the coordinate-wise median; Yin et al., ICML 2018"
        ),
        RobustRuleRecord(
            "trimmed_mean",
            "medfl.toolkit.robust.median:TrimmedMean",
            "the coordinate-wise mean without the f largest and f smallest values; Yin et al., ICML 2018",
        ),
        RobustRuleRecord(
            "krum",
            "medfl.toolkit.robust.krum:Krum",
            "the update closest to its n - f - 2 nearest other updates; Blanchard et al., NeurIPS 2017",
        ),
        RobustRuleRecord(
            "multi_krum",
            "medfl.toolkit.robust.krum:MultiKrum",
            "the mean of the n - f - 2 updates with the best Krum scores",
        ),
        RobustRuleRecord(
            "bulyan",
            "medfl.toolkit.robust.krum:Bulyan",
            "n - 2f updates selected by Krum, then the mean of values near the median; El Mhamdi et al., ICML 2018",
        ),
        RobustRuleRecord(
            "geometric_median",
            "medfl.toolkit.robust.geometric_median:GeometricMedian",
            "the point with the smallest sum of distances to all updates (iterations); Pillutla et al., IEEE TSP 2022",
        ),
        RobustRuleRecord(
            "norm_clip",
            "medfl.toolkit.robust.clipping:NormClip",
            "the mean of updates clipped to a maximum norm (radius); Sun et al., 2019",
        ),
        RobustRuleRecord(
            "centred_clip",
            "medfl.toolkit.robust.clipping:CentredClip",
            "the previous aggregate plus the mean of clipped differences from it (radius, iterations); Karimireddy et "
            "al., ICML 2021",
        ),
    ]


@hookimpl
def medfl_privacy_mechanisms() -> list[PrivacyMechanismRecord]:
    """Return the records of the privacy mechanisms in `medfl.privacy.mechanisms`, one per privacy unit."""
    return [
        PrivacyMechanismRecord(
            "site",
            "medfl.privacy.mechanisms.site_updates:SiteUpdates",
            "all data of a site: each update is clipped and noised before it leaves",
        ),
        PrivacyMechanismRecord(
            "sample",
            "medfl.privacy.mechanisms.dp_sgd:DPSGD",
            "each image of a site: training by DP-SGD; Abadi et al., CCS 2016",
        ),
    ]
