"""The methods that come with medfl, registered through the same entry point that anyone else's use.

One file for each method. This one only lists them, and what they show in the report, and imports none.
"""

from __future__ import annotations

from medfl.plugins import MethodRecord, SectionRecord, hookimpl

UPDATES = {"model/": "update"}
DIVIDED = {"distiller/": "update", "shared/": "samples"}
CIRCULATION = {"model/": "weights", "optimizer/": "statistic"}


@hookimpl
def medfl_methods() -> list[MethodRecord]:
    """All first-party methods."""
    return [
        MethodRecord(
            name="centralized",
            target="medfl_methods.centralized:Centralized",
            family="reference",
            paper="",
            sends=UPDATES,
            unlike_networks=True,
            summary="one model on the raw data of all sites, pooled: an oracle, in a simulation only",
        ),
        MethodRecord(
            name="local",
            target="medfl_methods.local:Local",
            family="reference",
            paper="",
            sends={},
            unlike_networks=True,
            summary="every site trains alone",
        ),
        MethodRecord(
            name="fedavg",
            target="medfl_methods.fedavg:FedAvg",
            family="averaging",
            paper="McMahan et al., AISTATS 2017",
            sends=UPDATES,
            summary="the mean of the sites' models, weighted by their numbers of images",
        ),
        MethodRecord(
            name="fedprox",
            target="medfl_methods.fedprox:FedProx",
            family="averaging",
            paper="Li et al., MLSys 2020",
            sends=UPDATES,
            summary="FedAvg with a proximal term that keeps sites near the server's model",
        ),
        MethodRecord(
            name="cyclic",
            target="medfl_methods.cyclic:Cyclic",
            family="averaging",
            paper="Chang et al., JAMIA 2018",
            sends=UPDATES,
            summary="one model goes from site to site, each trains it where the one before left off",
        ),
        MethodRecord(
            name="fedavgm",
            target="medfl_methods.fedavgm:FedAvgM",
            family="averaging",
            paper="Hsu, Qi, Brown, 2019",
            sends=UPDATES,
            summary="FedAvg with momentum at the server",
        ),
        MethodRecord(
            name="fedadam",
            target="medfl_methods.fedadam:FedAdam",
            family="averaging",
            paper="Reddi et al., ICLR 2021",
            sends=UPDATES,
            summary="Adam at the server, on the mean update of the sites",
        ),
        MethodRecord(
            name="fedyogi",
            target="medfl_methods.fedyogi:FedYogi",
            family="averaging",
            paper="Reddi et al., ICLR 2021",
            sends=UPDATES,
            summary="Yogi at the server: FedAdam whose second moment falls slowly",
        ),
        MethodRecord(
            name="fedadagrad",
            target="medfl_methods.fedadagrad:FedAdagrad",
            family="averaging",
            paper="Reddi et al., ICLR 2021",
            sends=UPDATES,
            summary="Adagrad at the server, on the mean update of the sites",
        ),
        MethodRecord(
            name="scaffold",
            target="medfl_methods.scaffold:Scaffold",
            family="averaging",
            paper="Karimireddy et al., ICML 2020",
            sends=UPDATES | {"control/": "update"},
            summary="FedAvg whose sites correct each step for how unlike their gradients are to those of all",
        ),
        MethodRecord(
            name="fednova",
            target="medfl_methods.fednova:FedNova",
            family="averaging",
            paper="Wang et al., NeurIPS 2020",
            sends=UPDATES,
            summary="FedAvg whose updates are divided by how far each site's optimiser went",
        ),
        MethodRecord(
            name="feddyn",
            target="medfl_methods.feddyn:FedDyn",
            family="averaging",
            paper="Acar et al., ICLR 2021",
            sends=UPDATES,
            summary="each site's loss is bent by the sum of its updates, until all agree on one optimum",
        ),
        MethodRecord(
            name="feddisco",
            target="medfl_methods.feddisco:FedDisco",
            family="averaging",
            paper="Ye et al., ICML 2023",
            sends=UPDATES,
            summary="sites weigh less, the further their shares of classes are from a target's",
            needs=frozenset({"class_labels"}),
        ),
        MethodRecord(
            name="isfl",
            target="medfl_methods.isfl.method:ISFL",
            family="averaging",
            paper="Zhu et al., IEEE Internet of Things Journal 2024",
            sends=UPDATES,
            summary="FedAvg in which sites draw images as often as their classes deserve, by how gradients change",
            needs=frozenset({"class_labels"}),
        ),
        MethodRecord(
            name="fedkper",
            target="medfl_methods.fedkper:FedKPer",
            family="averaging",
            paper="Fowler and AlRegib, ICIP 2026",
            sends=UPDATES,
            summary="the server's model teaches where it is right; sites weigh by reliability and diversity",
            needs=frozenset({"class_labels", "soft_targets"}),
        ),
        MethodRecord(
            name="pfedcdp",
            target="medfl_methods.pfedcdp.method:PFedCDP",
            family="averaging",
            paper="Shadin, Zhang, Wang, Pan",
            sends=UPDATES | {"teacher/": "update"},
            unlike_networks=True,
            summary="clusters of unlike networks share Fisher-masked bodies; their models teach one student",
            needs=frozenset({"class_logits", "linear_head", "soft_targets"}),
        ),
        MethodRecord(
            name="fedsdc",
            target="medfl_methods.fedsdc.method:FedSDC",
            family="averaging",
            paper="Gao et al., MICCAI 2025",
            sends=UPDATES | {"head/": "update"},
            summary="one shared body, many unlike heads dealt anew to the sites in each round, which vote",
            needs=frozenset({"class_logits", "linear_head"}),
        ),
        MethodRecord(
            name="fedfed",
            target="medfl_methods.fedfed.method:FedFed",
            family="shared images",
            paper="Yang et al., NeurIPS 2023",
            sends=UPDATES | DIVIDED,
            summary="sites share the part of their images that tells the class, under noise, and train on all of them",
            needs=frozenset({"class_labels", "images_of_one_shape"}),
        ),
        MethodRecord(
            name="fedtpf",
            target="medfl_methods.fedtpf.method:FedTPF",
            family="shared images",
            paper="FedTPF (authors and venue not known to us)",
            sends=UPDATES | DIVIDED,
            summary="FedFed with a VAE-WGAN-GP, pulled to class prototypes, that sites stop to train when it is good",
            needs=frozenset({"class_labels", "images_of_one_shape", "linear_head"}),
        ),
        MethodRecord(
            name="fedbn",
            target="medfl_methods.fedbn:FedBN",
            family="personal",
            paper="Li et al., ICLR 2021",
            sends=UPDATES,
            summary="FedAvg in which each site keeps its own normalisation layers",
        ),
        MethodRecord(
            name="fedper",
            target="medfl_methods.fedper:FedPer",
            family="personal",
            paper="Arivazhagan et al., 2019",
            sends=UPDATES | {"head/": "update"},
            summary="a common body, and at each site a head of its own; both are trained together",
            needs=frozenset({"head"}),
        ),
        MethodRecord(
            name="fedrep",
            target="medfl_methods.fedrep:FedRep",
            family="personal",
            paper="Collins et al., ICML 2021",
            sends=UPDATES | {"head/": "update"},
            summary="a common body, and at each site a head of its own; first the head is trained, then the body",
            needs=frozenset({"head"}),
        ),
        MethodRecord(
            name="ditto",
            target="medfl_methods.ditto:Ditto",
            family="personal",
            paper="Li et al., ICML 2021",
            sends=UPDATES,
            summary="FedAvg, and at each site a model of its own that is held near the common one",
        ),
        MethodRecord(
            name="fedproto",
            target="medfl_methods.fedproto:FedProto",
            family="personal",
            paper="Tan et al., AAAI 2022",
            sends={"proto/": "statistic"},
            unlike_networks=True,
            summary="own models, held together by the mean features of each class, which are all that is sent",
            needs=frozenset({"class_labels", "linear_head"}),
        ),
        MethodRecord(
            name="fedtgp",
            target="medfl_methods.fedtgp:FedTGP",
            family="personal",
            paper="Zhang et al., AAAI 2024",
            sends={"proto/": "statistic"},
            unlike_networks=True,
            summary="FedProto whose server trains the prototypes of all classes to keep apart",
            needs=frozenset({"class_labels", "linear_head"}),
        ),
        MethodRecord(
            name="fedcross",
            target="medfl_methods.fedcross.method:FedCross",
            family="peer to peer",
            paper="Xu et al., MIDL 2023",
            sends=CIRCULATION,
            summary="models go from site to site and are trained where they are, nothing is averaged",
        ),
        MethodRecord(
            name="fedcross_star",
            target="medfl_methods.fedcross_star:FedCrossStar",
            family="peer to peer",
            paper="Weng et al., 2025",
            sends=CIRCULATION,
            unlike_networks=True,
            summary="each site's own model is trained at another site in every round and comes home",
        ),
        MethodRecord(
            name="fedskd",
            target="medfl_methods.fedskd.method:FedSKD",
            family="peer to peer",
            paper="Weng et al., 2025",
            sends=CIRCULATION,
            unlike_networks=True,
            summary="each site's model learns beside a copy of another one's, by the similarity of their features",
            needs=frozenset({"features", "head"}),
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """What single methods show in the report."""
    return [
        SectionRecord("teachers", "Teachers of the student", "medfl_methods.pfedcdp.report:TeachersSection", 200),
        SectionRecord("heads", "Who held which head", "medfl_methods.fedsdc.report:HeadsSection", 210),
        SectionRecord(
            "looks", "What the teachers look at", "medfl_methods.pfedcdp.report_explanations:LooksSection", 220
        ),
        SectionRecord("sharing", "What was shared", "medfl_methods.fedfed.report:SharingSection", 230),
    ]
