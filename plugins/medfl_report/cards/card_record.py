"""Records of a model card's statements beside scores: about the run, the data and the model, and people's answers.

A card describes the model of one exported bundle: a MONAI bundle with a final model that the run wrote for a site, or
for all sites (the global model).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from medfl.records.calibration import Calibration
from medfl.records.calibration_evaluation import CalibrationEvaluation
from medfl.records.evaluation import DataRelation, ScoreEstimate
from medfl.records.partition import LocatedExclusion
from medfl.records.record import Record
from medfl.records.summary import BestRound
from medfl_report.cards.section_content import SectionContent

ModelKind = Literal["personal", "global"]
"""Kind of an exported model: the site's own, or the one that all sites share."""


class NamedValue(Record):
    """Name and value, shown as a row of a table.

    Attributes:
        name: Name in words.
        value: Value as text.
    """

    name: str
    value: str


# ---- the run


class CardSetting(NamedValue):
    """Setting of the run.

    Attributes:
        origin: Where the value was set, such as ``command line``.
    """

    origin: str


class SiteImageCounts(Record):
    """Numbers of images at a site by split and class; a split that the site lacks is empty.

    Attributes:
        site: Name of the site.
        training: Number of training images of each class.
        validation: Number of validation images of each class.
        test: Number of test images of each class.
    """

    site: str
    training: tuple[int, ...] = ()
    validation: tuple[int, ...] = ()
    test: tuple[int, ...] = ()

    @property
    def by_split(self) -> dict[str, tuple[int, ...]]:
        """Mapping from each split to the split's number of images of each class."""
        return {"training": self.training, "validation": self.validation, "test": self.test}


class ImageCounts(Record):
    """Numbers of images of each class, at each site and in each split.

    Attributes:
        classes: Names of the classes.
        sites: Numbers of images at each site.
    """

    classes: tuple[str, ...]
    sites: tuple[SiteImageCounts, ...]

    def total(self, split: str) -> int:
        """Return the number of images in a split, over all sites and classes."""
        return sum(sum(counts.by_split[split]) for counts in self.sites)


class PrivacyFacts(Record):
    """Differential privacy of the run.

    Attributes:
        unit: Privacy unit with its article: ``a site`` or ``an image``.
        adjacency: How neighbouring data sets differ, in words.
        delta: Delta of the guarantee.
        sigma: Noise multiplier, or the range of the sites' noise multipliers.
        clip: Clipping norm.
        epsilon: Epsilon of the guarantee for the whole run.
        spent: Epsilon that the run has spent, <= `epsilon`.
        statement: Guarantee in whole sentences.
    """

    unit: str
    adjacency: str
    delta: str
    sigma: str
    clip: str
    epsilon: str
    spent: str
    statement: str


class CardSection(SectionContent):
    """Section of the card with the content from a section of the report.

    Attributes:
        title: Heading of the section.
    """

    title: str


class ServerScore(Record):
    """Score of the global model that the run recorded itself, without a file of predictions.

    Attributes:
        metric: Name of the metric.
        server: Score on the server's test set; None without one.
        sites_mean: Mean of the sites' scores; None if no site has one.
    """

    metric: str
    server: float | None
    sites_mean: float | None


class RunFacts(Record):
    """Facts about the run that trained the model; a fact that the run folder lacks is None or empty.

    Attributes:
        method: Name of the method.
        status: Status at the end, such as ``finished``.
        rounds: Number of rounds that the run completed.
        planned_rounds: Number of rounds in the settings.
        model_round: Round after which the exported model was saved.
        seed: Seed of the run.
        fold: Number of the fold that serves as test set, from 0; None without cross-validation.
        folds: Number of folds.
        objective: Name of the objective.
        metrics: Metrics of the task.
        networks: Names of the networks.
        loss: Loss function, as PyTorch prints it.
        optimizer: Class of the optimizer.
        sites: Names of the sites.
        model_kind: Kind of the model of this card.
        exported_kinds: Kinds of the models that the sites exported, each once.
        image_counts: Numbers of images at all sites; in the card of a site, at that site only.
        settings: Settings, sorted by name.
        environment: Software versions, device, threads and plugins.
        data_digest: SHA-256 digest that identifies the data of all sites.
        costs: Bytes and seconds of all sites; in the card of a site, of that site only.
        privacy: Differential privacy; None if the run used none.
        sections: Sections from the report, in the order of the report's page.
        warnings: Warnings of the report about the run.
        alerts: Severe warnings of the report, which the card shows at its top.
        leaks: Sentences about leaks between training and test data that the run's settings allowed.
        best_round: Round with the best validation score; None if the run did not compare rounds.
        server_scores: Scores of the global model without predictions; empty on a site's card.
        start: Sentences on the weights from which the network started; empty if they were random.
        harmonisation: Harmonisation of images and features in words; empty without one.
    """

    method: str
    status: str | None
    rounds: int | None
    planned_rounds: int
    model_round: int | None
    seed: int
    fold: int | None
    folds: int | None
    objective: str
    metrics: tuple[str, ...]
    networks: tuple[str, ...]
    loss: str
    optimizer: str
    sites: tuple[str, ...]
    model_kind: ModelKind | None
    exported_kinds: tuple[ModelKind, ...]
    image_counts: ImageCounts | None
    settings: tuple[CardSetting, ...]
    environment: tuple[NamedValue, ...]
    data_digest: str
    costs: tuple[NamedValue, ...]
    privacy: PrivacyFacts | None
    sections: tuple[CardSection, ...]
    warnings: tuple[str, ...]
    alerts: tuple[str, ...]
    leaks: tuple[str, ...]
    best_round: BestRound | None
    server_scores: tuple[ServerScore, ...]
    start: str = ""
    harmonisation: str = ""


