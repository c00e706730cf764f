"""What jobs read, are told and load, for the wildcards of a job."""

from pathlib import Path
from typing import Any

import pytest
from lamina.stages.benchmark_efficiency import BenchmarkEfficiency
from lamina.stages.benchmark_perplexity import BenchmarkPerplexity
from lamina.stages.benchmark_task import BenchmarkTask
from lamina.stages.export_variant import ExportVariant
from lamina.stages.fit_patch import FitPatch
from lamina.stages.gather_table import parts
from lamina.stages.heal_variant import HealVariant
from lamina.stages.prepare_calibration import PrepareCalibration
from lamina.stages.prune_step import PruneStep
from lamina.stages.score_relevance import ScoreRelevance
from lamina.stages.search_plans import SearchPlans
from lamina.stages.sweep_units import SweepUnits

from lamina.config.configuration import Configuration
from lamina.errors import LaminaError
from lamina.runtime.fingerprint import entry_digest
from lamina.stages import changes, files
from lamina.study import requests as studies
from lamina.study.load import load
from lamina.study.variant import Variant
from tests.given.configurations import Raw, minimal, put, workplace
from tests.given.scripts import place, plain

PLACE = "results/{}/small/recall/accuracy/removed={}"


def wildcards(selector: str = "accuracy", removed: int = 0, **more: Any) -> Any:
    return place(**{"model": "small", "calibration": "recall", "selector": selector, "removed": removed, **more})


def sweep(config: Configuration, selector: str, removed: int = 0, **more: Any) -> SweepUnits:
    return SweepUnits.of(config, wildcards(selector, removed, **{"block": 0, **more}))


@pytest.fixture
def raw() -> Raw:
    raw = minimal()
    raw["selectors"] |= {
        "once": {"metric": "accuracy", "strategy": "one_shot"},
        "race": {"metric": "output_js", "budget": "race", "tolerance": 0.02, "protect": [0]},
        "taylor": {"metric": "taylor"},
        "residual": {"metric": "residual"},
        "looped": {"metric": "accuracy", "protect": [0], "seed": 4, "repair": "ghost"},
        "looped_race": {"metric": "accuracy", "budget": "race", "repair": "ghost"},
        "looped_once": {"metric": "accuracy", "strategy": "one_shot", "repair": "ghost"},
        "evolved": {"metric": "accuracy", "strategy": "evolutionary", "offspring": 8, "repair": "ghost"},
    }
    return raw


@pytest.fixture
def config(raw: Raw, tmp_path: Path) -> Configuration:
    return load(raw, workplace(tmp_path))


def test_a_full_sweep_is_told_its_pass_and_nothing_of_its_selector(config: Configuration) -> None:
    told = plain(sweep(config, "base/removal/layer", block=1))
    assert told["pass_"] == "removal" and told["units"] == "layer" and told["block"] == 1
    assert not {"budget", "plan", "loop", "donors"} & told.keys()
    assert told["keys"] == {"model": "small", "calibration": "recall", "selector": "base", "removed": 0}
    later = plain(sweep(config, "accuracy", 2))
    own = {"block": 0, "plan": PLACE.format("plans", 2) + ".json"}
    assert later == told | own | {name: later[name] for name in ("keys", "output")}


def test_a_sweep_under_a_budget_is_told_what_the_budget_reads(config: Configuration) -> None:
    assert sweep(config, "race", 1).budget == {
        "budget": "race",
        "metric": "output_js",
        "protect": [0],
        "confidence": 0.95,
        "tolerance": 0.02,
        "seed": 0,
        "score": "acc_norm",
        "step": 2,
    }


def test_a_sweep_with_the_repair_in_the_loop_is_told_the_repair(raw: Raw, tmp_path: Path) -> None:
    config = load(put(put(raw, "seed", 7), "repairs.ghost.rank", 8), workplace(tmp_path))
    assert plain(sweep(config, "looped", 1))["loop"] == {
        "repair": {"method": "ghost", "rank": 8},
        "weights": [["recall", 1.0]],
        "protect": [0],
        "seed": 4,
    }
    assert sweep(config, "looped", 1).budget is None
    # What has no seed of its own draws the folds with the top-level one.
    once = sweep(config, "looped_once").loop
    assert once is not None and once.seed == 7
    assert not any(sweep(config, selector).loop for selector in ("accuracy", "race", "base/removal/layer"))


