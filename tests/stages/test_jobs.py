"""The options and the modules of jobs, for the wildcards of a job."""

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
from lamina_workflow.stages.prune import PruneStep, SearchPlans
from lamina_workflow.stages.repair import FitPatch
from lamina_workflow.stages.sweep import ScoreRelevance, SweepUnits
from lamina_workflow.study import requests
from lamina_workflow.study.sweeps import list_sweeps
from lamina_workflow.study.tables import files_of_table
from tests.given.configurations import RawConfig, minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards


def wildcards(selector: str = "accuracy", removed: int = 0, **more: Any) -> Any:
    return make_wildcards(
        **{
            "model": "small",
            "calibration": "recall",
            "selector": selector,
            "removed": removed,
            **more,
        }
    )


def sweep(config: Configuration, selector: str, removed: int = 0, **more: Any) -> SweepUnits:
    return SweepUnits.of(config, wildcards(selector, removed, **{"block": 0, **more}))


@pytest.fixture
def raw() -> RawConfig:
    raw = minimal_config()
    raw["selectors"] |= {
        "once": {"metric": "accuracy", "strategy": "one_shot"},
        "taylor": {"metric": "taylor"},
        "residual": {"metric": "residual"},
        "looped": {"metric": "accuracy", "protect": [0], "seed": 4, "repair": "ghost"},
        "looped_once": {"metric": "accuracy", "strategy": "one_shot", "repair": "ghost"},
        "evolved": {
            "metric": "accuracy",
            "strategy": "evolutionary",
            "offspring": 8,
            "repair": "ghost",
        },
    }
    return raw


@pytest.fixture
def config(raw: RawConfig, tmp_path: Path) -> Configuration:
    return load_configuration(raw, write_model_and_data(tmp_path))


def test_a_full_sweep_depends_on_its_pass_and_on_nothing_of_its_selector(
    config: Configuration,
) -> None:
    options = sweep(config, "base/removal/layer", block=1).options()
    assert options["pass_"] == "removal" and options["units"] == "layer" and options["block"] == 1
    assert not {"loop", "replacements"} & options.keys()
    assert options["keys"] == {
        "model": "small",
        "calibration": "recall",
        "selector": "base",
        "removed": 0,
    }
    later = sweep(config, "accuracy", 2).options()
    assert later == options | {"block": 0, "keys": later["keys"]}


def test_a_sweep_with_the_repair_in_the_loop_depends_on_the_repair(
    raw: RawConfig, tmp_path: Path
) -> None:
    config = load_configuration(
        set_key(set_key(raw, "seed", 7), "repairs.ghost.rank", 8), write_model_and_data(tmp_path)
    )
    wanted = {
        "repair": {"method": "ghost", "rank": 8},
        "weights": [["recall", 1.0]],
        "protect": [0],
        "seed": 4,
    }
    assert sweep(config, "looped", 1).options()["loop"] == wanted
    # What has no seed of its own draws the folds with the top-level one.
    once = sweep(config, "looped_once").loop
    assert once is not None and once.seed == 7
    assert not any(sweep(config, name).loop for name in ("accuracy", "base/removal/layer"))


def test_what_a_portfolio_searches_with_is_loaded_by_the_job_that_counts_it(
    raw: RawConfig, tmp_path: Path
) -> None:
    raw["selectors"]["best"] = {"strategy": "portfolio", "members": ["perplexity", "pairwise"]}
    raw["studies"]["found"] = raw["studies"]["prune"] | {"selectors": ["best"]}
    job = prepare.EstimateCost.of(load_configuration(raw, write_model_and_data(tmp_path)), None)
    assert job.modules == tuple(
        f"lamina.selection.strategies.{name}" for name in ("pairwise", "portfolio")
    )


