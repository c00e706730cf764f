"""Why a plan removes what it does is said in sentences with the numbers of the plan."""

from dataclasses import replace

from lamina.selection.explaining import explain_plan
from lamina.selection.plans import Plan

PLAN = Plan(
    model="m",
    calibration="task",
    selector="best",
    removed=2,
    metric="perplexity",
    strategy="portfolio",
    kind="layer",
    units=["4", "7"],
    choice={
        "base_loss": 1.5,
        "member": "exchange",
        "repair": "ghost_mixed",
        "loss": 1.8054,
        "corrected_loss": 1.951,
        "n_samples": 451,
        "repairs": {"none": 2.6815, "ghost_mixed": 1.8054},
        "members": {
            "block": {
                "units": ["4", "5"],
                "repair": "none",
                "loss": 1.9,
                "more": 0.1136,
                "n_samples": 100,
            },
            "cosine": {
                "units": ["7", "4"],
                "repair": "ghost_mixed",
                "loss": 1.8054,
                "more": 0.0,
                "n_samples": 451,
            },
        },
    },
)


def test_a_portfolio_names_its_winner_and_how_far_behind_the_others_were() -> None:
    lines = explain_plan(PLAN)

    assert lines[1] == "It removes layers 4, 7."
    assert "compared as wholes" in lines[2]
    assert "one layer was exchanged for another. On 451 such documents" in lines[3]
    assert "1.805 nats with repair ghost_mixed; the base model's is 1.500" in lines[3]
    assert "The same set without a repair: 2.682." in lines
    assert (
        "block proposed layers 4, 5: without a repair, its loss is 0.114 higher (n = 100)." in lines
    )
    assert "cosine proposed the same set." in lines
    own_words = {"member", "judge", "tournament"}
    assert not own_words & set(" ".join(lines).lower().split())


def test_a_plan_of_size_0_says_what_runs_again() -> None:
    plan = replace(PLAN, removed=0, units=["9", "4-5x2~"], strategy="given", choice={})

    lines = explain_plan(plan)

    assert lines[0].endswith("how to change m at size 0, counted in layers: as many layers.")
    assert lines[1:] == ["It removes layer 9, runs layers 4 to 5 twice (damped)."]


def test_a_set_that_one_way_to_choose_proposed_names_it() -> None:
    lines = explain_plan(replace(PLAN, choice=PLAN.choice | {"member": "cosine"}))

    assert lines[3].startswith("cosine proposed this set. On 451 such documents")


def test_an_iterative_plan_has_a_line_for_each_removal() -> None:
    plan = replace(
        PLAN,
        strategy="iterative",
        metric="accuracy",
        choice={},
        scores=[0.17486, 0.2],
        accuracy_before=[0.982, None],
        accuracy_after=[0.854, None],
    )

    assert explain_plan(plan)[2:] == [
        "Layer 4: its relevance by accuracy is 0.1749; without it, accuracy on the calibration "
        "went from 0.982 to 0.854.",
        "Layer 7: its relevance by accuracy is 0.2.",
    ]


def test_a_refused_plan_says_why() -> None:
    plan = replace(PLAN, units=[], refused="Too few layers are left. Ask for fewer.")

    assert explain_plan(plan)[1:] == ["It has no plan: Too few layers are left. Ask for fewer."]