def test_a_search_is_told_all_sizes_of_the_studies(raw: Raw, tmp_path: Path) -> None:
    raw["studies"]["found"] = raw["studies"]["prune"] | {"selectors": ["evolved"], "removed": [3, "50%", 1]}
    config = load(raw, workplace(tmp_path))
    job = SearchPlans.of(config, wildcards("evolved"))
    told = plain(job)
    assert told["sizes"] == [1, 3, 4]
    assert told["keys"] == {"model": "small", "calibration": "recall", "selector": "evolved"}
    assert told["selector"] == raw["selectors"]["evolved"]
    assert told["loop"]["repair"] == {"method": "ghost"}
    assert set(job.modules) == {
        "lamina.selection.strategies.evolutionary",
        "lamina.relevance.metrics.answers",
        "lamina.selection.looped",
        "lamina.selection.growing",
        "lamina.repair.methods.ghost",
    }
    assert studies.searching(config) == ["evolved"]
    assert "results/searches/small/recall/evolved.parquet" in parts(config, "searches")
    assert not [each for each in studies.sweeps(config) if each[2] == "evolved"]


@pytest.mark.parametrize(
    ("selector", "modules"),
    [
        ("base/removal/layer", ()),
        ("base/gradient/layer", ("lamina.engine.weights",)),
        ("accuracy", ()),
        ("race", ("lamina.selection.race",)),
        ("looped", ("lamina.selection.looped", "lamina.repair.methods.ghost")),
        ("looped_race", ("lamina.selection.race", "lamina.selection.looped", "lamina.repair.methods.ghost")),
        ("taylor", ("lamina.engine.weights",)),
        ("residual", ("lamina.selection.residuals", "lamina.repair.methods.ghost")),
    ],
)
def test_a_sweep_reaches_its_pass_or_budget(config: Configuration, selector: str, modules: tuple[str, ...]) -> None:
    assert sweep(config, selector).modules == modules


def test_a_sweep_depends_on_a_metrics_entry_only_where_units_leave_by_it(config: Configuration) -> None:
    found = {name: sweep(config, name).follows["metric"] for name in ("accuracy", "race", "base/removal/mlp")}
    assert found["race"] != found["accuracy"] == found["base/removal/mlp"] == entry_digest(None)


def test_scores_are_of_every_metric_that_the_pass_measures(config: Configuration) -> None:
    removal = ScoreRelevance.of(config, wildcards("base/removal/layer"))
    assert {"accuracy", "perplexity", "output_kl", "cosine", "angular"} <= set(removal.metrics) == set(removal.follows)
    assert "taylor" not in removal.metrics and removal.score == "acc_norm"
    assert ScoreRelevance.of(config, wildcards("base/gradient/layer")).metrics == ["magnitude", "random", "taylor"]
    stream = ScoreRelevance.of(config, wildcards("base/stream/layer"))
    assert stream.metrics == ["angular", "cosine"]
    assert stream.modules == ("lamina.relevance.metrics.streams",)


def test_a_plan_depends_on_its_own_metric_and_strategy_alone(config: Configuration) -> None:
    job = PruneStep.of(config, wildcards("cosine", 1))
    assert job.modules == ("lamina.selection.strategies.iterative", "lamina.relevance.metrics.streams")
    assert PruneStep.of(config, wildcards("random", 1)).modules == ("lamina.selection.strategies.random",)
    told = plain(job)
    assert told["selector"] == {"strategy": "iterative", "metric": "cosine", "protect": [0, -1]}
    assert "relevance" not in told


def test_the_evidence_of_a_step(config: Configuration) -> None:
    def evidence(selector: str, removed: int) -> dict[str, str]:
        read = PruneStep.of(config, wildcards(selector, removed)).inputs
        return {name: file for name, file in read.items() if name not in ("manifest", "calibration")}

    base = "results/sweeps/small/recall/base/removal/layer/removed=0.parquet"
    assert evidence("accuracy", 1) == {"sweep": base}
    assert evidence("once", 3) == {"sweep": base}
    assert evidence("accuracy", 3) == {
        "sweep": PLACE.format("sweeps", 2) + ".parquet",
        "previous": PLACE.format("plans", 2) + ".json",
    }
    for own in ("race", "looped", "looped_once"):
        assert evidence(own, 1) == {"sweep": f"results/sweeps/small/recall/{own}/removed=0.parquet"}
    assert evidence("angular", 2) == {"activations": "results/activations/small/recall.parquet"}
    assert evidence("random", 2) == {}


def test_variants_are_read_from_the_files_that_make_them(config: Configuration) -> None:
    listed = [v for v in studies.variants(config) if v.removed == 1]
    assert files.of_variants(listed) == [
        "results/adapters/small/recall/accuracy/removed=1/ghost/lora/training.parquet",
        "results/adapters/small/recall/accuracy/removed=1/none/lora/training.parquet",
        "results/patches/small/recall/accuracy/ghost.safetensors",
        "results/plans/small/recall/accuracy/removed=1.json",
    ]


