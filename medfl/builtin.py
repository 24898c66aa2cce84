"""Networks, partitions and the data set ``folder`` of the core, listed as any plugin lists its own."""

from __future__ import annotations

from medfl.plugins import DatasetRecord, NetworkRecord, PartitionRecord, hookimpl


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
            "medfl.data.partition.dirichlet_class:dirichlet_class",
            "unlike shares of the classes, drawn from a Dirichlet distribution (alpha, min_size)",
        ),
        PartitionRecord(
            "dirichlet_class_balanced",
            "medfl.data.partition.dirichlet_class:dirichlet_class_balanced",
            "the same, but sites that are full get no more (alpha, min_size)",
        ),
        PartitionRecord("label_k", "medfl.data.partition.label_k:label_k", "every site has k classes (k)"),
        PartitionRecord(
            "subset", "medfl.data.partition.subset:subset", "nearly all of a site's images are of one class (share)"
        ),
        PartitionRecord(
            "limited_classes",
            "medfl.data.partition.limited_classes:limited_classes",
            "some classes are rare at some sites (classes, at, share)",
        ),
        PartitionRecord(
            "by_site", "medfl.data.partition.by_site:by_site", "a site for each value of a column (--column)"
        ),
        PartitionRecord(
            "by_source",
            "medfl.data.partition.by_source:by_source",
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
            phantom="medfl.data.ingest.own_phantom:write_release",
            phantom_options={
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
