"""The options, modules and files of jobs, from a configuration and the wildcards of a rule."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import LaminaError
from lamina.variant import Variant
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.stages import changes, prepare
from lamina_workflow.stages.benchmark import BenchmarkEfficiency, BenchmarkPerplexity, BenchmarkTask
from lamina_workflow.stages.export import ExportVariant
from lamina_workflow.stages.heal import HealVariant
from lamina_workflow.stages.job import Wildcards
from lamina_workflow.stages.prune import PruneStep, SearchPlans
from lamina_workflow.stages.repair import FitPatch
from lamina_workflow.stages.sweep import ScoreRelevance, SweepUnits
from lamina_workflow.study import requests
from lamina_workflow.study.sweeps import list_sweeps
from lamina_workflow.study.tables import files_of_table
from tests import ROOT
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards

GHOST_MODULE = "lamina.repairs.methods.ghost"
CORPUS_FILE = "results/calibrations/small/corpus.parquet"


def job_wildcards(selector: str = "accuracy", removed: int = 0, **others: Any) -> Wildcards:
    """Wildcards of a job of `small` on `recall`, unless others are named."""
    named = {"model": "small", "calibration": "recall", "selector": selector, "removed": removed}
    return make_wildcards(**named | others)


def make_sweep(
    configuration: Configuration, selector: str, removed: int = 0, block: int = 0
) -> SweepUnits:
    return SweepUnits.of(configuration, job_wildcards(selector, removed, block=block))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_model_and_data(tmp_path)


@pytest.fixture
def raw() -> RawConfig:
    raw = minimal_config()
    raw["selectors"] |= {
        "once": {"metric": "accuracy", "strategy": "one_shot"},
        "taylor": {"metric": "taylor"},
        "looped": {"metric": "accuracy", "protect": [0], "seed": 4, "repair": "ghost"},
        "looped_once": {"metric": "accuracy", "strategy": "one_shot", "repair": "ghost"},
        "pairs": {"metric": "accuracy", "strategy": "pairwise", "held_back": 0.5},
    }
    return raw


@pytest.fixture
def configuration(raw: RawConfig, root: Path) -> Configuration:
    return load_configuration(raw, root)


def test_a_sweep_of_the_base_model_depends_on_its_pass_and_units(
    configuration: Configuration,
) -> None:
    options = make_sweep(configuration, "base/removal/layer", block=1).options()

    assert options["pass_"] == "removal"
    assert options["units"] == "layer"
    assert options["block"] == 1
    assert options["keys"] == {
        "model": "small",
        "calibration": "recall",
        "selector": "base",
        "removed": 0,
    }
    assert "loop" not in options


def test_a_sweep_of_a_step_depends_on_nothing_more_of_its_selector(
    configuration: Configuration,
) -> None:
    of_base_model = make_sweep(configuration, "base/removal/layer").options()
    of_step = make_sweep(configuration, "accuracy", 2).options()

    assert of_step == of_base_model | {"keys": of_step["keys"]}


def test_a_sweep_with_a_repair_in_its_loop_depends_on_the_repair(
    raw: RawConfig, root: Path
) -> None:
    set_key(raw, "repairs.ghost.rank", 8)

    sweep = make_sweep(load_configuration(raw, root), "looped", 1)

    assert sweep.options()["loop"] == {
        "repair": {"method": "ghost", "rank": 8},
        "weights": [["recall", 1.0]],
        "protect": [0],
        "seed": 4,
    }


def test_a_selector_without_a_seed_draws_folds_with_the_top_seed(
    raw: RawConfig, root: Path
) -> None:
    sweep = make_sweep(load_configuration(set_key(raw, "seed", 7), root), "looped_once")

    assert sweep.loop is not None
    assert sweep.loop.seed == 7


@pytest.mark.parametrize("selector", ["accuracy", "base/removal/layer"])
def test_a_sweep_without_a_repair_has_no_loop(configuration: Configuration, selector: str) -> None:
    assert make_sweep(configuration, selector).loop is None


@pytest.mark.parametrize(
    ("selector", "modules"),
    [
        ("base/removal/layer", ()),
        ("base/gradient/layer", ("lamina.engine.weights",)),
        ("accuracy", ()),
        ("looped", ("lamina.selection.looped", GHOST_MODULE)),
        ("taylor", ("lamina.engine.weights",)),
    ],
)
def test_a_sweep_loads_its_pass_and_the_repair_in_its_loop(
    configuration: Configuration, selector: str, modules: tuple[str, ...]
) -> None:
    assert make_sweep(configuration, selector).modules == modules


def test_the_estimate_of_cost_loads_the_strategies_of_a_portfolio(
    raw: RawConfig, root: Path
) -> None:
    raw["selectors"]["best"] = {"strategy": "portfolio", "members": ["perplexity", "pairwise"]}
    raw["studies"]["search"] = raw["studies"]["prune"] | {"selectors": ["best"]}

    job = prepare.EstimateCost.of(load_configuration(raw, root), None)

    assert job.modules == (
        "lamina.selection.strategies.pairwise",
        "lamina.selection.strategies.portfolio",
    )


@pytest.fixture
def searching(raw: RawConfig, root: Path) -> Configuration:
    """A study that searches for three sizes."""
    search = {"selectors": ["pairs"], "removed": [3, "50%", 1]}
    raw["studies"]["search"] = raw["studies"]["prune"] | search
    return load_configuration(raw, root)


def test_a_search_has_all_sizes_of_the_studies(searching: Configuration) -> None:
    job = SearchPlans.of(searching, job_wildcards("pairs"))

    options = job.options()
    assert options["sizes"] == [1, 3, 4]
    assert options["keys"] == {"model": "small", "calibration": "recall", "selector": "pairs"}
    assert options["selector"] == {
        "metric": "accuracy",
        "strategy": "pairwise",
        "held_back": 0.5,
    }


def test_a_search_loads_its_strategy_and_metric(searching: Configuration) -> None:
    job = SearchPlans.of(searching, job_wildcards("pairs"))

    assert set(job.modules) == {
        "lamina.selection.sets",
        "lamina.selection.strategies.pairwise",
        "lamina.relevance.metrics.answers",
    }


def test_a_searching_selector_has_a_search_and_no_sweep(searching: Configuration) -> None:
    search = "results/searches/small/recall/pairs.parquet"

    assert requests.searching_selectors(searching) == ["pairs"]
    assert search in files_of_table(searching, "searches")
    assert "pairs" not in {selector for _, _, selector, *_ in list_sweeps(searching)}


@pytest.fixture
def portfolio_raw(raw: RawConfig) -> RawConfig:
    """A portfolio judged on `corpus`, that scores on `prose` and fits its repair on `more`."""
    text = {"text": "microworld_corpus", "documents": "0:9"}
    raw["calibrations"] |= {"prose": text, "more": text}
    raw["repairs"]["mixed"] = {"method": "linearpatch", "data": {"own": 1, "more": 0.1}}
    raw["repairs"]["layer"] = {"method": "streamline"}
    raw["selectors"]["judged"] = {
        "strategy": "portfolio",
        "repairs": ["mixed"],
        "also": {"prose": 0.5},
        "judge": "corpus",
    }
    raw["studies"]["prune"] |= {"selectors": ["judged"], "removed": [2]}
    return raw


def test_a_portfolio_reads_its_judge_and_what_its_repairs_are_fitted_on(
    portfolio_raw: RawConfig, root: Path
) -> None:
    configuration = load_configuration(portfolio_raw, root)

    job = SearchPlans.of(configuration, job_wildcards("judged"))

    prepared = {name for _, name in requests.list_calibrations(configuration)}
    assert job.repairs["mixed"].weights == [("recall", 1.0), ("more", 0.1)]
    assert requests.chosen_on(configuration, "recall", "judged") == {"prose", "more", "corpus"}
    assert prepared >= {"recall", "prose", "more", "corpus"}
    assert set(job.modules) > {
        "lamina.selection.judging",
        "lamina.repairs.methods.linearpatch",
        "lamina.selection.strategies.block",
    }


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("judge", "x", "selectors.judged.judge: 'x'"),
        ("repairs", ["layer"], "selectors.judged.repairs.*not a linear map"),
        ("repairs", ["x"], "selectors.judged.repairs.*'x'"),
    ],
)
def test_a_portfolio_with_an_unknown_judge_or_repair_is_refused(
    portfolio_raw: RawConfig, root: Path, key: str, value: Any, message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        load_configuration(set_key(portfolio_raw, f"selectors.judged.{key}", value), root)


def test_a_removal_pass_is_scored_by_every_metric_but_those_of_weights(
    configuration: Configuration,
) -> None:
    job = ScoreRelevance.of(configuration, job_wildcards("base/removal/layer"))

    assert set(job.metrics) >= {"accuracy", "perplexity", "output_kl", "cosine", "angular"}
    assert "taylor" not in job.metrics
    assert set(job.follows) == set(job.metrics)
    assert job.score == "acc_norm"


@pytest.mark.parametrize(
    ("selector", "metrics"),
    [
        ("base/gradient/layer", ["magnitude", "random", "taylor"]),
        ("base/stream/layer", ["angular", "cosine"]),
    ],
)
def test_a_pass_is_scored_by_the_metrics_that_it_measures(
    configuration: Configuration, selector: str, metrics: list[str]
) -> None:
    assert ScoreRelevance.of(configuration, job_wildcards(selector)).metrics == metrics


def test_scores_of_a_stream_load_the_metrics_of_streams_alone(
    configuration: Configuration,
) -> None:
    job = ScoreRelevance.of(configuration, job_wildcards("base/stream/layer"))

    assert job.modules == ("lamina.relevance.metrics.streams",)


@pytest.mark.parametrize(
    ("selector", "modules"),
    [
        (
            "cosine",
            ("lamina.selection.strategies.iterative", "lamina.relevance.metrics.streams"),
        ),
        ("random", ("lamina.selection.strategies.random",)),
    ],
)
def test_a_plan_loads_its_own_strategy_and_metric_alone(
    configuration: Configuration, selector: str, modules: tuple[str, ...]
) -> None:
    assert PruneStep.of(configuration, job_wildcards(selector, 1)).modules == modules


def test_a_plan_depends_on_its_selector(configuration: Configuration) -> None:
    options = PruneStep.of(configuration, job_wildcards("cosine", 1)).options()

    assert options["selector"] == {
        "strategy": "iterative",
        "metric": "cosine",
        "protect": [0, -1],
    }
    assert "beside" not in options


@pytest.fixture
def with_general_repair(raw: RawConfig, root: Path) -> Configuration:
    """With a repair that is also fitted on general text."""
    raw["repairs"]["general"] = {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
    raw["studies"]["prune"]["repairs"] = ["none", "ghost", "general"]
    return load_configuration(raw, root)


def test_a_patch_has_the_weights_of_its_calibrations(with_general_repair: Configuration) -> None:
    options = FitPatch.of(with_general_repair, job_wildcards(repair="general")).options()

    assert options["repair"]["data"] == {"corpus": 0.1, "own": 1}
    assert options["weights"] == [["recall", 1.0], ["corpus", 0.1]]
    assert options["seed"] == 0


@pytest.mark.parametrize(
    ("repair", "calibration", "weights"),
    [
        ("general", "recall", [("recall", 1.0), ("corpus", 0.1)]),
        ("general", "corpus", [("corpus", pytest.approx(1.1))]),
        ("ghost", "recall", [("recall", 1.0)]),
    ],
)
def test_the_own_calibration_of_a_repair_has_the_first_weight(
    with_general_repair: Configuration, repair: str, calibration: str, weights: list[Any]
) -> None:
    entry = with_general_repair.repairs[repair]

    assert entry.ordered_weights(calibration, 0.0) == weights


def test_a_repair_of_its_own_calibration_alone_has_no_option_of_data(
    with_general_repair: Configuration,
) -> None:
    assert "data" not in with_general_repair.repairs["ghost"].options()


def test_the_data_of_a_repair_in_the_loop_are_prepared_and_checked(
    raw: RawConfig, root: Path
) -> None:
    """Also where the finished plan is not repaired."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"]["looped"]["repair"] = "general"
    raw["studies"]["prune"] |= {"selectors": ["looped"], "repairs": ["none"]}

    configuration = load_configuration(raw, root)

    variant = Variant("small", "recall", "looped", 1)
    assert requests.read_by(configuration, variant) == {"corpus", "recall"}
    assert CORPUS_FILE in files_of_table(configuration, "calibrations")


