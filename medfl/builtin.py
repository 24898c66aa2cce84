"""What the core offers by name, listed as any plugin lists its own."""

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
    """Networks of `medfl.networks`."""
    return [
        NetworkRecord("cnn4", "medfl.networks.cnn:CNN4", "a small convolutional network for small images"),
        NetworkRecord(
            "convnet", "medfl.networks.convnet:ConvNet", "convolutions and a dense layer of any width, in 2-D and 3-D"
        ),
        NetworkRecord("resnet", "medfl.networks.resnet:ResNet", "a residual network in 2-D and 3-D, of any width"),
    ]


@hookimpl
def medfl_partitions() -> list[PartitionRecord]:
    """Partitions of `medfl.data.partition`."""
    return [
        PartitionRecord("iid", "medfl.data.partition.iid:iid", "every site gets a random share of the same kind"),
        PartitionRecord(
            "dirichlet_class",
            "medfl.data.partition.class_skew:dirichlet_class",
            "unlike shares of the classes, drawn from a Dirichlet distribution (alpha, min_size)",
        ),
        PartitionRecord(
            "dirichlet_class_balanced",
            "medfl.data.partition.class_skew:dirichlet_class_balanced",
            "the same, but sites that are full get no more (alpha, min_size)",
        ),
        PartitionRecord("label_k", "medfl.data.partition.class_skew:label_k", "every site has k classes (k)"),
        PartitionRecord(
            "subset", "medfl.data.partition.class_skew:subset", "nearly all of a site's images are of one class (share)"
        ),
        PartitionRecord(
            "limited_classes",
            "medfl.data.partition.class_skew:limited_classes",
            "some classes are rare at some sites (classes, at, share)",
        ),
        PartitionRecord(
            "by_site", "medfl.data.partition.by_column:by_site", "a site for each value of a column (--column)"
        ),
        PartitionRecord(
            "by_source",
            "medfl.data.partition.by_column:by_source",
            "small sites from each value of a column, with a few classes (--column, sites_per_source, min_classes)",
        ),
    ]


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """Data sets of `medfl.data.ingest`: a hospital's own images."""
    return [
        DatasetRecord(
            "folder",
            "medfl.data.ingest.own_spec:Folder",
            summary="Your own image files with a table of labels. No file name and no patient's identifier is kept.",
            synthetic="medfl.data.ingest.own_synthetic:write_release",
            synthetic_options={
                "images": "images",
                "table": "labels.csv",
                "image_column": "file",
                "label_column": "diagnosis",
                "group_column": "patient",
                "site_column": "hospital",
                "split_column": "part",
                "keep_column": ("sex",),
                "size": "10x15",
            },
            order=900,
        )
    ]


@hookimpl
def medfl_objectives() -> list[ObjectiveRecord]:
    """Objectives of `medfl.objectives`."""
    return [
        ObjectiveRecord(
            "multiclass", "medfl.objectives.multiclass:Multiclass", "each case is of one of several classes"
        ),
        ObjectiveRecord("binary", "medfl.objectives.binary:Binary", "a finding is there or not"),
        ObjectiveRecord("multilabel", "medfl.objectives.multilabel:Multilabel", "several findings, each there or not"),
        ObjectiveRecord("regression", "medfl.objectives.regression:Regression", "numbers"),
        ObjectiveRecord("survival", "medfl.objectives.survival:Survival", "the time until an event, or to censoring"),
        ObjectiveRecord("segmentation", "medfl.objectives.segmentation:Segmentation", "masks, in 2-D and 3-D"),
    ]


@hookimpl
def medfl_robust_rules() -> list[RobustRuleRecord]:
    """Robust rules of `medfl.toolkit.robust`."""
    return [
        RobustRuleRecord(
            "median", "medfl.toolkit.robust.median:Median", "the median of each number; Yin et al., ICML 2018"
        ),
        RobustRuleRecord(
            "trimmed_mean",
            "medfl.toolkit.robust.median:TrimmedMean",
            "the mean of each number without its f largest and f smallest values; Yin et al., ICML 2018",
        ),
        RobustRuleRecord(
            "krum",
            "medfl.toolkit.robust.krum:Krum",
            "the update that is nearest to the n - f - 2 nearest others; Blanchard et al., NeurIPS 2017",
        ),
        RobustRuleRecord(
            "multi_krum",
            "medfl.toolkit.robust.krum:MultiKrum",
            "the mean of the n - f - 2 updates that are best by Krum",
        ),
        RobustRuleRecord(
            "bulyan",
            "medfl.toolkit.robust.krum:Bulyan",
            "n - 2f updates by Krum, then the mean of each number near its median; El Mhamdi et al., ICML 2018",
        ),
        RobustRuleRecord(
            "geometric_median",
            "medfl.toolkit.robust.geometric_median:GeometricMedian",
            "the point with the least sum of distances to all updates (iterations); Pillutla et al., IEEE TSP 2022",
        ),
        RobustRuleRecord(
            "norm_clip",
            "medfl.toolkit.robust.clipping:NormClip",
            "the mean of updates that are cut to a length (radius); Sun et al., 2019",
        ),
        RobustRuleRecord(
            "centred_clip",
            "medfl.toolkit.robust.clipping:CentredClip",
            "the last value plus the mean of clipped changes of it (radius, iterations); Karimireddy et al., ICML 2021",
        ),
    ]


@hookimpl
def medfl_privacy_mechanisms() -> list[PrivacyMechanismRecord]:
    """Privacy mechanisms of `medfl.privacy.mechanisms`."""
    return [
        PrivacyMechanismRecord(
            "site",
            "medfl.privacy.mechanisms.site_updates:SiteUpdates",
            "all data of a site: each update is clipped and noised as it leaves",
        ),
        PrivacyMechanismRecord(
            "sample",
            "medfl.privacy.mechanisms.dp_sgd:DPSGD",
            "each image of a site: training by DP-SGD; Abadi et al., CCS 2016",
        ),
    ]