def test_a_benchmark_waits_for_the_check_of_its_calibration(config: Configuration) -> None:
    assert files.gates(config, "m", "none", "t", []) == ["results/tasks/t.parquet"]
    plain = [Variant("m", "c", "accuracy", 1, repair) for repair in ("none", "ghost")]
    assert files.gates(config, "m", "c", "t", plain) == ["results/overlap/m/c/t.json"]


@pytest.fixture
def mended(raw: Raw, tmp_path: Path) -> Configuration:
    """As `config`, with a repair that is also fitted on general text."""
    raw["repairs"]["general"] = {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
    raw["studies"]["prune"]["repairs"] = ["none", "ghost", "general"]
    return load(raw, workplace(tmp_path))


def test_what_a_repair_is_also_fitted_on_is_read_checked_and_listed(mended: Configuration) -> None:
    file = "results/calibrations/small/corpus.parquet"
    job = FitPatch.of(mended, wildcards(repair="general"))
    assert job.data == {"corpus": file} and file in job.inputs["data"]
    told = plain(job)
    assert told["repair"]["data"] == {"corpus": 0.1, "own": 1} and told["seed"] == 0
    assert told["weights"] == [["recall", 1.0], ["corpus", 0.1]]
    assert "data" not in FitPatch.of(mended, wildcards(repair="ghost")).inputs
    # A variant of that repair waits for the check of both; the tables list both.
    listed = [Variant("small", "recall", "accuracy", 1, repair) for repair in ("ghost", "general")]
    both = [f"results/overlap/small/{name}/t.json" for name in ("corpus", "recall")]
    assert files.gates(mended, "small", "recall", "t", listed) == both
    assert files.gates(mended, "small", "recall", "t", listed[:1]) == both[1:]
    assert file in parts(mended, "calibrations")
    assert file not in parts(mended, "activations")


def test_what_a_repair_in_the_loop_is_fitted_on_is_read_and_checked_too(raw: Raw, tmp_path: Path) -> None:
    """Also where the finished plan is not repaired."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"]["looped"]["repair"] = "general"
    raw["studies"]["prune"] |= {"selectors": ["looped"], "repairs": ["none"]}
    config = load(raw, workplace(tmp_path))
    file = "results/calibrations/small/corpus.parquet"
    assert sweep(config, "looped").inputs["data"] == [file]
    assert "data" not in sweep(config, "accuracy").inputs
    found = files.gates(config, "small", "recall", "t", [Variant("small", "recall", "looped", 1)])
    assert found == [f"results/overlap/small/{name}/t.json" for name in ("corpus", "recall")]
    assert file in parts(config, "calibrations")


def test_what_a_healing_trains_on_is_read_checked_and_listed(raw: Raw, tmp_path: Path) -> None:
    raw["healings"] |= {
        "other": {"method": "lora", "data": "corpus"},
        "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
        "alone": {"method": "lora", "data": {"own": 2}},
    }
    raw["studies"]["prune"]["healings"] = ["lora", "other", "both", "alone"]
    config, file = load(raw, workplace(tmp_path)), "results/calibrations/small/corpus.parquet"
    for healing, added in (("lora", []), ("alone", []), ("other", ["corpus"]), ("both", ["corpus"])):
        job = HealVariant.of(config, wildcards(removed=1, repair="none", healing=healing))
        assert job.data == dict.fromkeys(added, file) and job.inputs.get("data", []) == [file] * len(added)
        listed = [Variant("small", "recall", "accuracy", 1, "none", healing)]
        assert files.gates(config, "small", "recall", "t", listed) == [
            f"results/overlap/small/{name}/t.json" for name in [*added, "recall"]
        ]
        # What had no other word before is told to jobs as before.
        assert ("data" in config.healings[healing].options()) == bool(added)
    assert file in parts(config, "calibrations")
    both = HealVariant.of(config, wildcards(removed=1, repair="none", healing="both"))
    assert both.weights == [("corpus", 0.1), ("recall", 1.0)], "by the names of its data, `own` among them"
    assert studies.trained_on(config, "recall", "both") == {"recall": 1.0, "corpus": 0.1}
    assert studies.trained_on(config, "corpus", "both") == {"corpus": 1.1}


def test_weights_follow_names_and_the_own_calibration_comes_first(mended: Configuration) -> None:
    general = mended.repairs["general"]
    assert changes.weighed(general, "recall", 0.0) == [("recall", 1.0), ("corpus", 0.1)]
    assert changes.weighed(general, "corpus", 0.0) == [("corpus", pytest.approx(1.1))]
    assert changes.weighed(mended.repairs["ghost"], "recall", 0.0) == [("recall", 1.0)]
    assert "data" not in mended.repairs["ghost"].options()


def test_only_a_weight_that_is_left_open_needs_what_chooses_it(raw: Raw, tmp_path: Path) -> None:
    """A variant of that calibration itself leaves none open; in the loop of a selector it stands for a tenth."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    raw["selectors"]["looped"]["repair"] = "general"
    root = workplace(tmp_path)
    config = load(raw, root)
    own = FitPatch.of(config, wildcards(repair="general"))
    assert own.modules == ("lamina.repair.methods.ghost", "lamina.repair.weighing") and own.weights == []
    itself = FitPatch.of(config, wildcards(calibration="corpus", repair="general"))
    assert itself.modules == ("lamina.repair.methods.ghost",)
    assert FitPatch.of(config, wildcards(repair="ghost")).modules == ("lamina.repair.methods.ghost",)
    assert plain(sweep(config, "looped"))["loop"]["weights"] == [["recall", 1.0], ["corpus", 0.1]]
    assert config.repairs["general"].weights("recall", 3.0)["corpus"] == 3.0
    raw["repairs"]["general"] = {"method": "ghost", "refit": True}
    raw["selectors"]["looped"]["repair"] = "ghost"
    config = load(raw, root)
    assert FitPatch.of(config, wildcards(repair="general")).modules == (
        "lamina.repair.methods.ghost",
        "lamina.repair.refit",
    )


def test_the_weight_that_stands_for_auto_in_the_loop_is_told(
    raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes what is measured, so a change of it makes stale the sweeps and searches that use it, and no other."""
    raw["repairs"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    raw["selectors"]["looped"]["repair"] = raw["selectors"]["evolved"]["repair"] = "general"
    config = load(raw, workplace(tmp_path))

    def told() -> list[str]:
        search = SearchPlans.of(config, wildcards("evolved")).told()
        return [search, *(sweep(config, name).told() for name in ("looped", "looped_race", "accuracy"))]

    before = told()
    monkeypatch.setattr(changes, "IN_LOOP", 0.2)
    assert [one != other for one, other in zip(before, told(), strict=True)] == [True, True, False, False]


def test_a_repair_that_builds_a_model_is_a_module_of_the_job_that_measures_it(raw: Raw, tmp_path: Path) -> None:
    """An edit of `apply` alone leaves the patch as it is, and not the model."""
    put(raw, "benchmarks.efficiency", {})
    raw["studies"]["prune"] |= {"perplexity": "all"}
    config = load(raw, workplace(tmp_path))
    ghost, task = ("lamina.repair.methods.ghost",), "microworld_recall"
    found = {BenchmarkEfficiency: BenchmarkEfficiency.of(config, place(model="small"))}
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
    assert BenchmarkTask.of(config, place(model="small", calibration="none", task=task, block=0)).modules == ()
    bare = HealVariant.of(config, wildcards(removed=1, repair="none", healing="lora"))
    assert bare.modules == ("lamina.healing.lora",)


def test_local_files_behind_calibrations_and_tasks(config: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    found = {
        name: PrepareCalibration.of(config, place(model="small", calibration=name)).files
        for name in config.calibrations
    }
    assert "workflow/tasks/microworld_recall.yaml" in found["recall"]
    assert "workflow/tasks/microworld_facts.yaml" in found["mixture"] and len(found["mixture"]) > len(found["recall"])
    assert found["corpus"] == ["resources/reference/data/corpus_train.jsonl"]
    assert found["mine"] == ["mine.jsonl"]
    assert files.local("mine", files.tested(config, "mine")) == ["mine_test.jsonl"]
    assert files.local("corpus_test", files.tested(config, "corpus_test")) == [
        "resources/reference/data/corpus_test.jsonl"
    ]


def test_every_table_is_gathered_from_what_the_studies_ask_for(config: Configuration) -> None:
    assert parts(config, "patches") == ["results/patches/small/recall/accuracy/ghost.parquet"]
    assert parts(config, "diagnoses") == []
    assert parts(config, "efficiency") == []
    assert len(parts(config, "training")) == 4
    assert parts(config, "relevance") == [file.replace("/sweeps/", "/relevance/") for file in parts(config, "sweeps")]


def test_an_export_names_the_patch_that_no_study_fits(config: Configuration) -> None:
    facts = {"repair": "ghost", "form": "auto", "shard": "5GB"}
    with pytest.raises(LaminaError, match="no study fits repair 'ghost' to removed=5 of small/recall/accuracy"):
        ExportVariant.of(config, wildcards("accuracy", 5, healing="none", **facts))
    job = ExportVariant.of(config, wildcards("accuracy", 1, healing="lora", **facts))
    assert set(job.inputs) == {"manifest", "plan", "patch", "adapter"} and job.benchmarks == []
