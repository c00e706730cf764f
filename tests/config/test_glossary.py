"""Names are explained from the entries: what a class does, what it was told, and no name that no study lists."""

import pytest
import yaml

from lamina.options import healings, repairs, selectors
from lamina.options.entry import Choice
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.report import glossary
from tests import ROOT


def test_every_name_that_a_study_lists_is_explained_and_no_other() -> None:
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))
    told = glossary.build_glossary(load_configuration(raw, ROOT))
    assert {section: list(told[section]) for section in ("selectors", "repairs", "healings")} == {
        "selectors": ["portfolio", "accuracy", "cosine", "random"],
        "repairs": ["ghost", "ghost_mixed", "train_neighbour"],
        "healings": ["lora"],
    }


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            selectors.Selector.from_options({"strategy": "random"}),
            "Draws what is removed: the baseline, which measures nothing.",
        ),
        (
            selectors.Selector.from_options(
                {"metric": "cosine", "repair": None, "protect": [0, -1]}
            ),
            "Removes the lowest unit and scores the rest again. Units are compared by cosine: how much the unit turns "
            "the residual stream. Options: protect [0, -1].",
        ),
        (
            repairs.Repair.from_options(
                {"method": "ghost", "data": {"own": 1, "prose": 0.1}, "rank": 8}
            ),
            "One linear map of the residual stream at a removed run of layers, by ridge regression. Fitted on the "
            "plan's own calibration (weight 1) and prose (weight 0.1). Options: rank 8.",
        ),
        (
            healings.Healing.from_options(
                {"method": "lora", "data": "prose", "objective": "distill"}
            ),
            "Low-rank updates of the remaining projections, and the patches of the repair. Fitted on prose "
            "(weight 1). Options: objective distill.",
        ),
    ],
)
def test_an_entry_in_words(entry: Choice, words: str) -> None:
    assert glossary.describe_entry(entry) == words


def test_what_is_in_the_loop_and_beside_is_told() -> None:
    entry = selectors.Selector.from_options(
        {"metric": "accuracy", "repair": "kept", "also": {"prose": 0.5}}
    )
    told = glossary.describe_entry(entry)
    assert (
        "While units are scored, kept is in place." in told
        and "scored on prose (weight 0.5) as well" in told
    )