def test_a_search_has_all_sizes_of_the_studies(raw: RawConfig, tmp_path: Path) -> None:
    raw["studies"]["found"] = raw["studies"]["prune"] | {
        "selectors": ["evolved"],
        "removed": [3, "50%", 1],
    }
    config = load_configuration(raw, write_model_and_data(tmp_path))
    job = SearchPlans.of(config, wildcards("evolved"))
    options = job.options()
    assert options["sizes"] == [1, 3, 4]
    assert options["keys"] == {"model": "small", "calibration": "recall", "selector": "evolved"}
    assert options["selector"] == raw["selectors"]["evolved"]
    assert options["loop"]["repair"] == {"method": "ghost"}
    assert set(job.modules) == {
        *(
            "lamina.selection.sets",
            "lamina.selection.strategies.evolutionary",
            "lamina.selection.looped",
        ),
        *("lamina.relevance.metrics.answers", "lamina.repair.methods.ghost"),
    }
    assert requests.searching_selectors(config) == ["evolved"]
    assert "results/searches/small/recall/evolved.parquet" in files_of_table(config, "searches")
    assert not [each for each in list_sweeps(config) if each[2] == "evolved"]


def test_a_portfolio_reads_what_judges_and_what_its_repairs_are_fitted_on(
    raw: RawConfig, tmp_path: Path
) -> None:
    raw["calibrations"] |= {
        name: {"text": "microworld_corpus", "documents": "0:9"} for name in ("prose", "more")
    }
    raw["repairs"]["mixed"] = {"method": "linearpatch", "data": {"own": 1, "more": 0.1}}
    judged = {
        "strategy": "portfolio",
        "repairs": ["mixed"],
        "also": {"prose": 0.5},
        "judge": "corpus",
    }
    raw["selectors"]["judged"] = judged
    raw["studies"]["prune"] |= {"selectors": ["judged"], "removed": [2]}
    config = load_configuration(raw, write_model_and_data(tmp_path))
    job = SearchPlans.of(config, wildcards("judged"))
    assert job.repairs["mixed"].weights == [("recall", 1.0), ("more", 0.1)] and job.loop is None
    assert requests.chosen_on(config, "recall", "judged") == {"prose", "more", "corpus"}
    assert {"prose", "more", "corpus", "recall"} <= {
        name for _, name in requests.list_calibrations(config)
    }
    assert {
        "lamina.selection.judging",
        "lamina.repair.methods.linearpatch",
        "lamina.selection.strategies.block",
    } < {*job.modules}
    wrongs = (
        ("judge", "x", "judge: 'x'"),
        ("repairs", ["layer"], "not a linear map"),
        ("repairs", ["x"], "'x'"),
    )
    for key, value, words in wrongs:
        wrong = set_key(deepcopy(raw), f"selectors.judged.{key}", value)
        wrong["repairs"]["layer"] = {"method": "streamline"}
        with pytest.raises(
            LaminaError, match=f"selectors.judged.{words if key == 'judge' else key + '.*' + words}"
        ):
            load_configuration(wrong, tmp_path)


@pytest.mark.parametrize(
    ("selector", "modules"),
    [
        ("base/removal/layer", ()),
        ("base/gradient/layer", ("lamina.engine.weights",)),
        ("accuracy", ()),
        ("looped", ("lamina.selection.looped", "lamina.repair.methods.ghost")),
        ("taylor", ("lamina.engine.weights",)),
        ("residual", ("lamina.selection.residuals", "lamina.repair.methods.ghost")),
    ],
)
def test_a_sweep_reaches_its_pass_and_the_repair_in_its_loop(
    config: Configuration, selector: str, modules: tuple[str, ...]
) -> None:
    assert sweep(config, selector).modules == modules


def test_scores_are_of_every_metric_that_the_pass_measures(config: Configuration) -> None:
    removal = ScoreRelevance.of(config, wildcards("base/removal/layer"))
    assert (
        {"accuracy", "perplexity", "output_kl", "cosine", "angular"}
        <= set(removal.metrics)
        == set(removal.follows)
    )
    assert "taylor" not in removal.metrics and removal.score == "acc_norm"
    assert ScoreRelevance.of(config, wildcards("base/gradient/layer")).metrics == [
        "magnitude",
        "random",
        "taylor",
    ]
    stream = ScoreRelevance.of(config, wildcards("base/stream/layer"))
    assert stream.metrics == ["angular", "cosine"]
    assert stream.modules == ("lamina.relevance.metrics.streams",)


def test_a_plan_depends_on_its_own_metric_and_strategy_alone(config: Configuration) -> None:
    job = PruneStep.of(config, wildcards("cosine", 1))
    assert job.modules == (
        "lamina.selection.strategies.iterative",
        "lamina.relevance.metrics.streams",
    )
    assert PruneStep.of(config, wildcards("random", 1)).modules == (
        "lamina.selection.strategies.random",
    )
    assert job.options()["selector"] == {
        "strategy": "iterative",
        "metric": "cosine",
        "protect": [0, -1],
    }
    assert not {"beside", "replacements"} & job.options().keys()