# ---- the data


class DataFacts(Record):
    """Facts about the data, from the data lists and site cards at their current location.

    Attributes:
        unknown_because: Reason why the data lists were not used, as a clause; None if they were read.
        names: Names of the data sets.
        licences: Licences of the data sets.
        modalities: Modalities of the images.
        list_hashes: Maps each site to the SHA-256 of its data list.
        has_patients: Whether every site's data list has two or more images of one patient, so that patients are known.
        patients: Number of patients in all splits, summed over the sites; None if it is unknown.
        case_fields: Names of the fields, such as ``sex``, that the data lists contain for at least one image.
        exclusions: Images that medfl excluded, with reasons and numbers.
        warnings: Warnings of the data lists.
        partition: Settings of the partition; empty without ``partition.json``.
        partition_warnings: Warnings of the partition.
    """

    unknown_because: str | None = None
    names: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    list_hashes: dict[str, str] = {}
    has_patients: bool = False
    patients: int | None = None
    case_fields: tuple[str, ...] = ()
    exclusions: tuple[LocatedExclusion, ...] = ()
    warnings: tuple[str, ...] = ()
    partition: tuple[NamedValue, ...] = ()
    partition_warnings: tuple[str, ...] = ()

    def partition_setting(self, name: str) -> str | None:
        """Return the value of a setting of the partition; None if it is unknown."""
        return next((setting.value for setting in self.partition if setting.name == name), None)


# ---- the model, people, and all together


class ModelFacts(Record):
    """Facts about the model, from the files of its bundle.

    Attributes:
        networks: Name of the model's network. If the bundle does not name it: names of all networks of the run.
        intended_use: Intended use from the bundle's metadata; None if it is missing there.
        input: Description of the network's input; None if the metadata lack it.
        output: Description of the network's output; None if the metadata lack it.
        channels: Names of the output channels; empty if the metadata lack them.
        takes_images: Whether the input is an image.
    """

    networks: tuple[str, ...]
    intended_use: str | None
    input: str | None
    output: str | None
    channels: tuple[str, ...]
    takes_images: bool


class CardAnswers(Record):
    """Answers that people gave in the file of ``medfl card --answers``.

    Attributes:
        license: Licence of the model; None without an answer.
        intended_use: Intended use of the model; None without an answer.
        claim: Maps the number of an item of CLAIM to its answer.
        tripod_ai: Maps the number of an item of TRIPOD+AI to its answer.
    """

    license: str | None = None
    intended_use: str | None = None
    claim: dict[str, str] = {}
    tripod_ai: dict[str, str] = {}

    @property
    def checklists(self) -> Mapping[str, Mapping[str, str]]:
        """Mapping from the name of each checklist to people's answers by item number."""
        return {"claim": self.claim, "tripod_ai": self.tripod_ai}


class SiteEvaluation(Record):
    """Evaluation of the model on images of a site after the run (``medfl evaluate``).

    Attributes:
        site: Name of the site.
        dataset: Name of the data set; empty if it has none.
        images: Number of images; None for fewer patients than a scored group has.
        patients: Number of patients; None if they are unknown.
        relation: Relation of the images to the run's data, with shared images and patients.
        scores: Maps each metric to its estimate; metrics that are not defined are left out.
        calibrated: Evaluation of the model's calibration; None if the model was not calibrated.
    """

    site: str
    dataset: str
    images: int | None
    patients: int | None
    relation: DataRelation
    scores: dict[str, ScoreEstimate]
    calibrated: CalibrationEvaluation | None = None


class CardFacts(Record):
    """Everything that a model card states beside scores.

    Attributes:
        title: Title of the card.
        site: Name of the site that exported the model; None for the global model.
        data_name: Name of the data in ``run.json``; empty if it has none.
        output_names: Names of the classes or of the other outputs; empty if they are unknown.
        method_summary: Description of the method in a sentence; empty if the method is not installed.
        method_paper: Reference of the method's paper; empty if the method is not installed or has no paper.
        has_test_cases: Whether a bundle contains ``configs/test_cases.json``, with which `evaluate` scores test cases.
        unscored_because: Reason for the absence of scores, as a clause; used only without scores.
        run: Facts about the run.
        data: Facts about the data.
        model: Facts about the model.
        answers: Answers of people.
        evaluations: Evaluations of the model after the run.
        calibration: Calibration of the model by ``medfl calibrate``; None if there is none.
    """

    title: str
    site: str | None
    data_name: str
    output_names: tuple[str, ...]
    method_summary: str
    method_paper: str
    has_test_cases: bool
    unscored_because: str
    run: RunFacts
    data: DataFacts
    model: ModelFacts
    answers: CardAnswers
    evaluations: tuple[SiteEvaluation, ...] = ()
    calibration: Calibration | None = None

    @property
    def external(self) -> tuple[SiteEvaluation, ...]:
        """Evaluations on images of which none, and no patient of which, was in the run's data."""
        return tuple(entry for entry in self.evaluations if entry.relation.kind == "external")

    @property
    def intended_use(self) -> str | None:
        """Intended use from people's answers, or else from the bundle's metadata."""
        return self.answers.intended_use or self.model.intended_use
