"""The records of a made-up model card."""

from __future__ import annotations

from run_records import VERSIONS, run_file

from medfl_report.cards.card_record import CardAnswers, CardFacts, DataFacts, ModelFacts, RunFacts
from medfl_report.cards.card_scores import CalibrationBin, CardRow, CardScores, CardTable, ScoreEstimate
from medfl_report.cards.evidence import CardFile, CodeVersions, Evidence

RUN = RunFacts(
    method="fedavg",
    status="finished",
    rounds=3,
    planned_rounds=3,
    model_round=3,
    seed=0,
    fold=None,
    folds=None,
    objective="multiclass",
    metrics=("auc",),
    networks=("cnn4",),
    loss="CrossEntropyLoss()",
    optimizer="SGD",
    sites=("north", "south"),
    model_kind="global",
    exported_kinds=("global",),
    image_counts=None,
    settings=(),
    environment=(),
    data_digest="data",
    costs=(),
    privacy=None,
    sections=(),
    warnings=(),
    alerts=(),
    leaks=(),
    best_round=None,
    server_scores=(),
)

FACTS = CardFacts(
    title="fedavg on cells: global model",
    site=None,
    data_name="cellulés",
    output_names=("x", "y"),
    method_summary="",
    method_paper="",
    has_test_cases=False,
    unscored_because="there are no predictions of test images",
    run=RUN,
    data=DataFacts(),
    model=ModelFacts(
        networks=("cnn4",), intended_use="Research.", input=None, output=None, channels=(), takes_images=True
    ),
    answers=CardAnswers(),
)

SCORES = CardScores(
    tables=(
        CardTable(
            part="all",
            metrics=("auc", "accuracy"),
            rows=(
                CardRow(
                    name="all test images",
                    cases=20,
                    patients=None,
                    scores={"auc": ScoreEstimate(value=0.8, low=1e-05, high=0.9)},
                ),
                CardRow(name="mean of sites", cases=None, patients=None, scores={}),
            ),
        ),
    ),
    bins=(CalibrationBin(images=20, mean=0.75, share=0.5),),
)

EVIDENCE = Evidence(
    facts=FACTS,
    scores=SCORES,
    card=CardFile(name="README.md", medfl_version="0.1.0"),
    files={"README.md": "0" * 64, "configs/link": "link to ../elsewhere"},
    files_digest="1" * 64,
    predictions={"north": "2" * 64},
    data_digests={"north": "3" * 64},
    code=CodeVersions(versions=VERSIONS, plugins={}, card_source="4" * 64),
    identity=run_file().identity,
    identity_digest="5" * 64,
    run_files={"run.json": "6" * 64},
)