@pytest.fixture
def mended(raw: RawConfig, tmp_path: Path) -> Configuration:
    """As `config`, with a repair that is also fitted on general text."""
    raw["repairs"]["general"] = {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
    raw["studies"]["prune"]["repairs"] = ["none", "ghost", "general"]
    return load_configuration(raw, write_model_and_data(tmp_path))


def test_what_a_repair_is_also_fitted_on_has_its_weight(mended: Configuration) -> None:
    options = FitPatch.of(mended, wildcards(repair="general")).options()
    assert options["repair"]["data"] == {"corpus": 0.1, "own": 1} and options["seed"] == 0
    assert options["weights"] == [["recall", 1.0], ["corpus", 0.1]]


def test_what_a_repair_in_the_loop_is_fitted_on_is_checked_too(
    raw: RawConfig, tmp_path: Path
) -> None:
    """Also where the finished plan is not repaired."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"]["looped"]["repair"] = "general"
    raw["studies"]["prune"] |= {"selectors": ["looped"], "repairs": ["none"]}
    config = load_configuration(raw, write_model_and_data(tmp_path))
    assert requests.read_by(config, Variant("small", "recall", "looped", 1)) == {"corpus", "recall"}
    assert "results/calibrations/small/corpus.parquet" in files_of_table(config, "calibrations")


def test_what_a_healing_trains_on_has_its_weight_and_is_checked_and_listed(
    raw: RawConfig, tmp_path: Path
) -> None:
    raw["healings"] |= {
        "other": {"method": "lora", "data": "corpus"},
        "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
        "alone": {"method": "lora", "data": {"own": 2}},
    }
    raw["studies"]["prune"]["healings"] = ["lora", "other", "both", "alone"]
    config = load_configuration(raw, write_model_and_data(tmp_path))
    for healing, added in (
        ("lora", []),
        ("alone", []),
        ("other", ["corpus"]),
        ("both", ["corpus"]),
    ):
        read = requests.read_by(config, Variant("small", "recall", "accuracy", 1, "none", healing))
        assert read == {*added, "recall"}
        # What had no other word before has the options of before.
        assert ("data" in config.healings[healing].options()) == bool(added)
    assert "results/calibrations/small/corpus.parquet" in files_of_table(config, "calibrations")
    both = HealVariant.of(config, wildcards(removed=1, repair="none", healing="both"))
    assert both.weights == [("corpus", 0.1), ("recall", 1.0)], (
        "by the names of its data, `own` among them"
    )
    assert requests.trained_on(config, "recall", "both") == {"recall": 1.0, "corpus": 0.1}
    assert requests.trained_on(config, "corpus", "both") == {"corpus": 1.1}


def test_weights_follow_names_and_the_own_calibration_comes_first(mended: Configuration) -> None:
    general = mended.repairs["general"]
    assert changes.calibration_weights(general, "recall", 0.0) == [("recall", 1.0), ("corpus", 0.1)]
    assert changes.calibration_weights(general, "corpus", 0.0) == [("corpus", pytest.approx(1.1))]
    assert changes.calibration_weights(mended.repairs["ghost"], "recall", 0.0) == [("recall", 1.0)]
    assert "data" not in mended.repairs["ghost"].options()


def test_only_a_weight_that_is_left_open_needs_what_chooses_it(
    raw: RawConfig, tmp_path: Path
) -> None:
    """A variant of that calibration itself leaves none open; in the loop of a selector it stands for a tenth."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    raw["selectors"]["looped"]["repair"] = "general"
    root = write_model_and_data(tmp_path)
    config = load_configuration(raw, root)
    own = FitPatch.of(config, wildcards(repair="general"))
    assert (
        own.modules == ("lamina.repair.methods.ghost", "lamina.repair.weighing")
        and own.weights == []
    )
    itself = FitPatch.of(config, wildcards(calibration="corpus", repair="general"))
    assert itself.modules == ("lamina.repair.methods.ghost",)
    assert FitPatch.of(config, wildcards(repair="ghost")).modules == (
        "lamina.repair.methods.ghost",
    )
    assert sweep(config, "looped").options()["loop"]["weights"] == [
        ["recall", 1.0],
        ["corpus", 0.1],
    ]
    assert config.repairs["general"].weights("recall", 3.0)["corpus"] == 3.0
    raw["repairs"]["general"] = {"method": "ghost", "refit": True}
    raw["selectors"]["looped"]["repair"] = "ghost"
    config = load_configuration(raw, root)
    both = ("lamina.repair.methods.ghost", "lamina.repair.refit")
    assert FitPatch.of(config, wildcards(repair="general")).modules == both


def test_what_stands_for_auto_in_loops_is_an_option(
    raw: RawConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes what is measured, so a change of it makes stale the sweeps and searches that use it, and no other."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    raw["selectors"]["looped"]["repair"] = raw["selectors"]["evolved"]["repair"] = "general"
    config = load_configuration(raw, write_model_and_data(tmp_path))

    def options() -> list[dict[str, Any]]:
        search = SearchPlans.of(config, wildcards("evolved")).options()
        return [
            search,
            *(sweep(config, name).options() for name in ("looped", "looped_once", "accuracy")),
        ]

    before = options()
    monkeypatch.setattr(changes, "IN_LOOP", 0.2)
    assert [one != other for one, other in zip(before, options(), strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_repair_that_builds_a_model_is_a_module_of_the_job_that_measures_it(
    raw: RawConfig, tmp_path: Path
) -> None:
    """An edit of `apply` alone leaves the patch as it is, and not the model."""
    set_key(raw, "benchmarks.efficiency", {})
    raw["studies"]["prune"] |= {"perplexity": "all"}
    config = load_configuration(raw, write_model_and_data(tmp_path))
    ghost, task = ("lamina.repair.methods.ghost",), "microworld_recall"
    found = {BenchmarkEfficiency: BenchmarkEfficiency.of(config, make_wildcards(model="small"))}
    found |= {
        kind: kind.of(config, wildcards(task=name, block=0))
        for kind, name in ((BenchmarkTask, task), (BenchmarkPerplexity, "corpus_test"))
    }
    assert {kind: job.modules for kind, job in found.items()} == dict.fromkeys(found, ghost)
    exported = wildcards(removed=1, repair="ghost", healing="none", form="auto", shard="5GB")
    assert ExportVariant.of(config, exported).modules == ghost
    healed = HealVariant.of(config, wildcards(removed=1, repair="ghost", healing="lora"))
    assert healed.modules == ("lamina.healing.lora", *ghost)
    # The unpruned model and variants without a repair have none of it.
    assert (
        BenchmarkTask.of(
            config, make_wildcards(model="small", calibration="none", task=task, block=0)
        ).modules
        == ()
    )
    bare = HealVariant.of(config, wildcards(removed=1, repair="none", healing="lora"))
    assert bare.modules == ("lamina.healing.lora",)


def test_local_files_behind_calibrations_and_tasks(
    config: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    found = {name: prepare.calibration_files(config, name) for name in config.calibrations}
    assert any(file.endswith("workflow/tasks/microworld_recall.yaml") for file in found["recall"])
    assert any(file.endswith("workflow/tasks/microworld_facts.yaml") for file in found["mixture"])
    assert len(found["mixture"]) > len(found["recall"])
    assert found["corpus"] == ["resources/reference/data/corpus_train.jsonl"]
    assert found["mine"] == ["mine.jsonl"]
    tested = {
        name: prepare.data_files(name, prepare.benchmark_entry(config, name))
        for name in ("mine", "corpus_test")
    }
    assert tested == {
        "mine": ["mine_test.jsonl"],
        "corpus_test": ["resources/reference/data/corpus_test.jsonl"],
    }


def test_every_table_is_gathered_from_what_the_studies_ask_for(config: Configuration) -> None:
    assert files_of_table(config, "patches") == [
        "results/patches/small/recall/accuracy/ghost.parquet"
    ]
    assert files_of_table(config, "diagnoses") == []
    assert files_of_table(config, "efficiency") == []
    assert len(files_of_table(config, "training")) == 4
    assert files_of_table(config, "relevance") == [
        file.replace("/sweeps/", "/relevance/") for file in files_of_table(config, "sweeps")
    ]
