"""The reporting checklists CLAIM and TRIPOD+AI, with the items that can be answered from the files of a run.

CLAIM: Tejani et al. 2024, Checklist for Artificial Intelligence in Medical Imaging (CLAIM): 2024 update, Radiology:
Artificial Intelligence 6(4). TRIPOD+AI: Collins et al. 2024, TRIPOD+AI statement, BMJ 385:e078378. The items are
paraphrased here in a few words; the papers have the full text.

The state of an item is answered, not applicable (with a reason) or unknown. People answer the items that no program can
answer in a file (``medfl card --answers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ANSWERED, NOT_APPLICABLE, UNKNOWN = "answered", "not applicable", "unknown"
"""States of a checklist item on a card: it has an answer, does not apply to the run, or is unanswered."""


@dataclass(frozen=True)
class ChecklistItem:
    """Item of a reporting checklist.

    Attributes:
        about: Subject of the item, paraphrased.
        topic: Key of the answer in `medfl_report.cards.checklist_answers.answer_topics`; empty if the files of a run
            can't answer the item.
    """

    about: str
    topic: str = ""


CLAIM: Mapping[str, ChecklistItem] = {
    "1": ChecklistItem("Title: identifies an AI method and its kind", "title"),
    "2": ChecklistItem("Abstract: design, methods, results, conclusions"),
    "3": ChecklistItem("Background, intended use and role", "intended_use"),
    "4": ChecklistItem("Aims, objectives, hypotheses"),
    "5": ChecklistItem("Prospective or retrospective"),
    "6": ChecklistItem("Goal of the study"),
    "7": ChecklistItem("Sources of the data", "sources"),
    "8": ChecklistItem("Inclusion and exclusion", "exclusions"),
    "9": ChecklistItem("Preprocessing", "preprocessing"),
    "10": ChecklistItem("Selection of subsets of the data", "partition"),
    "11": ChecklistItem("De-identification"),
    "12": ChecklistItem("Missing data"),
    "13": ChecklistItem("Protocol of image acquisition"),
    "14": ChecklistItem("How the reference standard was obtained"),
    "15": ChecklistItem("Rationale for the reference standard"),
    "16": ChecklistItem("Annotators of the reference standard"),
    "17": ChecklistItem("Annotation of the test set"),
    "18": ChecklistItem("Variability between and within annotators"),
    "19": ChecklistItem("How data were assigned to partitions", "partition"),
    "20": ChecklistItem("Level at which partitions are disjoint", "disjoint"),
    "21": ChecklistItem("Intended size of the test sample"),
    "22": ChecklistItem("The model in detail", "model"),
    "23": ChecklistItem("Software and packages", "software"),
    "24": ChecklistItem("Initial parameters", "start"),
    "25": ChecklistItem("Training", "training"),
    "26": ChecklistItem("How the final model was selected", "selection"),
    "27": ChecklistItem("Ensembles"),
    "28": ChecklistItem("Measures of performance", "metrics"),
    "29": ChecklistItem("Measures of uncertainty", "uncertainty"),
    "30": ChecklistItem("Robustness and sensitivity"),
    "31": ChecklistItem("Explainability"),
    "32": ChecklistItem("Evaluation on internal data", "internal"),
    "33": ChecklistItem("Testing on external data", "external"),
    "34": ChecklistItem("Registration of a clinical trial"),
    "35": ChecklistItem("Numbers of patients included and excluded", "numbers"),
    "36": ChecklistItem("Demographic and clinical characteristics of each partition", "characteristics"),
    "37": ChecklistItem("Performance and its uncertainty", "performance"),
    "38": ChecklistItem("Diagnostic performance and its precision", "performance"),
    "39": ChecklistItem("Analysis of failures"),
    "40": ChecklistItem("Limitations", "limitations"),
    "41": ChecklistItem("Implications for practice"),
    "42": ChecklistItem("Full protocol or further technical details", "details"),
    "43": ChecklistItem("Availability of software, model and data", "availability"),
    "44": ChecklistItem("Funding and the role of funders"),
}
"""Maps each item number of CLAIM to its item."""

TRIPOD_AI: Mapping[str, ChecklistItem] = {
    "1": ChecklistItem("Title: a prediction model, its population and outcome"),
    "2": ChecklistItem("Abstract"),
    "3a": ChecklistItem("Healthcare context and existing models"),
    "3b": ChecklistItem("Target population, purpose in the care pathway, users"),
    "3c": ChecklistItem("Known health inequalities"),
    "4": ChecklistItem("Objectives: development, evaluation or both", "objectives"),
    "5a": ChecklistItem("Sources of the data and their representativeness", "sources"),
    "5b": ChecklistItem("Dates of the data"),
    "6a": ChecklistItem("Setting: number and location of centres"),
    "6b": ChecklistItem("Eligibility", "exclusions"),
    "6c": ChecklistItem("Treatments"),
    "7": ChecklistItem("Preparation of the data, the same for all groups", "preprocessing"),
    "8a": ChecklistItem("The outcome that is predicted", "outcome"),
    "8b": ChecklistItem("Assessors of the outcome"),
    "8c": ChecklistItem("Blinding of the assessment"),
    "9a": ChecklistItem("Selection of predictors", "predictors"),
    "9b": ChecklistItem("Definition and measurement of predictors"),
    "9c": ChecklistItem("Assessors of subjective predictors", "assessors"),
    "10": ChecklistItem("How the sample size was determined"),
    "11": ChecklistItem("Missing data"),
    "12a": ChecklistItem("Data for development and for evaluation", "partition"),
    "12b": ChecklistItem("How predictors were handled", "preprocessing"),
    "12c": ChecklistItem("Type of model, model building, internal validation", "training"),
    "12d": ChecklistItem("Heterogeneity between clusters", "heterogeneity"),
    "12e": ChecklistItem("Measures of performance", "metrics"),
    "12f": ChecklistItem("Updating of the model", "updating"),
    "12g": ChecklistItem("How predictions were computed for evaluation", "predictions"),
    "13": ChecklistItem("Methods for class imbalance", "imbalance"),
    "14": ChecklistItem("Fairness", "fairness"),
    "15": ChecklistItem("Output of the model", "output"),
    "16": ChecklistItem("Differences between development and evaluation data", "differences"),
    "17": ChecklistItem("Ethical approval and consent"),
    "18a": ChecklistItem("Funding"),
    "18b": ChecklistItem("Conflicts of interest"),
    "18c": ChecklistItem("Protocol"),
    "18d": ChecklistItem("Registration"),
    "18e": ChecklistItem("Data sharing", "data_sharing"),
    "18f": ChecklistItem("Code sharing", "code"),
    "19": ChecklistItem("Involvement of patients and the public"),
    "20a": ChecklistItem("Flow of participants", "numbers"),
    "20b": ChecklistItem("Characteristics of participants", "characteristics"),
    "20c": ChecklistItem("Development data beside evaluation data", "numbers"),
    "21": ChecklistItem("Numbers of participants and events in each analysis", "numbers"),
    "22": ChecklistItem("The full model, to predict for others", "model"),
    "23a": ChecklistItem("Performance with intervals, also of subgroups", "performance"),
    "23b": ChecklistItem("Heterogeneity of performance between clusters", "heterogeneity"),
    "24": ChecklistItem("Results of updating", "updating"),
    "25": ChecklistItem("Interpretation"),
    "26": ChecklistItem("Limitations", "limitations"),
    "27a": ChecklistItem("Input of poor quality, or missing"),
    "27b": ChecklistItem("Interaction and expertise that users need"),
    "27c": ChecklistItem("Next steps, applicability, generalisability"),
}
"""Maps each item number of TRIPOD+AI to its item."""

CHECKLISTS: Mapping[str, Mapping[str, ChecklistItem]] = {"claim": CLAIM, "tripod_ai": TRIPOD_AI}
"""Maps the name of each checklist, as in an answers file, to its items by number."""

CHECKLIST_TITLES = {"claim": "CLAIM 2024", "tripod_ai": "TRIPOD+AI"}
"""Maps the name of each checklist to its title."""
