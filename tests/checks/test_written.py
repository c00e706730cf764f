"""Metric exact_match is refused before any job where no answers are written, and counted by a plan."""

from pathlib import Path
from typing import Any

import pytest

from lamina import paths
from lamina.data.calibrations import Row, Sample
from lamina.engine.footprint import Shape
from lamina.errors import LaminaError
from lamina.models.workload import GENERATION_FACTOR
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.cost.estimate import Works, count_tokens
from lamina_workflow.cost.work import BENCHMARK_BATCH, Tokens
from lamina_workflow.stages.sweep import ScoreRelevance, SweepUnits
from tests import ROOT
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards

N_LAYERS = 8
SORTING = {"task": "microworld_sorting", "limit": 50}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    return write_model_and_data(tmp_path)


def configure(calibration: RawConfig, **selector: Any) -> RawConfig:
    """A study that chooses by written answers to a calibration."""
    raw = minimal_config()
    set_key(raw, "calibrations.asked", calibration)
    set_key(raw, "calibrations.solved", SORTING | {"answers": "model"})
    set_key(raw, "selectors.written", {"metric": "exact_match", **selector})
    study = {"models": ["small"], "calibrations": ["asked"], "selectors": ["written"]}
    raw["studies"] = {"prune": study | {"removed": [2], "tasks": "all"}}
    return raw


def make_benchmarks(config: Configuration, n_written: int = 0) -> dict[tuple[str, str], Tokens]:
    """Tokens of each benchmark of the study, with up to `n_written` of them in written answers."""
    names = (*config.benchmarks.tasks, *config.benchmarks.perplexity)
    return {("small", name): Tokens(10, 100, 100, 100, longest_written=n_written) for name in names}


def load(root: Path, **selector: Any) -> Configuration:
    return load_configuration(configure(SORTING, **selector), root)


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        ({"task": "microworld_recall"}, "'microworld_recall' scores by multiple_choice"),
        ({"task": "arc_easy"}, "'arc_easy' scores by multiple_choice"),
        ({"task": "truthfulqa_gen"}, "'truthfulqa_gen' has no exact_match"),
        ({"tasks": ["microworld_sorting", "microworld_facts"]}, "'microworld_facts' scores by"),
        ({"text": "microworld_corpus"}, "holds no questions of a task"),
        ({"choices": "mine.jsonl"}, "holds no questions of a task"),
        ({"mixture": {"recall": 1}}, "holds no questions of a task"),
    ],
)
def test_a_calibration_without_written_answers_is_refused(
    root: Path, calibration: RawConfig, reason: str
) -> None:
    with pytest.raises(LaminaError, match="calibrations.asked: `metric: exact_match`") as caught:
        load_configuration(configure(calibration), root)

    assert reason in str(caught.value)
    assert "output_type: generate_until" in str(caught.value)


def test_also_a_map_and_a_further_calibration_need_written_answers(root: Path) -> None:
    with pytest.raises(LaminaError, match="calibrations.corpus: `metric: exact_match`"):
        load(root, also={"corpus": 1})
    raw = configure(SORTING)
    raw["studies"]["maps"] = {
        "models": ["small"],
        "calibrations": ["recall"],
        "metrics": ["cosine", "exact_match"],
    }
    with pytest.raises(LaminaError, match="calibrations.recall: `metric: exact_match`"):
        load_configuration(raw, root)


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({"strategy": "block"}, "'exact_match' has no value for a run of layers"),
        ({"strategy": "pairwise"}, "by written answers and not by a loss per sample"),
        ({"strategy": "portfolio"}, "by written answers and not by a loss per sample"),
        (
            {"metric": "perplexity", "strategy": "portfolio", "members": ["exact_match"]},
            "'exact_match' proposes no sets",
        ),
        ({"repair": "ghost"}, "'exact_match' is not measured with a repair in place"),
    ],
)
def test_a_strategy_that_cannot_use_written_answers_is_refused(
    root: Path, selector: RawConfig, words: str
) -> None:
    with pytest.raises(LaminaError, match=r"^selectors.written") as caught:
        load(root, **selector)

    assert words in str(caught.value)


def test_questions_that_judge_a_portfolio_need_written_answers(root: Path) -> None:
    judged = {"metric": "perplexity", "strategy": "portfolio", "judge_by": "written"}
    load(root, **judged)
    with pytest.raises(LaminaError, match="calibrations.corpus: `judge_by: written` counts"):
        load(root, **judged, judge="corpus")


@pytest.mark.parametrize(
    "calibration",
    [
        {"task": "gsm8k", "limit": 50},
        SORTING,
        SORTING | {"answers": "model"},
        SORTING | {"answers": "model", "keep": "right"},
    ],
)
def test_a_task_of_written_answers_may_choose(root: Path, calibration: RawConfig) -> None:
    load_configuration(configure(calibration), root)


