"""Networks, partitions, poisons, report sections and the data set ``folder`` of medfl, as any plugin has them."""

from __future__ import annotations

from medfl.plugins import DatasetRecord, NetworkRecord, PartitionRecord, PoisonRecord, SectionRecord, hookimpl


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
    """Partitions of `medfl.partition`."""
    return [
        PartitionRecord("iid", "medfl.partition.iid:iid", "every site gets a random share of the same kind"),
        PartitionRecord(
            "dirichlet_class",
            "medfl.partition.dirichlet_class:dirichlet_class",
            "unlike shares of the classes, drawn from a Dirichlet distribution (alpha, min_size)",
        ),
        PartitionRecord(
            "dirichlet_class_balanced",
            "medfl.partition.dirichlet_class:dirichlet_class_balanced",
            "the same, but sites that are full get no more (alpha, min_size)",
        ),
        PartitionRecord("label_k", "medfl.partition.label_k:label_k", "every site has k classes (k)"),
        PartitionRecord(
            "subset", "medfl.partition.subset:subset", "nearly all of a site's images are of one class (share)"
        ),
        PartitionRecord(
            "limited_classes",
            "medfl.partition.limited_classes:limited_classes",
            "some classes are rare at some sites (classes, at, share)",
        ),
        PartitionRecord("by_site", "medfl.partition.by_site:by_site", "a site for each value of a column (--column)"),
        PartitionRecord(
            "by_source",
            "medfl.partition.by_source:by_source",
            "small sites from each value of a column, with a few classes (--column, sites_per_source, min_classes)",
        ),
    ]


@hookimpl
def medfl_poisons() -> list[PoisonRecord]:
    """Poisoning attacks of `medfl.poisons`."""
    return [
        PoisonRecord(
            "label_flip",
            "medfl.poisons.label_flip:LabelFlip",
            "Tolpegin et al., ESORICS 2020",
            "data",
            "images of one class are called another, or all classes are turned round (source, target, rate)",
        ),
        PoisonRecord(
            "backdoor",
            "medfl.poisons.backdoor:Backdoor",
            "Gu et al., 2017",
            "data",
            "a bright square in a corner stands for a class (target, patch, rate)",
        ),
        PoisonRecord(
            "sign_flip",
            "medfl.poisons.sign_flip:SignFlip",
            "Li et al., AAAI 2019",
            "reply",
            "the opposite of the own update (scale)",
        ),
        PoisonRecord(
            "scaling",
            "medfl.poisons.scaling:Scaling",
            "Bagdasaryan et al., AISTATS 2020",
            "reply",
            "a multiple of the own update, by default long enough to replace the model (scale)",
        ),
        PoisonRecord(
            "gaussian",
            "medfl.poisons.gaussian:Gaussian",
            "Blanchard et al., NeurIPS 2017",
            "reply",
            "noise as long as the own update (scale)",
        ),
        PoisonRecord(
            "alie",
            "medfl.poisons.alie:Alie",
            "Baruch et al., NeurIPS 2019",
            "reply",
            "the honest mean less z honest standard deviations: hardly to be told from the honest (z)",
        ),
        PoisonRecord(
            "ipm",
            "medfl.poisons.ipm:InnerProduct",
            "Xie et al., UAI 2019",
            "reply",
            "the honest mean times -epsilon (epsilon)",
        ),
        PoisonRecord(
            "free_rider",
            "medfl.poisons.free_rider:FreeRider",
            "Fraboni et al., AISTATS 2021",
            "reply",
            "nothing, or how the common model changed last, and noise (disguise, noise)",
        ),
    ]


@hookimpl
def medfl_datasets() -> list[DatasetRecord]:
    """Data sets of `medfl.ingest`: a hospital's own images."""
    return [
        DatasetRecord(
            "folder",
            "medfl.ingest.own_spec:Folder",
            summary="Your own image files with a table of labels. No file name and no patient's identifier is kept.",
            phantom="medfl.ingest.own_phantom:write_release",
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


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Sections of `medfl.report`; 200 to 299 are left to methods."""
    return [
        SectionRecord("gains", "Who gains", "medfl.report.sections.gains:GainsSection", 0),
        SectionRecord("masks", "Masks", "medfl.report.objectives.masks:MasksSection", 10),
        SectionRecord("survival", "Survival", "medfl.report.objectives.survival:SurvivalSection", 20),
        SectionRecord("agreement", "Agreement", "medfl.report.objectives.agreement:AgreementSection", 30),
        SectionRecord("label_aucs", "Each finding", "medfl.report.objectives.label_aucs:LabelAucsSection", 40),
        SectionRecord("calibration", "Calibration", "medfl.report.objectives.calibration:CalibrationSection", 50),
        SectionRecord("sweep", "One setting, several values", "medfl.report.sections.sweep:SweepSection", 100),
        SectionRecord("centres", "Which centres gain", "medfl.report.sections.centres:CentresSection", 110),
        SectionRecord("classes", "Which classes gain", "medfl.report.sections.classes:ClassesSection", 120),
        SectionRecord("matrix", "Every model at every site", "medfl.report.sections.matrix:MatrixSection", 130),
        SectionRecord("fairness", "By sex", "medfl.report.sections.fairness:FairnessSection", 140),
        SectionRecord("clusters", "Clusters", "medfl.report.sections.clusters:ClustersSection", 150),
        SectionRecord("privacy", "Privacy", "medfl.report.sections.privacy:PrivacySection", 300),
        SectionRecord("attacks", "What attacks found", "medfl.report.sections.attacks:AttacksSection", 310),
        SectionRecord("atlas", "Regions of the atlas", "medfl.report.sections.atlas:AtlasSection", 320),
        SectionRecord("scores", "All scores", "medfl.report.sections.standard:ScoresSection", 500),
        SectionRecord("curves", "Round by round", "medfl.report.sections.standard:CurvesSection", 510),
        SectionRecord("forgetting", "What is forgotten", "medfl.report.sections.forgetting:ForgettingSection", 520),
        SectionRecord("holdings", "Who holds what", "medfl.report.sections.standard:HoldingsSection", 530),
        SectionRecord("costs", "Costs", "medfl.report.sections.standard:CostsSection", 540),
        SectionRecord("settings", "Settings", "medfl.report.sections.standard:SettingsSection", 550),
    ]
