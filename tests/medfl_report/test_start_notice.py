"""Report and card name the weights from which a run started."""

from __future__ import annotations

from pathlib import Path

import torch

from medfl.engine.runs.records import read_run
from medfl.engine.runs.start_source import find_start
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, make_task
from medfl_report.cards.checklist_answers import _training_answers
from medfl_report.cards.run_facts import read_run_facts
from medfl_report.groups import group_runs
from medfl_report.notices import make_notices


def test_report_and_card_name_the_weights(tmp_path: Path) -> None:
    registry = load_plugins()
    torch.save(SmallNet().state_dict(), tmp_path / "weights.pt")
    start = find_start(str(tmp_path / "weights.pt"), registry, ("head",))
    Case(registry, "fedavg").run(tmp_path / "begun", task=make_task().with_start(start), rounds=1)
    Case(registry, "fedavg").run(tmp_path / "drawn", rounds=1)
    begun, drawn = read_run(tmp_path / "begun"), read_run(tmp_path / "drawn")
    named = {"weights.pt", start.sha256[:12], "head"}
    texts = [notice.text for notice in make_notices(group_runs([begun])) if start.sha256[:12] in notice.text]
    assert len(texts) == 1
    assert all(word in texts[0] for word in named)
    facts = read_run_facts(begun, None, registry)
    assert all(word in facts.start for word in named)
    assert _training_answers(facts)["start"] == facts.start
    assert read_run_facts(drawn, None, registry).start == ""
    assert not [notice for notice in make_notices(group_runs([drawn])) if "started from" in notice.text]