def test_only_jobs_that_write_answers_read_the_questions(root: Path) -> None:
    raw = configure(SORTING)
    config = load_configuration(raw, root)
    wildcards = {"model": "small", "calibration": "asked", "removed": 0, "block": 0}

    writing = SweepUnits.of(config, make_wildcards(selector="base/generate/layer", **wildcards))
    removing = SweepUnits.of(config, make_wildcards(selector="base/removal/layer", **wildcards))
    scoring = ScoreRelevance.of(config, make_wildcards(selector="base/generate/layer", **wildcards))

    assert writing.options()["asked"] == SORTING
    assert writing.modules == ("lamina.evaluation.written_removals",)
    assert "asked" not in removing.options()
    assert scoring.metrics == ["exact_match"]


def step_tokens(n_questions: int, longest_answer: int) -> float:
    """Tokens of prompts that take as long as all steps of writing: one reads all weights."""
    n_together = min(n_questions, BENCHMARK_BATCH)
    n_steps = n_questions * longest_answer / n_together
    return n_steps * (GENERATION_FACTOR - 1 + n_together)


def test_a_plan_counts_all_answers_at_their_longest(root: Path) -> None:
    """Two steps: of 8 layers, then of 7; every candidate runs the layers that it has."""
    config = load(root)
    n_questions, n_prompt_tokens, longest_answer = 50, 12, 16
    row = Row((5,) * n_prompt_tokens, (6, 7), 3)
    samples = [Sample(index, "generated", 0, (row,), str(index)) for index in range(n_questions)]
    tokens = count_tokens(samples, longest_answer)
    manifest = {"n_layers": N_LAYERS, "hidden_size": 8, "layer_parameters": 100}
    shape = Shape(N_LAYERS, 8, 16, 100, 4)
    works = Works(
        config,
        {"small": manifest},
        {"small": shape},
        {("small", "asked"): tokens},
        make_benchmarks(config),
    )

    sweeps = list(works._estimate_sweeps())

    n_tokens = n_questions * n_prompt_tokens + step_tokens(n_questions, longest_answer)
    layer_tokens = {work.outputs[0]: work.cost.layer_tokens for work in sweeps}
    assert layer_tokens == pytest.approx(
        {
            paths.sweep_block("small/asked/base/generate/layer", 0, 0): n_tokens * (8 + 8 * 7),
            paths.sweep_block("small/asked/written", 1, 0): n_tokens * (7 + 7 * 6),
        }
    )
    (note,) = works.describe_answers()
    assert (
        f"2 sweeps, 0 searches and 0 jobs of benchmarks generate up to {n_questions * longest_answer * (9 + 8):,} tokens"
        in note
    )


def test_a_plan_counts_the_answers_of_the_last_sets_of_a_portfolio(root: Path) -> None:
    """Four sets, bare and with one repair, on the half of the questions that judges."""
    judged = {"metric": "perplexity", "strategy": "portfolio", "repairs": ["ghost"]}
    row = Row((5,) * 12, (6, 7), 3)
    samples = [Sample(index, "generated", 0, (row,), str(index)) for index in range(50)]
    tokens = {("small", "asked"): count_tokens(samples, 16)}
    manifest = {
        "n_layers": N_LAYERS,
        "hidden_size": 8,
        "layer_parameters": 100,
        "attention_share": {"parameters": 0.3, "latency": 0.3},
    }
    shape = Shape(N_LAYERS, 8, 16, 100, 4)
    layer_tokens = []
    for judge_by in ("loss", "written"):
        config = load(root, **judged, judge_by=judge_by)
        works = Works(
            config, {"small": manifest}, {"small": shape}, tokens, make_benchmarks(config)
        )
        (search,) = list(works._estimate_searches())
        layer_tokens.append(search.cost.layer_tokens)

    n_tokens = 25 * 12 + step_tokens(25, 16)
    assert layer_tokens[1] - layer_tokens[0] == pytest.approx(8 * n_tokens * (N_LAYERS - 2))
    (note,) = works.describe_answers()
    assert (
        f"0 sweeps, 1 searches and 0 jobs of benchmarks generate up to {25 * 16 * 8:,} tokens"
        in note
    )


def test_a_plan_says_how_many_tokens_benchmarks_write_at_most(root: Path) -> None:
    """The base model, and one model cut by the written answers of a calibration."""
    config = load(root)
    manifest = {"n_layers": N_LAYERS, "hidden_size": 8, "layer_parameters": 100}
    tokens = {("small", "asked"): Tokens(50, 500, 500, 500)}
    benchmarks = make_benchmarks(config, n_written=160)
    works = Works(config, {"small": manifest}, {}, tokens, benchmarks)

    (note,) = works.describe_answers()

    n_jobs = 2 * len(benchmarks)
    assert f"{n_jobs} jobs of benchmarks generate up to {n_jobs * 160:,} tokens" in note
