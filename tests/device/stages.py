"""Every stage that runs on a GPU, each as a function of a world that returns what it would write.

A stage loads its model as a job does, so that it is on the device that `lamina.models.load` chose.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

import lamina
from lamina.data import calibrations
from lamina.data.lm_tasks import task_object
from lamina.diagnosis import patching, probe, variance, void
from lamina.diagnosis.patching import Patching
from lamina.diagnosis.probe import Probe
from lamina.diagnosis.variance import Variance
from lamina.diagnosis.void import Void
from lamina.engine import capture, memory, sweep, weights
from lamina.engine.candidates import CURRENT, Candidate
from lamina.evaluation import efficiency, perplexity
from lamina.evaluation.assembly import Parts
from lamina.evaluation.generation import GenerationBenchmark
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together, candidate_of
from lamina.healing import full, lora
from lamina.healing.batches import TrainingSource
from lamina.models import replacements
from lamina.models.boundary import Patch
from lamina.models.export import save as export
from lamina.models.materialise import materialise
from lamina.models.units import all_units
from lamina.options import healings, repairs, selectors
from lamina.options.benchmarks import Efficiency, Generate
from lamina.repairs import check, operators, patch, protocol, refit, weighing
from lamina.repairs.protocol import Fitted, Source
from lamina.selection import judging, looped
from lamina.selection.options import Loop
from lamina.selection.sets import SearchRequest
from lamina.store.unfinished import Progress
from tests.device.world import DEPTH, UNITS, World

Stage = Callable[[World], Any]
STAGES: dict[str, Stage] = {}
PLAN = {
    "units": ["1", "2", "4"],
    "removed": 3,
    "model": "tiny",
    "calibration": "words",
    "selector": "chosen",
}
RUNS = [(1, 3), (4, 5)]


def stage(*arguments: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the stage of its name.

    With arguments, it is registered once for each of them, as `name[argument]`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if not arguments:
            STAGES[function.__name__] = function
        for argument in arguments:
            STAGES[f"{function.__name__}[{argument}]"] = _with_argument(function, argument)
        return function

    return register


def _with_argument(function: Callable[..., Any], argument: str) -> Stage:
    return lambda world: function(world, argument)


@stage()
def capture_activations(world: World) -> Any:
    return capture.capture_similarities(world.model(), world.texts, world.tokens)


@stage("layer", "attention", "mlp")
def sweep_removal(world: World, kind: str) -> Any:
    units = all_units(DEPTH, kind)
    scores = sweep.sweep_units(world.model(), world.samples, units, [], "removal", world.tokens)
    return scores.rows([CURRENT, *units])


@stage()
def sweep_stream(world: World) -> Any:
    scores = sweep.sweep_units(world.model(), world.samples, UNITS, [], "stream", world.tokens)
    return scores.rows(UNITS)


@stage()
def sweep_weights(world: World) -> Any:
    return weights.sweep_rows(world.model(), world.samples, UNITS, [], "weights", world.tokens)


@stage()
def sweep_gradient(world: World) -> Any:
    units = ["0", "2", "3"]
    return weights.sweep_rows(world.model(), world.samples, units, ["1"], "gradient", world.tokens)


@stage()
def sweep_looped(world: World) -> Any:
    model = world.model()
    ghost = repairs.Repair.from_options({"method": "ghost", "bias": True})
    candidates = {"none": Candidate()}
    candidates |= {unit: Candidate(frozenset({unit})) for unit in UNITS}
    source = Source([sample.sequence() for sample in world.samples])
    loop_patches = looped.fit_loop_patches(model, [source], candidates.values(), ghost, 0)
    with sweep.open_session(model, world.samples, world.tokens) as session:
        loop_patches.measure(session, range(len(world.samples)), candidates)
    return session.scores.rows(candidates)


@stage()
def sweep_donors(world: World) -> Any:
    model = world.model()
    replaced_units = ["2=donor:2", "4=donor:4"]
    siblings = {"donor": world.manifest("donor")}
    layers = replacements.replacement_layers(model, replaced_units, siblings)
    candidates = {unit: Candidate(frozenset({unit})) for unit in ["2", *replaced_units]}
    with sweep.open_session(model, world.samples, world.tokens, replacements=layers) as session:
        session.measure(range(len(world.samples)), candidates)
    return session.scores.rows(candidates)


@stage()
def search_plans(world: World) -> Any:
    """A portfolio with a repair that is fitted as its sets compete."""
    ghost = repairs.Repair.from_options({"method": "ghost", "ridge": 0.01})
    selector = selectors.Selector.from_options(
        {"strategy": "portfolio", "members": ["perplexity", "block"], "repairs": ["ghost"]}
    )
    request = SearchRequest(
        world.model(),
        {"words": world.calibration},
        selector,
        [1, 2],
        {"model": "tiny", "calibration": "words", "selector": "chosen"},
        "acc",
        world.tokens,
        loops={"ghost": Loop(repair=ghost, weights=[("words", 1.0)], protect=[], seed=0)},
    )
    plans, rows = judging.search_plans(request)
    for row in rows:
        del row["layer_tokens"]  # a GPU pads lines to aligned lengths
    return [[asdict(plan) for plan in plans], rows]


REPAIRS: dict[str, dict[str, Any]] = {
    "ghost": {"method": "ghost"},
    "ghost_bias_rank": {"method": "ghost", "bias": True, "rank": 8},
    "linearpatch": {"method": "linearpatch"},
    "linearpatch_diag": {"method": "linearpatch", "form": "diag"},
    "replaceme": {"method": "replaceme"},
    "replaceme_cosine": {"method": "replaceme", "objective": "cosine", "epochs": 2},
    "streamline": {"method": "streamline", "epochs": 2, "batch": 4},
}


def fit_runs(
    model: PreTrainedModel, world: World, settings: dict[str, Any]
) -> tuple[dict[Any, Fitted], list[Any]]:
    """What a repair fits at the plan's runs, and the rows of table `patches`."""
    options = repairs.Repair.from_options(settings)
    method = protocol.load_method(options.method)
    sources = [Source(world.texts)]
    fits = {}
    for run, statistics in method.collect(model, sources, RUNS, options, 0):
        fits[run] = method.fit(statistics, options)

    validated_patches = {}
    for run, fit in fits.items():
        validated_patch = method.as_patch(fit.validated)
        if validated_patch is not None:
            validated_patches[run] = validated_patch
    errors_by_run = {}
    if validated_patches:
        errors_by_run = check.measure_patches(model, sources, validated_patches, 0)

    rows = []
    for run in RUNS:
        patch_of_run = method.as_patch(fits[run].tensors)
        operator_columns = operators.describe_operator(patch_of_run) if patch_of_run else {}
        rows.append(fits[run].facts | operator_columns | errors_by_run.get(run, {}))
    fitted = {run: Fitted(options.method, fits[run].tensors) for run in RUNS}
    return fitted, rows


