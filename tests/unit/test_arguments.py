"""What jobs read and are told, for the wildcards of a job."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.config.configuration import Configuration
from lamina.errors import LaminaError
from lamina.preflight.load import load
from lamina.variant import Variant
from lamina.workflow import arguments, inputs, studies
from tests.unit.configurations import Raw, minimal, put, workplace

PLACE = "results/{}/small/recall/accuracy/removed={}"


class Wildcards(SimpleNamespace):
    """As Snakemake has them: by attribute and as a mapping."""

    def keys(self) -> Any:
        return vars(self).keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def wildcards(selector: str = "accuracy", removed: int = 0, **more: Any) -> Any:
    return Wildcards(model="small", calibration="recall", selector=selector, removed=str(removed), **more)


def parsed(line: str) -> dict[str, str]:
    words = shlex.split(line)
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


@pytest.fixture
def raw() -> Raw:
    raw = minimal()
    raw["selectors"] |= {
        "once": {"metric": "accuracy", "strategy": "one_shot"},
        "race": {"metric": "output_js", "budget": "race", "tolerance": 0.02, "protect": [0]},
        "taylor": {"metric": "taylor"},
        "residual": {"metric": "residual"},
        "looped": {"metric": "accuracy", "protect": [0], "seed": 4, "recovery": "ghost"},
        "looped_race": {"metric": "accuracy", "budget": "race", "recovery": "ghost"},
        "looped_once": {"metric": "accuracy", "strategy": "one_shot", "recovery": "ghost"},
        "beam": {"metric": "accuracy", "strategy": "beam", "width": 2, "recovery": "ghost"},
    }
    return raw


@pytest.fixture
def config(raw: Raw, tmp_path: Path) -> Configuration:
    return load(raw, workplace(tmp_path))


def test_a_command_line_survives_a_shell_and_leaves_out_what_is_not_given() -> None:
    line = arguments.command(text="it's {a} $b", number=0, nothing=None)
    assert shlex.split(line) == ["--text", "it's {a} $b", "--number", "0"]


def test_a_full_sweep_is_told_its_pass_and_nothing_of_its_selector(config: Configuration) -> None:
    told = parsed(arguments.sweep(config, wildcards("base/removal/layer", block="1")))
    assert told["pass"] == "removal" and told["units"] == "layer" and told["block"] == "1"
    assert "budget" not in told and "plan" not in told
    assert json.loads(told["keys"]) == {"model": "small", "calibration": "recall", "selector": "base", "removed": 0}
    later = parsed(arguments.sweep(config, wildcards("accuracy", 2, block="0")))
    assert later == told | {
        "block": "0",
        "plan": PLACE.format("plans", 2) + ".json",
        "keys": later["keys"],
    }


def test_a_sweep_under_a_budget_is_told_what_the_budget_reads(config: Configuration) -> None:
    budget = json.loads(parsed(arguments.sweep(config, wildcards("race", 1, block="0")))["budget"])
    assert budget == {
        "budget": "race",
        "metric": "output_js",
        "protect": [0],
        "confidence": 0.95,
        "tolerance": 0.02,
        "seed": 0,
        "score": "acc_norm",
        "step": 2,
    }


def test_a_pass_over_drawn_models_is_told_what_it_draws_and_no_other(raw: Raw, tmp_path: Path) -> None:
    raw = put(put(raw, "metrics", {"shapley": {"local": 3}, "presence": {"draws": 50}}), "seed", 7)
    config = load(raw, workplace(tmp_path))
    told = json.loads(parsed(arguments.sweep(config, wildcards("base/shapley/layer", block="0")))["drawn"])
    assert told == {"options": {"local": 3}, "score": "acc_norm", "seed": 7}
    valued = arguments.early_metric(config, wildcards("base/shapley/layer"))
    assert valued is not None and valued.name == "accuracy"
    assert "drawn" not in parsed(arguments.sweep(config, wildcards("base/removal/layer", block="0")))


def test_a_sweep_with_the_repair_in_the_loop_is_told_the_repair(raw: Raw, tmp_path: Path) -> None:
    config = load(put(put(raw, "seed", 7), "recoveries.ghost.rank", 8), workplace(tmp_path))
    told = parsed(arguments.sweep(config, wildcards("looped", 1, block="0")))
    options = {"method": "ghost", "rank": 8}
    assert json.loads(told["recovery"]) == {"name": "ghost", "options": options, "protect": [0], "seed": 4}
    assert "budget" not in told
    # What has no seed of its own draws the folds with the top-level one.
    assert json.loads(parsed(arguments.sweep(config, wildcards("looped_once", block="0")))["recovery"])["seed"] == 7
    for selector in ("accuracy", "race", "base/removal/layer"):
        assert "recovery" not in parsed(arguments.sweep(config, wildcards(selector, block="0")))


def test_a_search_is_told_all_sizes_of_the_studies(raw: Raw, tmp_path: Path) -> None:
    raw["studies"]["found"] = raw["studies"]["prune"] | {"selectors": ["beam"], "removed": [3, "50%", 1]}
    config = load(raw, workplace(tmp_path))
    told = parsed(arguments.search(config, wildcards("beam")))
    assert json.loads(told["sizes"]) == [1, 3, 4]
    assert json.loads(told["keys"]) == {"model": "small", "calibration": "recall", "selector": "beam"}
    assert json.loads(told["selector"]) == {
        "strategy": "beam",
        "metric": "accuracy",
        "width": 2,
        "recovery": "ghost",
    }
    assert json.loads(told["recovery"])["options"] == {"method": "ghost"}
    assert arguments.search_modules(config, wildcards("beam")) == [
        "lamina.search.beam",
        "lamina.relevance.accuracy",
        "lamina.search.growing",
        "lamina.recovery.ghost",
    ]
    assert studies.searching(config) == ["beam"]
    assert "results/searches/small/recall/beam.parquet" in inputs.table_parts(config, "searches")
    assert not [place for place in studies.sweeps(config) if place[2] == "beam"]


@pytest.mark.parametrize(
    ("selector", "modules"),
    [
        ("base/removal/layer", []),
        ("base/gradient/layer", ["lamina.passes.weights"]),
        ("accuracy", []),
        ("race", ["lamina.search.race"]),
        ("looped", ["lamina.search.looped", "lamina.recovery.ghost"]),
        ("looped_race", ["lamina.search.race", "lamina.search.looped", "lamina.recovery.ghost"]),
        ("taylor", ["lamina.passes.weights"]),
        ("base/shapley/mlp", ["lamina.passes.coalitions", "lamina.relevance.shapley"]),
        ("residual", ["lamina.passes.residuals"]),
    ],
)
def test_a_sweep_reaches_its_pass_or_budget(config: Configuration, selector: str, modules: list[str]) -> None:
    assert arguments.sweep_modules(config, wildcards(selector)) == modules


def test_a_sweep_depends_on_a_metrics_entry_only_where_units_leave_by_it(config: Configuration) -> None:
    found = {name: arguments.early_metric(config, wildcards(name)) for name in ("accuracy", "race", "base/removal/mlp")}
    assert found["race"] is not None and found["race"].name == "output_js"
    assert found["accuracy"] is None and found["base/removal/mlp"] is None


def test_scores_are_of_every_metric_that_the_pass_measures(config: Configuration) -> None:
    told = parsed(arguments.score(config, wildcards("base/removal/layer")))
    assert {"accuracy", "perplexity", "output_kl", "cosine", "angular"} <= set(told["metrics"].split(","))
    assert "taylor" not in told["metrics"] and told["score"] == "acc_norm"
    assert parsed(arguments.score(config, wildcards("base/stream/layer")))["metrics"] == "cosine,angular"
    assert parsed(arguments.score(config, wildcards("base/gradient/layer")))["metrics"] == "taylor,magnitude,random"
    modules = arguments.score_modules(config, wildcards("base/stream/layer"))
    assert modules == ["lamina.relevance.cosine", "lamina.relevance.angular"]


def test_a_plan_depends_on_its_own_metric_and_strategy_alone(config: Configuration) -> None:
    assert arguments.prune_modules(config, wildcards("cosine", 1)) == [
        "lamina.search.iterative",
        "lamina.relevance.cosine",
    ]
    assert arguments.prune_modules(config, wildcards("random", 1)) == ["lamina.search.random"]
    told = parsed(arguments.prune(config, wildcards("cosine", 1)))
    assert json.loads(told["selector"]) == {"strategy": "iterative", "metric": "cosine", "protect": [0, -1]}
    assert "relevance" not in told


def test_the_evidence_of_a_step(config: Configuration) -> None:
    base = "results/sweeps/small/recall/base/removal/layer/removed=0.parquet"
    assert inputs.step_evidence(config, wildcards("accuracy", 1)) == {"sweep": base}
    assert inputs.step_evidence(config, wildcards("once", 3)) == {"sweep": base}
    assert inputs.step_evidence(config, wildcards("accuracy", 3)) == {
        "sweep": PLACE.format("sweeps", 2) + ".parquet",
        "previous": PLACE.format("plans", 2) + ".json",
    }
    for own in ("race", "looped", "looped_once"):
        first = f"results/sweeps/small/recall/{own}/removed=0.parquet"
        assert inputs.step_evidence(config, wildcards(own, 1)) == {"sweep": first}
    assert inputs.step_evidence(config, wildcards("angular", 2)) == {
        "activations": "results/activations/small/recall.parquet"
    }
    assert inputs.step_evidence(config, wildcards("random", 2)) == {}


def test_variants_are_read_from_the_files_that_make_them(config: Configuration) -> None:
    listed = [v for v in studies.variants(config) if v.removed == 1]
    assert inputs.variants(listed) == [
        "results/adapters/small/recall/accuracy/removed=1/ghost/lora/training.parquet",
        "results/adapters/small/recall/accuracy/removed=1/none/lora/training.parquet",
        "results/patches/small/recall/accuracy/ghost.safetensors",
        "results/plans/small/recall/accuracy/removed=1.json",
    ]


def test_a_benchmark_waits_for_the_check_of_its_calibration(config: Configuration) -> None:
    base = Wildcards(model="m", calibration="none", task="t")
    assert inputs.overlap_gates(config, base, []) == ["results/tasks/t.parquet"]
    own = Wildcards(model="m", calibration="c", task="t")
    plain = [Variant("m", "c", "accuracy", 1, recovery) for recovery in ("none", "ghost")]
    assert inputs.overlap_gates(config, own, plain) == ["results/overlap/m/c/t.json"]


@pytest.fixture
def mended(raw: Raw, tmp_path: Path) -> Configuration:
    """As `config`, with a repair that is also fitted on general text."""
    raw["recoveries"]["general"] = {"method": "ghost", "bias": True, "data": {"corpus": 0.1, "own": 1}}
    raw["studies"]["prune"]["recoveries"] = ["none", "ghost", "general"]
    return load(raw, workplace(tmp_path))


def test_what_a_repair_is_also_fitted_on_is_read_checked_and_listed(mended: Configuration) -> None:
    place = wildcards(recovery="general")
    file = "results/calibrations/small/corpus.parquet"
    assert inputs.added_data(mended, place, "general") == {"corpus": file}
    told = shlex.split(arguments.recover(mended, place))
    assert told[-2:] == ["--data", f"corpus={file}"]
    options = parsed(shlex.join(told[:-2]))
    assert json.loads(options["options"])["data"] == {"corpus": 0.1, "own": 1} and options["seed"] == "0"
    assert "--data" not in arguments.recover(mended, wildcards(recovery="ghost"))
    # A variant of that repair waits for the check of both; the tables list both.
    gate = Wildcards(model="small", calibration="recall", task="t")
    listed = [Variant("small", "recall", "accuracy", 1, recovery) for recovery in ("ghost", "general")]
    both = [f"results/overlap/small/{name}/t.json" for name in ("corpus", "recall")]
    assert inputs.overlap_gates(mended, gate, listed) == both
    assert inputs.overlap_gates(mended, gate, listed[:1]) == both[1:]
    assert file in inputs.table_parts(mended, "calibrations")
    assert file not in inputs.table_parts(mended, "activations")


def test_what_a_repair_in_the_loop_is_fitted_on_is_read_and_checked_too(raw: Raw, tmp_path: Path) -> None:
    """Also where the finished plan is not repaired."""
    raw["recoveries"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": 0.1}}
    raw["selectors"]["looped"]["recovery"] = "general"
    raw["studies"]["prune"] |= {"selectors": ["looped"], "recoveries": ["none"]}
    config = load(raw, workplace(tmp_path))
    file = "results/calibrations/small/corpus.parquet"
    assert shlex.split(arguments.sweep(config, wildcards("looped", block="0")))[-2:] == ["--data", f"corpus={file}"]
    assert "--data" not in arguments.sweep(config, wildcards("accuracy", block="0"))
    gate = Wildcards(model="small", calibration="recall", task="t")
    found = inputs.overlap_gates(config, gate, [Variant("small", "recall", "looped", 1)])
    assert found == [f"results/overlap/small/{name}/t.json" for name in ("corpus", "recall")]
    assert file in inputs.table_parts(config, "calibrations")


def test_what_a_healing_trains_on_is_read_checked_and_listed(raw: Raw, tmp_path: Path) -> None:
    raw["healings"] |= {
        "other": {"method": "lora", "data": "corpus"},
        "both": {"method": "lora", "data": {"own": 1, "corpus": 0.1}},
        "alone": {"method": "lora", "data": {"own": 2}},
    }
    raw["studies"]["prune"]["healings"] = ["lora", "other", "both", "alone"]
    config, file = load(raw, workplace(tmp_path)), "results/calibrations/small/corpus.parquet"
    gate = Wildcards(model="small", calibration="recall", task="t")
    for healing, added in (("lora", []), ("alone", []), ("other", ["corpus"]), ("both", ["corpus"])):
        place = wildcards(recovery="none", healing=healing)
        assert inputs.healing_data(config, place) == dict.fromkeys(added, file)
        assert shlex.split(arguments.heal(config, place)) == (["--data", f"corpus={file}"] if added else [])
        listed = [Variant("small", "recall", "accuracy", 1, "none", healing)]
        assert inputs.overlap_gates(config, gate, listed) == [
            f"results/overlap/small/{name}/t.json" for name in [*added, "recall"]
        ]
        # What had no other word before is told to jobs as before.
        assert ("data" in config.healings[healing].options()) == bool(added)
    assert file in inputs.table_parts(config, "calibrations")
    assert studies.trained_on(config, "recall", "both") == {"recall": 1.0, "corpus": 0.1}
    assert studies.trained_on(config, "corpus", "both") == {"corpus": 1.1}


def test_weights_follow_names_and_the_own_calibration_comes_first(mended: Configuration) -> None:
    general = mended.recoveries["general"]
    assert list(general.weights("recall").items()) == [("recall", 1.0), ("corpus", 0.1)]
    assert general.weights("corpus") == {"corpus": pytest.approx(1.1)}
    assert mended.recoveries["ghost"].weights("recall") == {"recall": 1.0}
    assert "data" not in mended.recoveries["ghost"].options()


def test_only_a_weight_that_is_left_open_needs_what_chooses_it(raw: Raw, tmp_path: Path) -> None:
    """A variant of that calibration itself leaves none open; in the loop of a selector it stands for a tenth."""
    raw["recoveries"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    root = workplace(tmp_path)
    config = load(raw, root)
    own = arguments.recover_modules(config, wildcards(recovery="general"))
    assert own == ["lamina.recovery.ghost", "lamina.recovery.weighing"]
    itself = Wildcards(model="small", calibration="corpus", recovery="general")
    assert arguments.recover_modules(config, itself) == ["lamina.recovery.ghost"]
    assert arguments.recover_modules(config, wildcards(recovery="ghost")) == ["lamina.recovery.ghost"]
    raw["recoveries"]["general"] = {"method": "ghost", "refit": True}
    config = load(raw, root)
    own = arguments.recover_modules(config, wildcards(recovery="general"))
    assert own == ["lamina.recovery.ghost", "lamina.recovery.refit"]
    raw["recoveries"]["general"] = {"method": "ghost", "data": {"own": 1, "corpus": "auto"}}
    config = load(raw, root)
    assert config.recoveries["general"].weights("recall") == {"recall": 1.0, "corpus": 0.1}
    assert config.recoveries["general"].weights("recall", 3.0)["corpus"] == 3.0


def test_local_files_behind_calibrations_and_tasks(config: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    files = {name: inputs.calibration_files(config, Wildcards(calibration=name)) for name in config.calibrations}
    assert "workflow/tasks/microworld_recall.yaml" in files["recall"]
    assert "workflow/tasks/microworld_facts.yaml" in files["mixture"] and len(files["mixture"]) > len(files["recall"])
    assert files["corpus"] == ["resources/reference/data/corpus_train.jsonl"]
    assert files["mine"] == ["mine.jsonl"]
    assert inputs.local_files("mine", inputs.tested(config, "mine")) == ["mine_test.jsonl"]
    assert inputs.local_files("corpus_test", inputs.tested(config, "corpus_test")) == [
        "resources/reference/data/corpus_test.jsonl"
    ]


def test_every_table_is_gathered_from_what_the_studies_ask_for(config: Configuration) -> None:
    assert inputs.table_parts(config, "patches") == ["results/patches/small/recall/accuracy/ghost.parquet"]
    assert inputs.table_parts(config, "diagnoses") == []
    assert inputs.table_parts(config, "efficiency") == []
    assert len(inputs.table_parts(config, "training")) == 4
    assert inputs.table_parts(config, "relevance") == [
        file.replace("/sweeps/", "/relevance/") for file in inputs.table_parts(config, "sweeps")
    ]


def test_an_export_names_the_patch_that_no_study_fits(config: Configuration) -> None:
    with pytest.raises(LaminaError, match="no study fits recovery 'ghost' to removed=5 of small/recall/accuracy"):
        inputs.export(config, wildcards("accuracy", 5, recovery="ghost", healing="none"))
    files = inputs.export(config, wildcards("accuracy", 1, recovery="ghost", healing="lora"))
    assert set(files) == {"manifest", "plan", "patch", "adapter", "benchmarks"} and files["benchmarks"] == []
