"""Names of a configuration are explained from their entries: against sentences spelled out."""

import pytest
import yaml

from lamina.options.entry import Choice
from lamina.options.healings import Healing
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.report import glossary
from tests import ROOT


def test_every_name_that_a_study_lists_is_explained_and_no_other() -> None:
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))

    explained = glossary.build_glossary(load_configuration(raw, ROOT))

    assert list(explained["selectors"]) == ["portfolio", "accuracy", "cosine", "random"]
    assert list(explained["repairs"]) == ["ghost", "ghost_mixed", "train_neighbour"]
    assert list(explained["healings"]) == ["lora"]


@pytest.mark.parametrize(
    ("entry", "sentences"),
    [
        (
            Selector.from_options({"strategy": "random"}),
            "Draws units at random: the baseline, which measures nothing.",
        ),
        (
            Selector.from_options({"metric": "cosine", "repair": None, "protect": [0, -1]}),
            "Removes the unit with the lowest score, then scores the rest again."
            " Units are compared by cosine: cosine distance of the residual stream across the unit."
            " Options: protect [0, -1].",
        ),
        (
            Repair.from_options({"method": "ghost", "data": {"own": 1, "prose": 0.1}, "rank": 8}),
            "One linear map of the residual stream at a removed run of layers, by ridge regression."
            " Fitted on the plan's own calibration (weight 1) and prose (weight 0.1)."
            " Options: rank 8.",
        ),
        (
            Healing.from_options({"method": "lora", "data": "prose", "objective": "distill"}),
            "Low-rank updates of the remaining projections, and the patches of the repair."
            " Fitted on prose (weight 1). Options: objective distill.",
        ),
    ],
)
def test_an_entry_in_words(entry: Choice, sentences: str) -> None:
    assert glossary.describe_entry(entry) == sentences


def test_a_selector_says_what_repairs_in_its_loop_and_what_it_scores_on_as_well() -> None:
    options = {"metric": "accuracy", "repair": "kept", "also": {"prose": 0.5}}

    sentences = glossary.describe_entry(Selector.from_options(options))

    assert "Repair kept is in place while units are scored." in sentences
    assert "also scored on prose (weight 0.5)" in sentences