@stage(*REPAIRS)
def fit_patch(world: World, name: str) -> Any:
    """Fitted, written, read, and built into a variant that then predicts text."""
    model = world.model()
    fitted, rows = fit_runs(model, world, REPAIRS[name])
    file = world.scratch / "patch.safetensors"
    tensors_by_run = {run: fitted_run.tensors for run, fitted_run in fitted.items()}
    patch.write_patch(file, REPAIRS[name]["method"], patch.name_tensors(3, tensors_by_run), {})
    variant = materialise(model, PLAN, patch.read_patch(file, 3))
    return [rows, _nll(variant, world)]


@stage()
def fit_patch_refit(world: World) -> Any:
    """Each run fitted on the model with the patches before it."""
    model = world.model()
    ghost = repairs.Repair.from_options({"method": "ghost", "refit": True})
    sources = [Source(world.texts)]
    fits, validated_passes = refit.fit(model, PLAN, sources, RUNS, ghost, 0)
    fitted = {run: Fitted("ghost", fit.tensors) for run, fit in fits.items()}
    variant = materialise(model, PLAN, fitted)

    method = protocol.load_method("ghost")
    errors = []
    for run in RUNS:
        patches = {run: method.as_patch(fits[run].validated)}
        measured = check.measure_patches(model, sources, patches, 0, run=validated_passes[run])
        errors.append(measured[run])
    return [[fit.facts for fit in fits.values()], errors, _nll(variant, world)]


