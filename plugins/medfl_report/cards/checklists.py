"""Two checklists for papers about such models, with the items that the files of a run can answer.

CLAIM: Tejani et al. 2024, Checklist for Artificial Intelligence in Medical Imaging (CLAIM): 2024 update, Radiology:
Artificial Intelligence 6(4). TRIPOD+AI: Collins et al. 2024, TRIPOD+AI statement, BMJ 385:e078378. The items are
described here in a few words of our own; the papers have the full text.

An item is answered from facts, or not applicable for the reason beside it, or unknown. A file of answers
(``medfl card --answers``) answers what no program can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ANSWERED, NOT_APPLICABLE, UNKNOWN = "answered", "not applicable", "unknown"
"""States of an item."""


@dataclass(frozen=True)
class Item:
    """An item of a checklist.

    Attributes:
        about: Subject of the item.
        topic: Key of the answer in `medfl_report.cards.answers.topic_answers`; empty if no fact of a card answers it.
    """

    about: str
    topic: str = ""


CLAIM: Mapping[str, Item] = {
    "1": Item("Title: identifies an AI method and its kind", "title"),
    "2": Item("Abstract: design, methods, results, conclusions"),
    "3": Item("Background, intended use and role", "intended_use"),
    "4": Item("Aims, objectives, hypotheses"),
    "5": Item("Prospective or retrospective"),
    "6": Item("Goal of the study"),
    "7": Item("Sources of the data", "sources"),
    "8": Item("Inclusion and exclusion", "exclusions"),
    "9": Item("Preprocessing", "preprocessing"),
    "10": Item("Selection of subsets of the data", "partition"),
    "11": Item("De-identification"),
    "12": Item("Missing data"),
    "13": Item("Protocol of image acquisition"),
    "14": Item("How the reference standard was obtained"),
    "15": Item("Why that reference standard"),
    "16": Item("Who annotated it"),
    "17": Item("Annotation of the test set"),
    "18": Item("Variability between and within annotators"),
    "19": Item("How data were put into partitions", "partition"),
    "20": Item("Level at which partitions are disjoint", "disjoint"),
    "21": Item("Intended size of the test sample"),
    "22": Item("The model in detail", "model"),
    "23": Item("Software and packages", "software"),
    "24": Item("Initial parameters", "start"),
    "25": Item("Training", "training"),
    "26": Item("How the final model was chosen", "selection"),
    "27": Item("Ensembles"),
    "28": Item("Measures of performance", "metrics"),
    "29": Item("Measures of uncertainty", "uncertainty"),
    "30": Item("Robustness and sensitivity"),
    "31": Item("Explainability"),
    "32": Item("Evaluation on internal data", "internal"),
    "33": Item("Testing on external data", "external"),
    "34": Item("Registration of a clinical trial"),
    "35": Item("Numbers of patients included and excluded", "numbers"),
    "36": Item("Demographic and clinical characteristics of each partition", "characteristics"),
    "37": Item("Performance and its uncertainty", "performance"),
    "38": Item("Diagnostic performance and its precision", "performance"),
    "39": Item("Analysis of failures"),
    "40": Item("Limitations", "limitations"),
    "41": Item("Implications for practice"),
    "42": Item("Full protocol or further technical details", "details"),
    "43": Item("Availability of software, model and data", "availability"),
    "44": Item("Funding and the role of funders"),
}
"""Number to item."""

TRIPOD_AI: Mapping[str, Item] = {
    "1": Item("Title: a prediction model, its population and outcome"),
    "2": Item("Abstract"),
    "3a": Item("Healthcare context and existing models"),
    "3b": Item("Target population, purpose in the care pathway, users"),
    "3c": Item("Known health inequalities"),
    "4": Item("Objectives: development, evaluation or both", "objectives"),
    "5a": Item("Sources of the data and their representativeness", "sources"),
    "5b": Item("Dates of the data"),
    "6a": Item("Setting: number and location of centres"),
    "6b": Item("Eligibility", "exclusions"),
    "6c": Item("Treatments"),
    "7": Item("Preparation of the data, alike for all groups", "preprocessing"),
    "8a": Item("The outcome that is predicted", "outcome"),
    "8b": Item("Who assessed the outcome"),
    "8c": Item("Blinding of the assessment"),
    "9a": Item("Choice of predictors", "predictors"),
    "9b": Item("Definition and measurement of predictors"),
    "9c": Item("Who assessed subjective predictors", "assessors"),
    "10": Item("How the size of the sample was arrived at"),
    "11": Item("Missing data"),
    "12a": Item("Which data for development, which for evaluation", "partition"),
    "12b": Item("How predictors were handled", "preprocessing"),
    "12c": Item("Kind of model, steps of building it, internal validation", "training"),
    "12d": Item("Heterogeneity between clusters", "heterogeneity"),
    "12e": Item("Measures of performance", "metrics"),
    "12f": Item("Updating of the model", "updating"),
    "12g": Item("How predictions were computed for evaluation", "predictions"),
    "13": Item("Methods for unlike sizes of classes", "imbalance"),
    "14": Item("Fairness", "fairness"),
    "15": Item("What the model puts out", "output"),
    "16": Item("Differences between development and evaluation data", "differences"),
    "17": Item("Ethical approval and consent"),
    "18a": Item("Funding"),
    "18b": Item("Conflicts of interest"),
    "18c": Item("Protocol"),
    "18d": Item("Registration"),
    "18e": Item("Sharing of data", "data_sharing"),
    "18f": Item("Sharing of code", "code"),
    "19": Item("Involvement of patients and the public"),
    "20a": Item("Flow of participants", "numbers"),
    "20b": Item("Characteristics of participants", "characteristics"),
    "20c": Item("Development data beside evaluation data", "numbers"),
    "21": Item("Numbers of participants and events in each analysis", "numbers"),
    "22": Item("The full model, to predict for others", "model"),
    "23a": Item("Performance with intervals, also of subgroups", "performance"),
    "23b": Item("Heterogeneity of performance between clusters", "heterogeneity"),
    "24": Item("Results of updating", "updating"),
    "25": Item("Interpretation"),
    "26": Item("Limitations", "limitations"),
    "27a": Item("Input of poor quality, or missing"),
    "27b": Item("Interaction and expertise that users need"),
    "27c": Item("Next steps, applicability, generalisability"),
}
"""Number to item."""

CHECKLISTS: Mapping[str, Mapping[str, Item]] = {"claim": CLAIM, "tripod_ai": TRIPOD_AI}
"""Maps the name of a checklist in a file of answers to its items."""

TITLES = {"claim": "CLAIM 2024", "tripod_ai": "TRIPOD+AI"}
"""Maps the name of a checklist to its heading in a card."""
