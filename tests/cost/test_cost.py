"""The estimated work of a study, against what the engine runs and against counting by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina import paths
from lamina.data import encoding, lm_tasks
from lamina.data.calibrations import Sample
from lamina.engine import packing, sources, sweep
from lamina.engine.candidates import Candidate
from lamina.engine.footprint import Shape
from lamina.engine.session import Pass
from lamina.engine.sources import Source
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models import workload
from lamina.models.boundary import Patch
from lamina.models.sizes import count_sizes
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.models.units import all_units
from lamina.options.healings import Healing
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector
from lamina.repairs import weighing
from lamina.repairs.methods import streamline
from lamina.repairs.methods.streamline import Streamline
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.cost import batches, documents, estimate, work
from lamina_workflow.cost.work import SharingVariant, Tokens
from lamina_workflow.study import requests
from tests import ROOT
from tests.families import configurations
from tests.given import tiny
from tests.given.configurations import minimal_config, write_model_and_data

REFERENCE = ROOT / "resources/reference"


@pytest.mark.parametrize("removed_units", [[], ["6"], ["3", "8"]])
def test_a_sweep_does_about_the_estimated_work(removed_units: list[str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    encoder = encoding.open_encoder(model, AutoTokenizer.from_pretrained(REFERENCE))
    task = lm_tasks.task_object("microworld_facts", ROOT, split="train")
    samples = lm_tasks.task_samples(task, encoder, 200, 0)
    with sweep.open_session(model, samples) as session:
        session.sweep(all_units(12, "layer", removed_units), removed_units)

    n_packed_tokens = 0
    for number, sample in enumerate(samples):
        lines = packing.pack_sample(number, sample)
        n_packed_tokens += sum(len(line.tokens) for line in lines)
    tokens = Tokens(len(samples), n_packed_tokens, 1, 1)
    predicted, _ = work.sweep_work(tokens, 12, len(removed_units), "removal", "layer")
    # The rest is padding, and where the first removed layer really lies.
    assert session.layer_tokens == pytest.approx(predicted, rel=0.15)


@pytest.mark.slow
def test_writing_answers_does_at_most_the_estimated_work() -> None:
    """What lm-eval's own loop runs, in batches that go on until their longest answer ends.

    The estimate counts the longest answers that the task allows. This model stops before.
    """
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    workload.count_work(model)
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    task = lm_tasks.task_object("microworld_sorting", ROOT, split="train")
    samples = lm_tasks.task_samples(task, encoding.open_encoder(model, tokenizer), 32, 0)
    benchmark = TaskBenchmark(
        lm_tasks.task_object("microworld_sorting", ROOT), model, tokenizer, 32
    )
    work_before = workload.done.layer_tokens
    benchmark.score(model, "base")
    measured = workload.done.layer_tokens - work_before

    longest_answer = documents.find_longest_answer("microworld_sorting", ROOT)
    assert longest_answer == 16
    tokens = estimate.count_tokens(samples, longest_answer)
    predicted, _ = work.benchmark_work(tokens, 12, [], [0])
    assert predicted / 2 < measured <= predicted


@pytest.mark.parametrize("budget", [100, 1000, 16384])
def test_padding_is_that_of_the_batches_of_the_engine(budget: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True)
    task = lm_tasks.task_object("microworld_facts", ROOT, split="train")
    samples = lm_tasks.task_samples(task, encoding.open_encoder(model, tokenizer), 200, 0)
    lines = [
        line for index, item in enumerate(samples) for line in packing.pack_sample(index, item)
    ]
    n_positions = 0
    for batch in packing.group_lines(lines, budget, head_cost=0.0):
        n_positions += len(batch) * max(len(line.tokens) for line in batch)

    tokens = estimate.count_tokens(samples)
    padding = batches.measure_padding(tokens.lines, budget)

    assert padding == pytest.approx(n_positions / tokens.packed)
    assert padding > 1.0


def equal_texts(count: int = 4, length: int = 12) -> list[Sample]:
    """Samples of one row each, as long as each other: no batch of them has padding."""
    return tiny.samples(tiny.tokens(count, length).tolist(), context=length // 2)


@pytest.mark.parametrize("kind", ["layer", "attention", "mlp"])
@pytest.mark.parametrize("pass_", ["removal", "stream"])
@pytest.mark.parametrize("n_removed", [0, 2])
def test_a_sweep_of_the_drawn_plan_does_exactly_the_estimated_work(
    kind: str, pass_: Pass, n_removed: int
) -> None:
    samples = equal_texts()
    removed_units = sorted(work.draw_plan(5, n_removed, kind).edits)
    with sweep.open_session(tiny.model(), samples, outputs=pass_ == "removal") as session:
        session.sweep(all_units(5, kind, removed_units), removed_units, pass_)

    tokens = estimate.count_tokens(samples)
    predicted, _ = work.sweep_work(tokens, 5, n_removed, pass_, kind)
    assert session.layer_tokens == predicted


TEN_TOKENS = Tokens(1, 10, 25, 8)  # 10 packed, 25 row by row, 8 as sequences


@pytest.mark.parametrize(
    ("pass_", "kind", "n_removed", "expected"),
    [
        # The stream runs 3 layers, and its forks the 2, 1 and 0 after each removed layer.
        ("removal", "layer", 0, (10 * (3 + 2 + 1), 25 * (3 + 3 * 2))),
        ("stream", "layer", 0, (30, 24)),
        ("weights", "layer", 0, (0, 0)),
        # A removed MLP is half a layer naively. The engine runs the whole layer and takes it away.
        ("removal", "mlp", 0, (10 * (3 + 3 + 2 + 1), 25 * (3 + 3 * 2.5))),
    ],
)
def test_the_work_of_three_layers_by_hand(
    pass_: str, kind: str, n_removed: int, expected: tuple[float, float]
) -> None:
    assert work.sweep_work(TEN_TOKENS, 3, n_removed, pass_, kind) == expected


def test_the_work_of_a_second_step_by_hand() -> None:
    """Two of four layers are left; the base model rides along from the first removed one."""
    first_removed = min(int(unit) for unit in work.draw_plan(4, 2).edits)
    engine_work, naive_work = work.sweep_work(TEN_TOKENS, 4, 2, "removal", "layer")
    assert engine_work == 10 * (2 + 1 + 4 - first_removed)
    assert naive_work == 25 * (2 + 2 * 1)


def test_a_layer_more_costs_a_layer_more() -> None:
    """Alone, a model without contexts to share runs all of its layers."""
    for n_removed in (-3, -1, 0, 2):
        variants = share_pass([n_removed])
        assert work.benchmark_work(TEN_TOKENS, 12, variants, []).engine == 10 * (12 - n_removed)


@pytest.mark.parametrize("size", [0, -2])
def test_a_variant_that_lacks_no_layer_has_no_patch_to_run(size: int) -> None:
    """Its repair has no gap to close, so it shares the whole pass with the bare variant."""
    both = work.benchmark_work(TEN_TOKENS, 12, share_pass([size], n_patched=1), [])

    assert both.engine == 10 * (12 - size)


def share_pass(sizes: Sequence[int], n_patched: int = 0) -> list[SharingVariant]:
    """A variant of each size; the first ones are measured with a patch too."""
    variants = [SharingVariant(plan, size) for plan, size in enumerate(sizes)]
    return variants + [variant._replace(is_patched=True) for variant in variants[:n_patched]]


@pytest.mark.parametrize(
    ("sizes", "n_patched"),
    [([0], 0), ([0, 3], 0), ([0, 2, 5, 7], 0), ([3, 3], 0), ([3], 1), ([2, 5], 2)],
)
def test_variants_in_one_pass_cost_what_their_tree_runs(sizes: list[int], n_patched: int) -> None:
    """A mean over random plans that agree in part."""
    generator = np.random.default_rng(0)
    samples = equal_texts(1, 4)
    measured_work: list[int] = []
    with sweep.open_session(tiny.model(depth=12), samples, outputs=False) as session:
        for _ in range(40):
            candidates: dict[int, Candidate] = {}
            shared_scores = generator.random(8)
            for variant_index, n_removed in enumerate(sizes):
                # Layers of the first third stay.
                order = np.argsort(shared_scores + generator.random(8))[:n_removed]
                layers = frozenset(str(4 + index) for index in order)
                candidates[variant_index] = Candidate(layers)
                if variant_index < n_patched:
                    patches = {run: make_patch() for run in find_runs(layers, 12)}
                    candidates[len(sizes) + variant_index] = Candidate(layers, patches)
            work_before = session.layer_tokens
            session.measure([0], candidates)
            measured_work.append(session.layer_tokens - work_before)

    tokens = estimate.count_tokens(samples)
    predicted, naive = work.benchmark_work(tokens, 12, share_pass(sizes, n_patched), [])
    assert predicted == pytest.approx(np.mean(measured_work), rel=0.1)
    assert naive == tokens.rows * sum(12 - size for size in [*sizes, *sizes[:n_patched]])


def make_patch() -> Patch:
    """A patch that changes little."""
    return Patch(operator=0.01 * torch.eye(tiny.model().config.hidden_size))


@pytest.mark.parametrize("size", [0, -1, -4, -11])
def test_a_drawn_plan_below_size_0_runs_as_many_layers_more(size: int) -> None:
    plan = work.draw_plan(4, size)

    assert work.count_layers([plan], 4) == 4 - size
    assert work.draw_plan(4, size) == plan


def test_a_variant_that_runs_alone_costs_its_layers() -> None:
    tokens = estimate.count_tokens(equal_texts(1, 4))
    variants = share_pass([0, 3])
    together, naive = work.benchmark_work(tokens, 12, variants, [])
    own_work = tokens.rows * (12 - 4)
    expected = (together + own_work, naive + own_work)
    assert work.benchmark_work(tokens, 12, variants, [4]) == expected


def test_the_arithmetic_of_a_layer_by_hand() -> None:
    """Twice the weights; two lines of 10 tokens, of which a token attends to half on average.

    It multiplies 4 channels by 5 keys, and by as many values.
    """
    tokens = Tokens(samples=2, packed=20, rows=20, stream=20)
    products = 2 * (2 * 4 * 5)
    manifest = {"hidden_size": 4, "layer_parameters": 100}

    assert work.layer_flops(manifest, tokens) == 2 * 100 + products


def test_the_arithmetic_of_patches_by_hand() -> None:
    """Two runs with one start: three products of 5 tokens with 4 channels, two decompositions.

    All is doubled.
    """
    products = 3 * 2 * 16 * 5
    decompositions = 2 * 2 * 17 * 64
    assert work.patch_flops(4, 5, [(1, 2), (1, 3)]) == 2 * (products + decompositions)


def test_more_samples_cost_in_proportion() -> None:
    assert Tokens(10, 100, 200, 50).scaled(25) == Tokens(25, 250, 500, 125)


N_SAMPLES = 10
N_CHANNELS = 64
MANIFEST = {
    "n_layers": 8,
    "layer_parameters": 5,
    "hidden_size": N_CHANNELS,
    "parameters": 90,
    "path": "models/small",
    "files": {"model.safetensors": [180, 0]},
}
SHAPE = Shape(8, N_CHANNELS, 172, 512, 4)


@pytest.fixture
def configuration(tmp_path: Path) -> Any:
    """One of everything, for a model of 8 layers."""
    return load_configuration(minimal_config(), write_model_and_data(tmp_path))


def estimate_works(configuration: Any) -> list[Any]:
    """Stage, outputs and cost of each job, with ten samples in everything."""
    tokens = Tokens(N_SAMPLES, 90, 90, 90, 9, 10)
    calibrations = {("small", name): tokens for name in configuration.calibrations}
    benchmarks = configuration.benchmarks
    task_names = [*benchmarks.tasks, *benchmarks.perplexity]
    tasks = {("small", name): tokens for name in task_names}
    works = estimate.Works(
        configuration, {"small": MANIFEST}, {"small": SHAPE}, calibrations, tasks
    )
    return list(works)


@pytest.fixture
def disk_bytes(configuration: Any) -> dict[str, float]:
    """The bytes of each output."""
    sizes: dict[str, float] = {}
    for _, outputs, cost in estimate_works(configuration):
        for output in outputs:
            sizes[output] = cost.disk
    return sizes


def test_a_sweep_writes_a_row_for_each_sample_and_unit(disk_bytes: dict[str, float]) -> None:
    sweeps = [name for name in disk_bytes if "/sweeps/" in name and "/removed=0/" in name]
    n_candidates = 8 + 1  # without each layer, and with all
    assert disk_bytes[sweeps[0]] == estimate.SAMPLE_ROW_BYTES * N_SAMPLES * n_candidates


@pytest.mark.parametrize(("units", "n_units"), [("layer", 8), ("both", 16)])
def test_a_sweep_of_sub_layers_writes_a_row_for_each(
    tmp_path: Path, units: str, n_units: int
) -> None:
    raw = minimal_config()
    raw["selectors"] = {"one": {"metric": "perplexity", "units": units}}
    for study in raw["studies"].values():
        if "selectors" in study:
            study["selectors"] = ["one"]
    disk_bytes: set[float] = set()
    for stage, outputs, cost in estimate_works(
        load_configuration(raw, write_model_and_data(tmp_path))
    ):
        if stage == "sweep" and "/removal/" in outputs[0] and "/removed=0/" in outputs[0]:
            disk_bytes.add(cost.disk)

    assert estimate.SAMPLE_ROW_BYTES * N_SAMPLES * (1 + n_units) in disk_bytes


def test_a_patch_writes_a_matrix_for_each_boundary(
    configuration: Any, disk_bytes: dict[str, float]
) -> None:
    repaired = [v for v in requests.list_variants(configuration) if v.repair != "none"]
    assert repaired
    for variant in repaired:
        n_boundaries = requests.sizes_of_patches(
            configuration, "small", variant.calibration, variant.selector, variant.repair
        )
        patch_bytes = disk_bytes[paths.patch(variant.key, variant.repair)]
        assert patch_bytes == sum(n_boundaries) * N_CHANNELS * N_CHANNELS * 4


def test_benchmarks_write_a_row_for_each_sample_and_variant(configuration: Any) -> None:
    costs = [cost for stage, _, cost in estimate_works(configuration) if stage == "benchmark"]
    n_variants = 0
    for block in requests.benchmark_blocks(configuration):
        n_variants += len(requests.block_variants(configuration, *block))
    row_bytes = estimate.SAMPLE_ROW_BYTES * N_SAMPLES * n_variants
    assert sum(cost.disk for cost in costs) == row_bytes


def test_a_checkpoint_of_a_quantised_model_takes_disk_and_a_folder_of_the_user_none(
    configuration: Any,
) -> None:
    sizes: list[float] = []
    for path in ("results/checkpoints/0123-auto", "models/small"):
        manifests = {"small": MANIFEST | {"path": path}, "same": MANIFEST | {"path": path}}
        works = estimate.Works(configuration, manifests, {}, {}, {})
        sizes.append(sum(work.cost.disk for work in works._estimate_checkpoints()))
    assert sizes == [180, 0]


def test_adapters_take_disk(configuration: Any) -> None:
    assert estimate.sum_by_stage(estimate_works(configuration))["heal"].disk > 0


def test_a_healing_without_an_estimate_of_its_own_counts_as_training_of_all_weights(
    configuration: Any,
) -> None:
    bare_healing = Healing.model_construct(method="made_up")
    healings = dict.fromkeys(configuration.healings, bare_healing)
    changed = configuration.model_copy(update={"healings": healings})

    expected_disk = 0
    for variant in requests.list_variants(changed):
        if variant.healing != "none":
            n_parameters = 90 - 5 * variant.removed
            expected_disk += n_parameters * SHAPE.size
    assert estimate.sum_by_stage(estimate_works(changed))["heal"].disk == expected_disk


@pytest.fixture
def fit_work() -> Callable[..., float]:
    """The work of fitting a repair, by its options, without that of testing it.

    Of ten layers; 100 tokens of the task and 50 of other text (60 packed); for plans of one and of
    two layers.
    """
    tokens = {"own": Tokens(10, 80, 90, 100), "other": Tokens(5, 60, 60, 50)}
    # 16 of the task's tokens are held out. They run through two models of nine layers and two of
    # eight: with the repair and without.
    tested = 16 * 2 * (9 + 8)

    def compute(**options: Any) -> float:
        repair = Repair.from_options({"data": {"own": 1, "other": 0.1}, **options})
        return work.fit_work(repair, "own", tokens, 10, {1: 1, 2: 2}) - tested

    return compute


def test_a_fit_in_one_pass_by_hand(fit_work: Callable[..., float]) -> None:
    assert fit_work(method="replaceme") == 150 * 10


def test_a_fit_with_its_patches_in_place_by_hand(fit_work: Callable[..., float]) -> None:
    assert fit_work(method="ghost") == pytest.approx(1.3 * 150 * 10)


def test_a_fit_run_by_run_by_hand(fit_work: Callable[..., float]) -> None:
    """Three passes for the first run of each plan, twice as many models after it."""
    assert fit_work(method="ghost", refit=True) == (3 + 3 + 6) * 150 * 10


def test_a_fit_by_steps_by_hand(fit_work: Callable[..., float]) -> None:
    """Three runs at the most, of two layers each, in four epochs on 80 % of the tokens."""
    training = 4 * 120 * (3 + 1)
    validation = 2 * (5 * 30 + 120)
    expected = 150 * 10 + 3 * (training + validation)
    assert fit_work(method="streamline", epochs=4) == pytest.approx(expected)


@pytest.mark.parametrize("strategy", ["block", "one_shot"])
def test_training_a_layer_for_each_run_does_about_the_estimated_work(strategy: str) -> None:
    """A block is one run of layers; layers that are chosen one by one may be as many runs."""
    boundaries = {"block": [(2, 4)], "one_shot": [(2, 3), (5, 6)]}[strategy]
    selector = Selector.from_options({"strategy": strategy, "metric": "cosine"})
    assert selector.most_runs(2) == len(boundaries)
    repair = Streamline(epochs=5)
    model = tiny.model(depth=8)
    samples = equal_texts(40)
    workload.count_work(model)
    work_before = workload.done.layer_tokens
    source = Source([sample.sequence() for sample in samples])
    list(streamline.collect(model, [source], boundaries, repair, 0))
    measured = workload.done.layer_tokens - work_before

    n_tokens = estimate.count_tokens(samples).stream
    n_passes = repair.layer_passes(8, [len(boundaries)], workload.TRAINING_FACTOR, work.HELD_OUT)
    assert measured == pytest.approx(n_passes * n_tokens, rel=0.15)


def test_a_fit_that_chooses_the_weight_of_other_text_by_hand(
    fit_work: Callable[..., float],
) -> None:
    """12 tokens are held out, on 8 models of nine layers and 8 of eight."""
    expected = 150 * 10 * (1 + 2) + 12 * 8 * (9 + 8)
    assert fit_work(method="ghost", data={"own": 1, "other": "auto"}) == pytest.approx(expected)


def test_the_estimate_of_a_fit_knows_how_repairs_are_tested() -> None:
    assert len(weighing.GRID) == work.WEIGHTS
    texts = [[token_id] for token_id in range(1000)]
    (is_held_out,) = sources.draw_held_out([sources.Source(texts)], 0)
    held_out_share = sum(is_held_out) / 1000
    assert held_out_share == pytest.approx(work.HELD_OUT)


@pytest.mark.parametrize(
    ("family", "n_chosen", "n_experts"),
    [("gpt_oss", 2, 4), ("llama4_text", 1, 4), ("mixtral", 2, 4)],
)
def test_a_token_computes_with_the_experts_that_it_chooses(
    family: str, n_chosen: int, n_experts: int
) -> None:
    """By hand: of the three matrices (C × 48) of each expert, those of the chosen ones.

    Everything else counts whole.
    """
    model = configurations.model(family)
    expert_parameters = 3 * model.config.hidden_size * model.config.intermediate_size
    idle_parameters = expert_parameters * (n_experts - n_chosen)
    all_parameters = sum(weight.numel() for weight in layers_of(model).parameters())
    mean_parameters = all_parameters // len(layers_of(model))
    assert count_sizes(model, 4).layer_parameters == mean_parameters - idle_parameters


def test_a_token_computes_with_all_of_a_dense_layer() -> None:
    model = tiny.model()
    all_parameters = sum(weight.numel() for weight in layers_of(model).parameters())
    assert count_sizes(model, 4).layer_parameters == all_parameters // 5


@pytest.mark.parametrize("pass_", ["removal", "stream"])
def test_a_sweep_computes_the_estimated_logits(pass_: Pass) -> None:
    samples = equal_texts()
    model = tiny.model()
    n_positions = 0

    def count(head: object, inputs: object, output: torch.Tensor) -> None:
        nonlocal n_positions
        n_positions += output.shape[:-1].numel()

    with sweep.open_session(model, samples, outputs=pass_ == "removal") as session:
        session.sweep(all_units(5, "layer"), [], pass_)  # the first pass also tries the head
        model.get_output_embeddings().register_forward_hook(count)
        session.scores.scored[:] = False
        session.sweep(all_units(5, "layer"), [], pass_)

    tokens = estimate.count_tokens(samples)
    assert work.sweep_logits(tokens, 5, 0, pass_, "layer").positions == n_positions


def test_the_arithmetic_of_logits_by_hand() -> None:
    """Products of 3 positions with 4 channels and 10 tokens, and reading them, 2 of them twice."""
    logits = work.Logits(3, compared=2)
    products = 2 * 3 * 4 * 10
    for n_bytes, reading in ((4, work.SINGLE_READING), (2, work.HALF_READING)):
        shape = Shape(layers=1, channels=4, inner=1, vocabulary=10, size=n_bytes)
        assert work.logit_flops(shape, logits) == products + reading * 10 * (3 + 2)