@stage()
def fit_patch_auto_weight(world: World) -> Any:
    """A repair whose data include another calibration, with a weight that is chosen."""
    options = repairs.Repair.from_options({"method": "ghost", "data": {"own": 1, "other": "auto"}})
    text_samples = [sample for sample in world.samples if sample.kind == "text"]
    other = calibrations.build_calibration(text_samples * 3, 64)
    calibration_by_name = {"words": world.calibration, "other": other}
    groups = weighing.group_plans(world.model(), calibration_by_name, [PLAN], {3: RUNS}, options, 0)
    return [
        [sorted(group.fits), group.plan_columns, [fit.facts for fit in group.fits.values()]]
        for group in groups
    ]


HEALINGS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "lora_patch": {"method": "lora", "train": "patch"},
    "lora_both_distill": {
        "method": "lora",
        "train": "both",
        "targets": "all",
        "objective": "distill",
    },
    "lora_attention_hidden": {"method": "lora", "targets": "attention", "objective": "lm+hidden"},
    "full": {"method": "full", "objective": "distill"},
    "full_random": {"method": "full", "start": "random"},
}
_BRIEF = {"epochs": 2, "batch": 4, "warmup_steps": 1, "learning_rate": 1e-2}


@stage(*HEALINGS)
def heal_variant(world: World, name: str) -> Any:
    """Trained with its progress saved, written, read, and built into a variant."""
    model = world.model()
    settings = {**_BRIEF, **HEALINGS[name]}
    if name.startswith("lora"):
        settings["dropout"] = 0.0
    options = healings.Healing.from_options(settings)
    method = {"lora": lora, "full": full}[options.method]
    patches = None
    if options.method == "lora":
        patches, _ = fit_runs(model, world, REPAIRS["ghost"])
    progress = Progress(world.scratch / "progress.safetensors", "the same")
    sources = [TrainingSource(world.samples)]
    healed, rows = method.heal(model, PLAN, patches, sources, options, progress)
    method.save(healed, world.scratch / "adapter")
    variant = materialise(model, PLAN, patches, world.scratch / "adapter")
    return [rows, _nll(variant, world)]


@stage()
def heal_variant_resumed(world: World) -> Any:
    """A training that was interrupted after its first epoch and goes on."""
    options = healings.Healing.from_options({**_BRIEF, "method": "lora", "dropout": 0.0})
    sources = [TrainingSource(world.samples)]
    progress = Progress(world.scratch / "progress.safetensors", "the same")
    saved_states: list[Any] = []
    save = progress.save

    def save_and_interrupt(*state: Any) -> None:
        save(*state)
        saved_states.append(state)
        raise KeyboardInterrupt

    progress.save = save_and_interrupt  # type: ignore[method-assign]
    try:
        lora.heal(world.model(), PLAN, None, sources, options, progress)
    except KeyboardInterrupt:
        assert saved_states
    resumed = Progress(world.scratch / "progress.safetensors", "the same")
    _, rows = lora.heal(world.model(), PLAN, None, sources, options, resumed)
    return rows


@stage()
def benchmark_task(world: World) -> Any:
    model = world.model()
    return _score_variants(TaskBenchmark(_task(world), model, world.tokenizer()), model)


@stage()
def benchmark_together(world: World) -> Any:
    """Questions and texts of an unpruned and a repaired model in one pass."""
    model = world.model()
    fitted = {run: Fitted("ghost", {"operator": torch.eye(32) / 50}) for run in RUNS}
    parts_by_name = {"base": Parts(None, None, None), "repaired": Parts(PLAN, fitted, None)}
    candidates = {}
    for name, parts in parts_by_name.items():
        candidate = candidate_of(model, parts)
        if candidate:
            candidates[name] = candidate
    together = Together(model, candidates)

    benchmark = TaskBenchmark(_task(world), model, world.tokenizer())
    results = []
    for name in parts_by_name:
        scores = benchmark.score(model, name, together)
        results.append([scores.metrics, scores.samples, _nll(model, world, name, together)])
    return results


