"""Facts that a model card states beside its scores: of the run, the data, the model, and from people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from medfl.records.partition import LocatedExclusion
from medfl.records.record import Record
from medfl.records.summary import BestRound
from medfl_report.cards.card_parts import CardPart

ModelKind = Literal["personal", "global"]
"""Kind of a model that a site exports."""


class NamedValue(Record):
    """A name and its value, as a row of a table.

    Attributes:
        name: Name in words.
        value: Value as text.
    """

    name: str
    value: str


# ---- the run


class CardSetting(NamedValue):
    """A setting of the run.

    Attributes:
        origin: Where the value comes from, such as ``command line``.
    """

    origin: str


class SiteImageCounts(Record):
    """Numbers of images of a site; a split is empty if the site lacks it.

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
        """Maps each split to its numbers."""
        return {"training": self.training, "validation": self.validation, "test": self.test}


class ImageCounts(Record):
    """Numbers of images of each class, at each site and in each split.

    Attributes:
        classes: Names of the classes.
        sites: Numbers of each site.
    """

    classes: tuple[str, ...]
    sites: tuple[SiteImageCounts, ...]

    def total(self, split: str) -> int:
        """Return the number of images in a split, over all sites and classes."""
        return sum(sum(counts.by_split[split]) for counts in self.sites)


class PrivacyFacts(Record):
    """Differential privacy of the run.

    Attributes:
        unit: Whose data are protected, with an article: ``a site`` or ``an image``.
        adjacency: How neighbouring data sets differ, in words.
        delta: Delta of the guarantee.
        sigma: Noise multiplier, or the range of those of the sites.
        clip: Clipping norm.
        epsilon: Epsilon of the guarantee for the whole run.
        spent: Epsilon that the run spent.
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


class CardSection(CardPart):
    """Section of the card that a section of the report gives.

    Attributes:
        title: Heading.
    """

    title: str


class ServerScore(Record):
    """A score of the global model that does not come from a file of predictions.

    Attributes:
        metric: Name of the metric.
        server: Score on the server's test set; None without one.
        sites_mean: Mean of the sites' scores; None if no site has one.
    """

    metric: str
    server: float | None
    sites_mean: float | None


class RunFacts(Record):
    """Facts of the run that made a model; a fact that the run folder lacks is None or empty.

    Attributes:
        method: Name of the method.
        status: How the run ended.
        rounds: Number of rounds that the run did.
        planned_rounds: Number of rounds in the settings.
        model_round: Round of the exported model.
        seed: Seed of the run.
        fold: Number of the fold that serves as test set, from 0; None without cross-validation.
        folds: Number of folds.
        objective: Name of the objective.
        metrics: Metrics of the task.
        networks: Names of the networks.
        loss: Loss as PyTorch prints it.
        optimizer: Class of the optimizer.
        sites: Names of the sites.
        model_kind: Kind of the model of this card.
        exported_kinds: Kinds of the models that the sites exported, each once.
        image_counts: Numbers of images; of a site's card those of the site alone.
        settings: Settings by name.
        environment: Versions, device, threads and plugins.
        data_digest: Identifies the data of all sites.
        costs: Bytes and seconds; of a site's card those of the site alone.
        privacy: Differential privacy; None if the run used none.
        sections: Sections of the card that sections of the report give, in the order of the page.
        warnings: Warnings of the report.
        alerts: Graver sentences of the report, which the card shows at its top.
        leaks: Sentences about violations of the data's separation that the run allowed.
        best_round: The best round; None if the run did not compare rounds.
        server_scores: Scores of the global model without predictions; empty on a site's card.
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


# ---- the data


class DataFacts(Record):
    """Facts of the data, from the data lists and site cards where they are now.

    Attributes:
        unknown_because: Why nothing is known of the data lists, as a clause; None if they were read.
        names: Names of the data sets.
        licences: Licences of the data sets.
        modalities: Modalities of the images.
        list_hashes: Maps each site to the SHA-256 of its data list.
        has_patients: Whether the list of every site has several images of a patient.
        case_fields: Fields that the lists have for at least one image, such as ``sex``.
        exclusions: Images that medfl left out.
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
    case_fields: tuple[str, ...] = ()
    exclusions: tuple[LocatedExclusion, ...] = ()
    warnings: tuple[str, ...] = ()
    partition: tuple[NamedValue, ...] = ()
    partition_warnings: tuple[str, ...] = ()

    def partition_setting(self, name: str) -> str | None:
        """Return the value of a setting of the partition, or None if it is not known."""
        return next((setting.value for setting in self.partition if setting.name == name), None)


# ---- the model, people, and all together


class ModelFacts(Record):
    """Facts of the model from the files of its bundle.

    Attributes:
        networks: Name of its network, or names of all networks of the run if the bundle does not name it.
        intended_use: Intended use from the bundle's metadata.
        input: Input of the network in words.
        output: Output of the network in words.
        channels: Names of the channels of the output.
        takes_images: Whether the input is an image.
    """

    networks: tuple[str, ...]
    intended_use: str | None
    input: str | None
    output: str | None
    channels: tuple[str, ...]
    takes_images: bool


class CardAnswers(Record):
    """Answers of people, from the file of ``medfl card --answers``.

    Attributes:
        license: Licence of the model.
        intended_use: Intended use of the model.
        claim: Maps the number of an item of CLAIM to its answer.
        tripod_ai: Maps the number of an item of TRIPOD+AI to its answer.
    """

    license: str | None = None
    intended_use: str | None = None
    claim: dict[str, str] = {}
    tripod_ai: dict[str, str] = {}

    @property
    def checklists(self) -> Mapping[str, Mapping[str, str]]:
        """Maps the name of each checklist to its answers."""
        return {"claim": self.claim, "tripod_ai": self.tripod_ai}


class CardFacts(Record):
    """Everything that a card states beside scores.

    Attributes:
        title: Title of the card.
        site: Name of the site that exported the model; None for the global model.
        data_name: Name of the data in ``run.json``; empty if it has none.
        output_names: Names of the classes, or of the other outputs; empty if they have none.
        method_summary: What the method does, in a sentence; empty if the method is not installed.
        method_paper: Paper of the method; empty if the method is not installed or has none.
        has_test_cases: Whether a bundle has a configuration that lets it score the test cases.
        unscored_because: Why there are no scores, as a clause.
        run: Facts of the run.
        data: Facts of the data.
        model: Facts of the model.
        answers: Answers of people.
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

    @property
    def intended_use(self) -> str | None:
        """Intended use: the answer of people, or else that of the bundle's metadata."""
        return self.answers.intended_use or self.model.intended_use