@pytest.fixture
def with_healings(raw: RawConfig, root: Path) -> Configuration:
    """With healings that train on other data."""
    raw["healings"] |= {
        "other": {"method": "lora", "data": "corpus"},
        "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
        "alone": {"method": "lora", "data": {"own": 2}},
    }
    raw["studies"]["prune"]["healings"] = ["lora", "other", "both", "alone"]
    return load_configuration(raw, root)


@pytest.mark.parametrize(
    ("healing", "calibrations"),
    [
        ("lora", {"recall"}),
        ("alone", {"recall"}),
        ("other", {"recall", "corpus"}),
        ("both", {"recall", "corpus"}),
    ],
)
def test_a_variant_depends_on_the_data_of_its_healing(
    with_healings: Configuration, healing: str, calibrations: set[str]
) -> None:
    variant = Variant("small", "recall", "accuracy", 1, "none", healing)

    has_data_option = "data" in with_healings.healings[healing].options()
    assert requests.read_by(with_healings, variant) == calibrations
    assert has_data_option == ("corpus" in calibrations)


def test_the_data_of_a_healing_are_listed(with_healings: Configuration) -> None:
    assert CORPUS_FILE in files_of_table(with_healings, "calibrations")


def test_a_healing_has_the_weights_of_its_calibrations(with_healings: Configuration) -> None:
    job = HealVariant.of(with_healings, job_wildcards(removed=1, repair="none", healing="both"))

    assert job.weights == [("corpus", 0.1), ("recall", 1.0)]