@stage()
def benchmark_generation(world: World) -> Any:
    model = world.model()
    options = Generate(max_tokens=4, samples=2, ngram=1)
    benchmark = GenerationBenchmark(_task(world), model, world.tokenizer(), options)
    return _score_variants(benchmark, model)


@stage()
def benchmark_perplexity(world: World) -> Any:
    model = world.model()
    return [_nll(model, world), _nll(materialise(model, PLAN), world)]


_TIMED_COLUMNS = ("latency", "tokens_per_second", "device", "peak_memory")


@stage()
def benchmark_efficiency(world: World) -> Any:
    """Sizes only: times and memory differ from run to run."""
    model = world.model()
    variants = [({"timed": "x"}, materialise(model, PLAN))]
    options = Efficiency(prompt=8, generate=3, repeats=2)
    untimed_rows = []
    for row in efficiency.measure_efficiency(model, variants, options):
        untimed_rows.append({key: row[key] for key in row if not key.startswith(_TIMED_COLUMNS)})
    return untimed_rows


@stage("variance", "void")
def diagnose_layers(world: World, kind: str) -> Any:
    module, options = {"variance": (variance, Variance()), "void": (void, Void())}[kind]
    return module.diagnose(world.model(), world.samples, options, world.tokens)


@stage()
def diagnose_probe(world: World) -> Any:
    labelled_texts = [(text, "ab"[index % 2]) for index, text in enumerate(world.texts)]
    options = Probe(file="x", folds=2)
    return probe.diagnose(world.model(), labelled_texts, options, world.tokens)


@stage()
def diagnose_patching(world: World) -> Any:
    pairs = []
    for index, text in enumerate(world.texts):
        prompt = text[:6]
        counterfactual = (*text[:2], text[3] - 1, *text[3:6])
        pairs.append(patching.PromptPair(prompt, counterfactual, 5 + index, 30 + index))
    options = Patching(file="x", least=1e-6)
    return patching.diagnose(world.model(), pairs, options, world.tokens)


@stage()
def export_variant(world: World) -> Any:
    """Saved from a variant that is on a device."""
    model = world.model()
    folder = world.scratch / "export"
    fitted, _ = fit_runs(model, world, REPAIRS["ghost"])
    export.save_variant(materialise(model, PLAN, fitted), folder)
    return load_file(folder / "model.safetensors")


@stage()
def load_an_export(world: World) -> Any:
    model = world.model()
    folder = world.scratch / "export"
    export.save_variant(materialise(model, {"units": ["1", "2"]}), folder)
    world.tokenizer().save_pretrained(folder)

    loaded, tokenizer = lamina.load(folder)
    inputs = tokenizer("w1 w2 w3 w4", return_tensors="pt").to(loaded.device)
    with torch.no_grad():
        written = loaded.generate(**inputs, max_new_tokens=4, do_sample=False)
        logits = loaded(**inputs).logits
    return [written.tolist(), logits.float().cpu()]


@stage()
def budget_of_tokens(world: World) -> Any:
    """Whether `tokens: auto` finds memory; how much differs from device to device."""
    model = world.model()
    with_candidates = memory.choose_token_budget("auto", model, world.samples, 8)
    without_candidates = memory.choose_token_budget("auto", model, world.samples)
    return with_candidates > 0 and without_candidates > 0


def _task(world: World) -> Any:
    return task_object("mine", world.folder, 0, str(world.questions()))


def _nll(
    model: PreTrainedModel, world: World, name: str = "a model", together: Together | None = None
) -> list[Any]:
    """Nats and tokens of each text."""
    windows = [perplexity.Window(text, 1, index) for index, text in enumerate(world.texts)]
    documents = perplexity.document_nll(model, windows, len(windows), name, together)
    nats = [nll for nll, _ in documents]
    n_tokens = [count for _, count in documents]
    return [nats, n_tokens]


def _score_variants(benchmark: Any, model: PreTrainedModel) -> list[Any]:
    """Scores of the base model and of one with patches."""
    patches = {(1, 3): Patch(torch.eye(32) / 50), (4, 5): Patch(torch.zeros(32, 32))}
    results = []
    for variant in (model, materialise(model, PLAN, patches)):
        scores = benchmark.score(variant, "a variant")
        results.append([scores.metrics, scores.samples])
    return results
