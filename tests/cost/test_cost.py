"""The estimate of a sweep's cost against the work that the engine really does, and against counting by hand."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina import paths
from lamina.data import calibrations, encoding, lm_tasks
from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.engine import packing, sources, sweep
from lamina.engine.candidates import Candidate, plan_sweep
from lamina.engine.footprint import Shape
from lamina.engine.session import Pass
from lamina.errors import LaminaError
from lamina.models import workload
from lamina.models.sizes import count_sizes
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.options import repairs, selectors
from lamina.options.healings import Healing
from lamina.repair import weighing
from lamina.selection import judging
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.options import Loop
from lamina.selection.sets import SearchRequest
from lamina.selection.trials import Trials, run_search
from lamina.store import parquet
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.cost import estimate, forecast, searches, work
from lamina_workflow.cost.forecast import Stage
from lamina_workflow.cost.searches import SearchedModel
from lamina_workflow.cost.work import Tokens
from lamina_workflow.study import requests
from tests.families import configurations
from tests.given import tiny
from tests.given.configurations import minimal_config, write_model_and_data

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "resources/reference"


@pytest.mark.parametrize("removed", [[], ["6"], ["3", "8"]])
def test_the_engine_does_the_work_that_was_estimated(removed: list[str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    recorder = encoding.open_encoder(model, AutoTokenizer.from_pretrained(REFERENCE))
    samples = lm_tasks.task_samples(
        lm_tasks.task_object("microworld_facts", ROOT, split="train"), recorder, 200, 0
    )
    units = all_units(12, "layer", removed)
    with sweep.open_session(model, samples) as session:
        session.sweep(units, removed)
    packed = sum(
        len(line.tokens)
        for number, sample in enumerate(samples)
        for line in packing.pack_sample(number, sample)
    )
    tokens = Tokens(len(samples), packed, 1, 1)
    predicted, _ = work.sweep_work(tokens, 12, len(removed), "removal", "layer")
    # The rest is padding, and where the first removed layer really lies.
    assert session.layer_tokens == pytest.approx(predicted, rel=0.15)


def lines(count: int = 4, length: int = 12) -> tuple[list[Sample], Tokens]:
    """Samples of one row each, as long as each other: no batch of them has padding."""
    samples = tiny.samples(tiny.tokens(count, length).tolist(), context=length // 2)
    return samples, estimate.count_tokens(samples)


@pytest.mark.parametrize("kind", ["layer", "attention", "mlp"])
@pytest.mark.parametrize("pass_", ["removal", "stream"])
@pytest.mark.parametrize("removed", [0, 2])
def test_a_sweep_of_the_drawn_plan_does_the_estimated_work(
    kind: str, pass_: Pass, removed: int
) -> None:
    samples, tokens = lines()
    gone = sorted(work.draw_plan(5, removed, kind).removed)
    with sweep.open_session(tiny.model(), samples, outputs=pass_ == "removal") as session:
        session.sweep(all_units(5, kind, gone), gone, pass_)
    assert work.sweep_work(tokens, 5, removed, pass_, kind)[0] == session.layer_tokens


def test_a_sweep_with_donors_does_the_estimated_work() -> None:
    samples, tokens = lines()
    model, others = tiny.model(), layers_of(tiny.model(seed=1))
    given = [f"{layer}.@other" for layer in range(5)]
    with sweep.open_session(
        model, samples, replacements=dict(zip(given, others, strict=True))
    ) as session:
        session.measure(range(4), *plan_sweep(Candidate(), [*all_units(5, "layer"), *given]))
    engine_work, naive = work.sweep_work(tokens, 5, 0, "removal", "layer", ["@other"])
    # The unpruned model; it without each of its five layers; and with each of them replaced.
    assert engine_work == session.layer_tokens and naive == tokens.rows * (5 + 5 * 4 + 5 * 5)


def test_by_hand() -> None:
    """Three layers, 10 tokens packed, 25 read naively: 3 + (2 + 1 + 0) layers, against 3 + 3 · 2."""
    tokens = Tokens(1, 10, 25, 8)
    assert work.sweep_work(tokens, 3, 0, "removal", "layer") == (60, 225)
    assert work.sweep_work(tokens, 3, 0, "stream", "layer") == (30, 24)
    assert work.sweep_work(tokens, 3, 0, "weights", "layer") == (0, 0)
    assert work.sweep_work(tokens, 3, 1, "fit", "layer") == (48, 48)
    # Two of four left, the unpruned model riding along from the first removed layer: 2 + 1 + 4, 3 or 2 layers.
    first = min(map(int, work.draw_plan(4, 2).removed))
    assert work.sweep_work(tokens, 4, 2, "removal", "layer") == (
        10 * (2 + 1 + 4 - first),
        25 * (2 + 2 * 1),
    )
    # A half that is gone is half a layer naively. The engine runs the whole layer and takes the half's part away.
    assert work.sweep_work(tokens, 3, 0, "removal", "mlp") == (
        10 * (3 + 3 + 2 + 1),
        25 * (3 + 3 * 2.5),
    )


def test_a_plan_without_a_gpu_is_one_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {"stages": {"sweep": asdict(Stage(1, flops=5e12, disk=3e9))}, "notes": []}
    parquet.write_text(tmp_path / "cost.json", json.dumps(costs))
    monkeypatch.setattr(forecast.devices, "list_devices", lambda environment: [])
    monkeypatch.setattr(forecast, "measure_rate", lambda results, always: 5e10)
    monkeypatch.setattr(forecast, "measure_start", lambda: forecast.StartSeconds(4.0, 1.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    forecast.main([str(tmp_path / "cost.json"), "--jobs", "11"])
    told = capsys.readouterr().out
    assert (
        "1.67 min" in told
        and "at the 0.05 TFLOP/s of the study's own model" in told
        and "3 GB" in told
    )
    # 100 s of arithmetic, one start of 4 s and ten of 1 s, two jobs at a time.
    assert "11 jobs are left to run." in told and "in all about 57 s, with 2 at a time." in told
    forecast.main([str(tmp_path / "cost.json")])
    assert "Nothing is left to run." in capsys.readouterr().out
    monkeypatch.setattr(forecast.devices, "list_devices", lambda environment: ["0"])
    forecast.main([str(tmp_path / "cost.json")])
    assert "Times of one device at 100 TFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", [[0], [0, 3], [0, 2, 5, 7], [3, 3]])
def test_variants_in_one_pass_cost_what_their_tree_runs(sizes: list[int]) -> None:
    """A mean over random plans."""
    rng, (samples, tokens), runs = np.random.default_rng(0), lines(1, 4), []
    with sweep.open_session(tiny.model(depth=12), samples, outputs=False) as session:
        for _ in range(40):
            drawn = [frozenset(map(str, rng.choice(12, n, replace=False).tolist())) for n in sizes]
            before = session.layer_tokens
            session.measure([0], {number: Candidate(units) for number, units in enumerate(drawn)})
            runs.append(session.layer_tokens - before)
    predicted, naive = work.benchmark_work(tokens, 12, sizes, [])
    assert predicted == pytest.approx(np.mean(runs), rel=0.1)
    assert naive == tokens.rows * sum(12 - n for n in sizes)
    with_one_alone = work.benchmark_work(tokens, 12, sizes, [4])
    assert with_one_alone == (predicted + tokens.rows * 8, naive + tokens.rows * 8)


@pytest.mark.parametrize(
    "options",
    [
        {"offspring": 5, "generations": 3, "stages": [[2, 60], [1, 200]]},
        {
            "offspring": 32,
            "generations": 6,
            "stages": [[2, 60], [1, 200]],
            "units": "mlp",
            "protect": [0],
        },
    ],
)
def test_a_search_costs_about_what_its_rounds_do(options: dict[str, Any]) -> None:
    """On all samples and on some."""
    options = {"metric": "perplexity", "strategy": "evolutionary", **options}
    (samples, tokens), selector = lines(40), selectors.Selector.from_options(options)
    units = [
        unit
        for unit in all_units(8, selector.units)
        if not (selector.protect and unit.startswith("0"))
    ]
    with sweep.open_session(
        tiny.model(depth=8), samples, token_budget=100_000, outputs=False
    ) as session:
        trials = Trials(
            Evaluator(session, loss_of("perplexity", "acc")),
            40,
            count_layer_tokens=lambda: session.layer_tokens,
        )
        held_back, seen = np.split(np.arange(40), [round(40 * selector.held_back)])
        run_search(trials, units, [2, 4], selector, seen, held_back, np.full(40, 12))
    about = ("own", {"own": tokens}, SearchedModel(8, 32, 100_000), [2, 4], selector, {})
    predicted = searches.search_work(*about)
    assert predicted.layer_tokens == pytest.approx(session.layer_tokens, rel=0.15)
    assert predicted.naive_layer_tokens > predicted.layer_tokens and not predicted.patch_flops
    assert searches.search_work(*about) == predicted


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"also": {"text": 0.5}},
        {"repairs": ["ghost"]},
        {"also": {"text": 0.5}, "repairs": ["ghost", "second"]},
        {"judge": "text"},
        {"members": ["perplexity", "pairwise"]},
        {"members": ["perplexity", "block"], "units": "both", "repairs": ["ghost"]},
    ],
)
def test_a_portfolio_costs_about_what_its_rounds_do(changes: dict[str, Any]) -> None:
    """Against what the layers of a model really run, with text that judges, other judges, and fits of repairs."""
    model, own = tiny.model(depth=8), build_calibration(40, 12)
    text = build_calibration(24, 40, seed=1)
    told = {"strategy": "portfolio", "metric": "perplexity", "exchanges": 8}
    options = selectors.Selector.from_options(told | changes)
    ghost = repairs.Repair.from_options({"method": "ghost", "data": {"own": 1, "text": 0.1}})
    loop = Loop(repair=ghost, weights=[("own", 1.0), ("text", 0.1)], protect=[], seed=0)
    request = SearchRequest(
        model,
        {"own": own, "text": text},
        options,
        [2, 3],
        {"model": "m", "calibration": "own", "selector": "s"},
        "acc",
        4000,
        loops=dict.fromkeys(options.repairs, loop),
        manifest={"attention_share": {"parameters": 0.4}},
    )
    workload.count_work(model)
    before = workload.done.layer_tokens
    judging.search_plans(request)
    truth = workload.done.layer_tokens - before

    read = {"own": estimate.count_tokens(own.samples), "text": estimate.count_tokens(text.samples)}
    about = SearchedModel(8, 32, 4000, 0.4)
    tried = dict.fromkeys(options.repairs, ghost)
    forecast_ = searches.search_work("own", read, about, [2, 3], options, tried)
    assert 1 / 1.4 < truth / forecast_.layer_tokens < 1.4
    assert bool(forecast_.patch_flops) == bool(options.repairs)


def build_calibration(count: int, length: int, seed: int = 0) -> CalibrationSamples:
    """Different lines of one length."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, tiny.VOCABULARY, (count, length), generator=drawn)
    samples = tiny.samples(ids.tolist(), context=length // 2)
    return calibrations.build_calibration(
        samples, tiny.VOCABULARY, source="test", split="test", seed=0
    )


def test_the_arithmetic_of_patches_by_hand() -> None:
    """Two runs with one start: three products of 5 tokens with 4 channels, two times two decompositions; all doubled."""
    runs = [(1, 2), (1, 3)]
    assert work.patch_flops(4, 5, runs) == 2 * (3 * 2 * 16 * 5 + 2 * 2 * 17 * 64)


def test_more_samples_cost_in_proportion() -> None:
    assert Tokens(10, 100, 200, 50).scaled(25) == Tokens(25, 250, 500, 125)


def test_disk_is_that_of_samples_patches_and_adapters(tmp_path: Path) -> None:
    """Of 8 layers with 64 channels, and ten samples in everything."""
    config = load_configuration(minimal_config(), write_model_and_data(tmp_path))
    tokens, shape = Tokens(10, 90, 90, 90, 9, 10), Shape(8, 64, 172, 512, 4)
    facts = {"n_layers": 8, "layer_parameters": 5, "hidden_size": 64}
    names = [*config.benchmarks.tasks, *config.benchmarks.perplexity]
    drawn, tasks = (
        {("small", name): tokens for name in every} for every in (config.calibrations, names)
    )
    works = list(estimate.Works(config, {"small": facts}, {"small": shape}, drawn, tasks))
    disk = {output: cost.disk for _, outputs, cost in works for output in outputs}
    swept = next(name for name in disk if "/sweeps/" in name and "/removed=0/" in name)
    assert disk[swept] == estimate.SAMPLE_ROW_BYTES * 10 * 9  # with all layers, and without each
    variants = requests.list_variants(config)
    for v in variants:
        if v.repair != "none":
            sizes = requests.sizes_of_patches(config, "small", v.calibration, v.selector, v.repair)
            assert disk[paths.patch(v.key, v.repair)] == sum(sizes) * 64 * 64 * 4
    rows = sum(cost.disk for stage, _, cost in works if stage == "benchmark")
    blocks = [
        requests.block_variants(config, *block) for block in requests.benchmark_blocks(config)
    ]
    assert rows == estimate.SAMPLE_ROW_BYTES * 10 * sum(map(len, blocks))
    assert estimate.sum_by_stage(works)["heal"].disk > 0


def test_a_healing_has_a_cost_without_options_of_its_own(tmp_path: Path) -> None:
    """It counts as training of all weights."""
    config = load_configuration(minimal_config(), write_model_and_data(tmp_path))
    bare_healing = Healing.model_construct(method="made_up")
    healings = dict.fromkeys(config.healings, bare_healing)
    config = config.model_copy(update={"healings": healings})
    manifest = {"n_layers": 8, "layer_parameters": 5, "hidden_size": 64, "parameters": 90}
    shape = Shape(8, 64, 172, 512, 4)
    tokens = Tokens(10, 90, 90, 90, 9, 10)
    calibrations = {("small", name): tokens for name in config.calibrations}
    task_names = [*config.benchmarks.tasks, *config.benchmarks.perplexity]
    tasks = {("small", name): tokens for name in task_names}
    works = estimate.Works(config, {"small": manifest}, {"small": shape}, calibrations, tasks)
    healed_variants = [v for v in requests.list_variants(config) if v.healing != "none"]
    expected_disk = sum((90 - 5 * v.removed) * shape.size for v in healed_variants)
    assert estimate.sum_by_stage(list(works))["heal"].disk == expected_disk


def test_sizes_have_their_digits_and_a_unit() -> None:
    assert [*map(forecast.format_bytes, (0, 2.5e5, 1.61e8, 9.996e8, 1e10))] == [
        "",
        "0.25 MB",
        "161 MB",
        "1 GB",
        "10 GB",
    ]


def test_the_table_adds_up() -> None:
    stages = {
        "sweep": Stage(2, 1e6, 3.6e15, 5e6, 1.8e16, 3e9, 1e9),
        "heal": Stage(2, 1e6, 3.6e15, 5e6, 1.8e16, 2e7, 5e8),
    }
    last = forecast.format_table(stages, 1e12).splitlines()[-1]
    assert last.split() == ["all", "4", "2e+06", "7.2", "2", "h", "10", "h", "3", "GB", "1.5", "GB"]


def test_times_are_told_in_a_unit_to_read() -> None:
    assert [forecast.format_duration(s) for s in (0.0, 5e-4, 7.25, 89, 90, 5399, 5400)] == [
        *("0 s", "< 0.01 s", "7.2 s", "89 s", "1.5 min", "90 min", "1.5 h")
    ]


def test_the_pace_is_that_of_a_sweep() -> None:
    """Of a model as small as can be; nothing is said of how fast, which is the machine's."""
    model = tiny.model()
    parameters = sum(weight.numel() for weight in model.get_decoder().layers.parameters())
    manifest = {"n_layers": 5, "hidden_size": 32, "layer_parameters": parameters // 5}
    samples = tiny.samples(tiny.tokens(10, 12).tolist(), "choices", context=6)
    assert 0 < forecast.measure_sweep_rate(model, manifest, samples) < 1e15


def test_a_start_is_that_of_processes_that_import_what_jobs_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(forecast.subprocess, "run", lambda command, check: commands.append(command))
    assert all(seconds >= 0 for seconds in forecast.measure_start())
    computing, other = (command[-1].removeprefix("import ").split(", ") for command in commands)
    assert set(other) < set(computing) and all(find_spec(name) for name in computing)


def test_fits_by_hand() -> None:
    """Ten layers; 100 tokens of the task and 50 of other text (60 packed); plans of one and of two layers."""
    read = {"own": Tokens(10, 80, 90, 100), "other": Tokens(5, 60, 60, 50)}

    def fitting(**options: Any) -> float:
        return work.fit_work(
            repairs.Repair.from_options({"data": {"own": 1, "other": 0.1}, **options}),
            "own",
            read,
            10,
            [1, 2],
        )

    # 16 of the own tokens held out, through two models of nine layers and two of eight: with the repair and without.
    tested = 16 * 2 * (9 + 8)
    assert fitting(method="ghost") - tested == pytest.approx(1.3 * 150 * 10)
    assert fitting(method="replaceme") - tested == 150 * 10
    # Run by run: 3 passes for the first of each plan, twice as many models behind it.
    assert fitting(method="ghost", refit=True) - tested == (3 + 3 + 6) * 150 * 10
    # Three runs at the most, 80 % of the tokens in steps and the rest, and all once more, looked at; two layers each.
    assert fitting(method="streamline", epochs=4) - tested == pytest.approx(
        150 * 10 + 3 * (4 * 120 * (3 + 1) + 2 * (5 * 30 + 120))
    )
    # 12 tokens held out, on 8 models of nine layers and 8 of eight.
    weighed = fitting(method="ghost", data={"own": 1, "other": "auto"})
    assert weighed - tested == pytest.approx(150 * 10 * (1 + 2) + 12 * 8 * (9 + 8))
    assert len(weighing.GRID) == work.WEIGHTS
    (held,) = sources.draw_held_out([sources.Source([[each] for each in range(1000)])], 0)
    assert sum(held) / 1000 == pytest.approx(work.HELD_OUT)


@pytest.mark.parametrize("written", ["abc", "0", "-3", "nan", "inf"])
def test_a_rate_that_no_device_has_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(LaminaError, match=f"RATE={written}: .* such as RATE=100"):
        forecast.parse_rate(written)
    assert forecast.parse_rate("2.5") == 2.5


@pytest.mark.parametrize(
    ("family", "chosen", "experts"), [("gpt_oss", 2, 4), ("llama4_text", 1, 4), ("mixtral", 2, 4)]
)
def test_a_token_computes_with_the_experts_that_it_chooses(
    family: str, chosen: int, experts: int
) -> None:
    """By hand: of the three matrices (C × 48) of each expert, those of the chosen ones; everything else whole."""
    model = configurations.model(family)
    wide = model.config.hidden_size * model.config.intermediate_size
    idle = 3 * wide * (experts - chosen)
    layers = sum(weight.numel() for weight in layers_of(model).parameters())
    depth = len(layers_of(model))
    assert count_sizes(model, 4).layer_parameters == layers // depth - idle
    dense = tiny.model()
    weights = layers_of(dense).parameters()
    assert count_sizes(dense, 4).layer_parameters == sum(w.numel() for w in weights) // 5