@pytest.mark.parametrize(
    ("calibration", "weights"),
    [("recall", {"recall": 1.0, "corpus": 0.1}), ("corpus", {"corpus": 1.1})],
)
def test_a_healing_on_its_own_extra_data_adds_the_weights(
    with_healings: Configuration, calibration: str, weights: dict[str, float]
) -> None:
    assert requests.trained_on(with_healings, calibration, "both") == weights


@pytest.fixture
def with_open_weight(raw: RawConfig, root: Path) -> Configuration:
    """With a repair whose weight of `corpus` is chosen by the job that fits it."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    raw["selectors"]["looped"]["repair"] = "general"
    raw["selectors"]["judged"] = {"strategy": "portfolio", "repairs": ["general"]}
    return load_configuration(raw, root)


def test_a_patch_with_an_open_weight_loads_what_chooses_it(
    with_open_weight: Configuration,
) -> None:
    job = FitPatch.of(with_open_weight, job_wildcards(repair="general"))

    assert job.modules == (GHOST_MODULE, "lamina.repairs.weighing")
    assert job.weights == []


@pytest.mark.parametrize(
    "wildcards", [{"calibration": "corpus", "repair": "general"}, {"repair": "ghost"}]
)
def test_a_patch_without_an_open_weight_loads_its_method_alone(
    with_open_weight: Configuration, wildcards: dict[str, str]
) -> None:
    """A variant calibrated on that text itself has no weight to choose."""
    job = FitPatch.of(with_open_weight, job_wildcards(**wildcards))

    assert job.modules == (GHOST_MODULE,)


def test_an_open_weight_is_a_tenth_in_the_loop_of_a_selector(
    with_open_weight: Configuration,
) -> None:
    options = make_sweep(with_open_weight, "looped").options()

    assert options["loop"]["weights"] == [["recall", 1.0], ["corpus", 0.1]]


def test_an_open_weight_is_the_one_that_was_chosen(with_open_weight: Configuration) -> None:
    weights = with_open_weight.repairs["general"].weights("recall", 3.0)

    assert weights["corpus"] == 3.0


def test_a_patch_that_is_fitted_again_loads_what_fits_it(raw: RawConfig, root: Path) -> None:
    raw["repairs"]["chain"] = {"method": "ghost", "refit": True}

    job = FitPatch.of(load_configuration(raw, root), job_wildcards(repair="chain"))

    assert job.modules == (GHOST_MODULE, "lamina.repairs.refit")


@pytest.mark.parametrize(
    ("selector", "is_stale"),
    [("judged", True), ("looped", True), ("looped_once", False), ("accuracy", False)],
)
def test_another_weight_for_auto_reruns_the_jobs_that_use_it_alone(
    with_open_weight: Configuration,
    monkeypatch: pytest.MonkeyPatch,
    selector: str,
    is_stale: bool,
) -> None:
    def list_options() -> dict[str, Any]:
        if selector == "judged":
            return SearchPlans.of(with_open_weight, job_wildcards(selector)).options()
        return make_sweep(with_open_weight, selector).options()

    options_before = deepcopy(list_options())
    monkeypatch.setattr(changes, "IN_LOOP", 0.2)

    assert (list_options() != options_before) == is_stale


@pytest.fixture
def with_all_benchmarks(raw: RawConfig, root: Path) -> Configuration:
    set_key(raw, "benchmarks.efficiency", {})
    set_key(raw, "studies.prune.perplexity", "all")
    return load_configuration(raw, root)


# An edit of a repair's `apply` alone changes no patch, and does change the model.
@pytest.mark.parametrize(
    ("job_class", "wildcards", "modules"),
    [
        (BenchmarkEfficiency, {}, (GHOST_MODULE,)),
        (BenchmarkTask, {"task": "microworld_recall", "block": 0}, (GHOST_MODULE,)),
        (BenchmarkPerplexity, {"task": "corpus_test", "block": 0}, (GHOST_MODULE,)),
        (
            ExportVariant,
            {"repair": "ghost", "healing": "none", "form": "auto", "shard": "5GB"},
            (GHOST_MODULE,),
        ),
        (
            HealVariant,
            {"repair": "ghost", "healing": "lora"},
            ("lamina.healing.lora", GHOST_MODULE),
        ),
        # The base model and variants without a repair have none of it.
        (BenchmarkTask, {"calibration": "none", "task": "microworld_recall", "block": 0}, ()),
        (HealVariant, {"repair": "none", "healing": "lora"}, ("lamina.healing.lora",)),
    ],
)
def test_a_job_on_a_repaired_model_loads_the_repair(
    with_all_benchmarks: Configuration,
    job_class: Any,
    wildcards: dict[str, Any],
    modules: tuple[str, ...],
) -> None:
    job = job_class.of(with_all_benchmarks, job_wildcards(removed=1, **wildcards))

    assert job.modules == modules


def test_a_calibration_reads_the_files_of_its_tasks(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    of_recall = prepare.calibration_files(configuration, "recall")
    of_mixture = prepare.calibration_files(configuration, "mixture")

    assert any(file.endswith("workflow/tasks/microworld_recall.yaml") for file in of_recall)
    assert any(file.endswith("workflow/tasks/microworld_facts.yaml") for file in of_mixture)
    assert len(of_mixture) > len(of_recall)


@pytest.mark.parametrize(
    ("calibration", "files"),
    [("corpus", ["resources/reference/data/corpus_train.jsonl"]), ("mine", ["mine.jsonl"])],
)
def test_a_calibration_reads_its_text_or_questions(
    configuration: Configuration,
    monkeypatch: pytest.MonkeyPatch,
    calibration: str,
    files: list[str],
) -> None:
    monkeypatch.chdir(ROOT)

    assert prepare.calibration_files(configuration, calibration) == files


@pytest.mark.parametrize(
    ("benchmark", "files"),
    [
        ("corpus_test", ["resources/reference/data/corpus_test.jsonl"]),
        ("mine", ["mine_test.jsonl"]),
    ],
)
def test_a_benchmark_reads_its_text_or_questions(
    configuration: Configuration,
    monkeypatch: pytest.MonkeyPatch,
    benchmark: str,
    files: list[str],
) -> None:
    monkeypatch.chdir(ROOT)
    entry = prepare.benchmark_entry(configuration, benchmark)

    assert prepare.data_files(benchmark, entry) == files


@pytest.mark.parametrize(
    ("table", "files"),
    [
        ("patches", ["results/patches/small/recall/accuracy/ghost.parquet"]),
        ("diagnoses", []),
        ("efficiency", []),
    ],
)
def test_a_table_is_gathered_from_what_the_studies_ask_for(
    configuration: Configuration, table: str, files: list[str]
) -> None:
    assert files_of_table(configuration, table) == files


def test_every_healed_variant_has_a_training_curve(configuration: Configuration) -> None:
    assert len(files_of_table(configuration, "training")) == 4


def test_every_sweep_has_scores(configuration: Configuration) -> None:
    scores = files_of_table(configuration, "relevance")

    sweeps = files_of_table(configuration, "sweeps")
    assert scores == [file.replace("/sweeps/", "/relevance/") for file in sweeps]
