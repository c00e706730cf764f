"""Every stage that runs on a GPU, each as one function of a world that returns the numbers it would write.

A stage reads its model as a job does, so that it stands where `lamina.models.load` puts it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
from lamina.repair import check, operators, patch, protocol, refit, weighing
from lamina.repair.protocol import Fitted, Source
from lamina.selection import looped, residuals
from lamina.selection.evaluator import Evaluator, loss_of
from lamina.selection.looped import GrowingRepairs
from lamina.selection.trials import Trials, run_search
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


def stage(*named: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the stage of its name, or once for each of the arguments given, `name[argument]`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for argument in named:
            STAGES[f"{function.__name__}[{argument}]"] = lambda world, told=argument: function(
                world, told
            )
        if not named:
            STAGES[function.__name__] = function
        return function

    return register


@stage()
def capture_activations(world: World) -> Any:
    return capture.capture_similarities(world.model(), world.texts, world.tokens)


@stage("layer", "attention", "mlp")
def sweep_removal(world: World, kind: str) -> Any:
    units = all_units(DEPTH, kind)
    return sweep.sweep_units(world.model(), world.samples, units, [], "removal", world.tokens).rows(
        [CURRENT, *units]
    )


@stage()
def sweep_stream(world: World) -> Any:
    return sweep.sweep_units(world.model(), world.samples, UNITS, [], "stream", world.tokens).rows(
        UNITS
    )


@stage()
def sweep_weights(world: World) -> Any:
    return weights.sweep_rows(world.model(), world.samples, UNITS, [], "weights", world.tokens)


@stage()
def sweep_gradient(world: World) -> Any:
    return weights.sweep_rows(
        world.model(), world.samples, ["0", "2", "3"], ["1"], "gradient", world.tokens
    )


@stage()
def sweep_fit(world: World) -> Any:
    return residuals.sweep_rows(
        world.model(), world.samples, ["0", "2"], ["1"], "fit", world.tokens
    )


@stage()
def sweep_looped(world: World) -> Any:
    model, options = world.model(), repairs.Repair.from_options({"method": "ghost", "bias": True})
    wanted = {"none": Candidate(), **{unit: Candidate(frozenset({unit})) for unit in UNITS}}
    fitted = looped.fit_loop_patches(
        model, [Source([each.sequence() for each in world.samples])], wanted.values(), options, 0
    )
    with sweep.open_session(model, world.samples, world.tokens) as session:
        looped.Looped(session, fitted).measure(range(len(world.samples)), wanted)
    return session.scores.rows(wanted)


@stage()
def sweep_donors(world: World) -> Any:
    model = world.model()
    units = ["2", "2.@donor", "4.@donor"]
    layers = replacements.replacement_layers(model, units[1:], {"donor": world.manifest("donor")})
    wanted = {unit: Candidate(frozenset({unit})) for unit in units}
    with sweep.open_session(model, world.samples, world.tokens, replacements=layers) as session:
        session.measure(range(len(world.samples)), wanted)
    return session.scores.rows(wanted)


@stage()
def search_plans(world: World) -> Any:
    model = world.model()
    told = {"strategy": "evolutionary", "metric": "perplexity", "generations": 1, "offspring": 3}
    options = selectors.Selector.from_options(told)
    seen, held_back = np.arange(7), np.arange(7, len(world.samples))
    source = [Source([world.samples[number].sequence() for number in seen])]
    ghost = repairs.Repair.from_options({"method": "ghost", "ridge": 0.01})
    with sweep.open_session(model, world.samples, world.tokens, False) as session:
        growing = GrowingRepairs(
            lambda c: looped.fit_loop_patches(model, source, c, ghost, 0),
            seen,
            len(world.samples),
            DEPTH,
        )
        asked = Evaluator(looped.Looped(session, growing.repairs), loss_of("perplexity", "acc"))
        trials = Trials(asked, len(world.samples), prepare=growing.fit)
        lengths = np.array([len(sample.sequence()) for sample in world.samples])
        found = run_search(trials, UNITS, [1, 2], options, seen, held_back, lengths)
    return [
        {size: sorted(end.removed) for size, end in found.sets.items()},
        found.losses,
        list(found.rows),
    ]


REPAIRS: dict[str, dict[str, Any]] = {
    "ghost": {"method": "ghost"},
    "ghost_bias_rank": {"method": "ghost", "bias": True, "rank": 8},
    "linearpatch": {"method": "linearpatch"},
    "linearpatch_diag": {"method": "linearpatch", "form": "diag"},
    "replaceme": {"method": "replaceme"},
    "replaceme_cosine": {"method": "replaceme", "objective": "cosine", "epochs": 2},
    "streamline": {"method": "streamline", "epochs": 2, "batch": 4},
}


def repaired(
    model: PreTrainedModel, world: World, settings: dict[str, Any]
) -> tuple[dict[Any, Fitted], list[Any]]:
    """The fitted of the plan's runs, and what table `patches` says of them."""
    options = repairs.Repair.from_options(settings)
    method, sources = protocol.load_method(options.method), [Source(world.texts)]
    fits = {
        at: method.fit(part, options)
        for at, part in method.collect(model, sources, RUNS, options, 0)
    }
    maps = {at: method.as_patch(found.validated) for at, found in fits.items()}
    linear = {at: found for at, found in maps.items() if found is not None}
    checked = check.measure_patches(model, sources, linear, 0) if linear else {}
    facts = []
    for at in RUNS:
        patch_at = method.as_patch(fits[at].tensors)
        operator_shape = operators.describe_operator(patch_at) if patch_at else {}
        facts.append(fits[at].facts | operator_shape | checked.get(at, {}))
    return {at: Fitted(options.method, fits[at].tensors) for at in RUNS}, facts


@stage(*REPAIRS)
def fit_patch(world: World, name: str) -> Any:
    """Fitted, written, read, and built into a variant that then predicts text."""
    model = world.model()
    fitted, facts = repaired(model, world, REPAIRS[name])
    file = world.scratch / "patch.safetensors"
    tensors = patch.name_tensors(3, {at: each.tensors for at, each in fitted.items()})
    patch.write_patch(file, REPAIRS[name]["method"], tensors, {})
    variant = materialise(model, PLAN, patch.read_patch(file, 3))
    return [facts, _nll(variant, world)]


@stage()
def fit_patch_refit(world: World) -> Any:
    model, options = world.model(), repairs.Repair.from_options({"method": "ghost", "refit": True})
    fits, behind = refit.fit(model, [Source(world.texts)], RUNS, options, 0)
    variant = materialise(
        model, PLAN, {at: Fitted("ghost", found.tensors) for at, found in fits.items()}
    )
    method = protocol.load_method("ghost")
    checked = [
        check.measure_patches(
            model,
            [Source(world.texts)],
            {at: method.as_patch(fits[at].validated)},
            0,
            run=behind[at],
        )[at]
        for at in RUNS
    ]
    return [[found.facts for found in fits.values()], checked, _nll(variant, world)]


@stage()
def fit_patch_auto_weight(world: World) -> Any:
    options = repairs.Repair.from_options({"method": "ghost", "data": {"own": 1, "other": "auto"}})
    other = calibrations.build_calibration(
        [sample for sample in world.samples if sample.kind == "text"] * 3, 64
    )
    read = {"words": world.calibration, "other": other}
    groups = weighing.group_plans(world.model(), read, [PLAN], {3: RUNS}, options, 0)
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
    """Trained, written, read, and built into a variant; with its progress saved on the way."""
    model = world.model()
    dropout = {"dropout": 0.0} if name.startswith("lora") else {}
    options = healings.Healing.from_options({**_BRIEF, **dropout, **HEALINGS[name]})
    method = {"lora": lora, "full": full}[options.method]
    patches = None if options.method == "full" else repaired(model, world, REPAIRS["ghost"])[0]
    progress = Progress(world.scratch / "progress.safetensors", "the same")
    healed, rows = method.heal(
        model, PLAN, patches, [TrainingSource(world.samples)], options, progress
    )
    method.save(healed, world.scratch / "adapter")
    return [rows, _nll(materialise(model, PLAN, patches, world.scratch / "adapter"), world)]


@stage()
def heal_variant_resumed(world: World) -> Any:
    """A training that was killed after its first epoch and goes on."""
    progress = Progress(world.scratch / "progress.safetensors", "the same")
    options = healings.Healing.from_options({**_BRIEF, "method": "lora", "dropout": 0.0})
    saved: list[Any] = []
    save = progress.save

    def killed(*state: Any) -> None:
        save(*state)
        saved.append(state)
        raise KeyboardInterrupt

    progress.save = killed  # type: ignore[method-assign]
    try:
        lora.heal(world.model(), PLAN, None, [TrainingSource(world.samples)], options, progress)
    except KeyboardInterrupt:
        assert saved
    again = Progress(world.scratch / "progress.safetensors", "the same")
    return lora.heal(world.model(), PLAN, None, [TrainingSource(world.samples)], options, again)[1]


@stage()
def benchmark_task(world: World) -> Any:
    model, task = world.model(), task_object("mine", world.folder, 0, str(world.questions()))
    return _scored(TaskBenchmark(task, model, world.tokenizer()), model)


@stage()
def benchmark_together(world: World) -> Any:
    """Questions and texts of an unpruned and a repaired model in one pass."""
    model, task = world.model(), task_object("mine", world.folder, 0, str(world.questions()))
    fitted = {at: Fitted("ghost", {"operator": torch.eye(32) / 50}) for at in RUNS}
    parts = {"base": Parts(None, None, None), "repaired": Parts(PLAN, fitted, None)}
    candidates = {name: candidate_of(model, each) for name, each in parts.items()}
    pass_ = Together(model, {name: found for name, found in candidates.items() if found})
    benchmark, found = TaskBenchmark(task, model, world.tokenizer()), []
    for name in parts:
        scores = benchmark.score(model, name, pass_)
        found.append([scores.metrics, scores.samples, _nll(model, world, name, pass_)])
    return found


@stage()
def benchmark_generation(world: World) -> Any:
    model, task = world.model(), task_object("mine", world.folder, 0, str(world.questions()))
    options = Generate(max_tokens=4, samples=2, ngram=1)
    return _scored(GenerationBenchmark(task, model, world.tokenizer(), options), model)


@stage()
def benchmark_perplexity(world: World) -> Any:
    model = world.model()
    return [_nll(model, world), _nll(materialise(model, PLAN), world)]


@stage()
def benchmark_efficiency(world: World) -> Any:
    """Sizes and what is asked of the device; times differ from run to run."""
    model = world.model()
    pairs = [({"timed": "x"}, materialise(model, PLAN))]
    rows = efficiency.measure_efficiency(model, pairs, Efficiency(prompt=8, generate=3, repeats=2))
    return [
        {key: value for key, value in row.items() if not key.startswith(_TIMED)} for row in rows
    ]


_TIMED = ("latency", "tokens_per_second", "device", "peak_memory")


@stage("variance", "void")
def diagnose_layers(world: World, kind: str) -> Any:
    module, options = {"variance": (variance, Variance()), "void": (void, Void())}[kind]
    return module.diagnose(world.model(), world.samples, options, world.tokens)


@stage()
def diagnose_probe(world: World) -> Any:
    labels = tuple("ab"[number % 2] for number in range(len(world.texts)))
    return probe.diagnose(
        world.model(),
        list(zip(world.texts, labels, strict=True)),
        Probe(file="x", folds=2),
        world.tokens,
    )


@stage()
def diagnose_patching(world: World) -> Any:
    pairs = [
        patching.PromptPair(text[:6], (*text[:2], text[3] - 1, *text[3:6]), 5 + number, 30 + number)
        for number, text in enumerate(world.texts)
    ]
    return patching.diagnose(world.model(), pairs, Patching(file="x", least=1e-6), world.tokens)


@stage()
def export_variant(world: World) -> Any:
    """Made where the workflow makes it, on the CPU; and saved from a variant that stands on a device."""
    model, folder = world.model(), world.scratch / "export"
    fitted, _ = repaired(model, world, REPAIRS["ghost"])
    export.save_variant(materialise(model, PLAN, fitted), folder)
    return load_file(folder / "model.safetensors")


@stage()
def load_an_export(world: World) -> Any:
    model, folder = world.model(), world.scratch / "export"
    export.save_variant(materialise(model, {"units": ["1", "2"]}), folder)
    world.tokenizer().save_pretrained(folder)
    loaded, tokenizer = lamina.load(folder)
    ids = tokenizer("w1 w2 w3 w4", return_tensors="pt").to(loaded.device)
    with torch.no_grad():
        written = loaded.generate(**ids, max_new_tokens=4, do_sample=False)
        logits = loaded(**ids).logits
    return [written.tolist(), logits.float().cpu()]


@stage()
def budget_of_tokens(world: World) -> Any:
    """`tokens: auto` asks the device how much it has; how much that is differs."""
    model = world.model()
    return (
        memory.choose_token_budget("auto", model, world.samples, 8) > 0
        and memory.choose_token_budget("auto", model, world.samples) > 0
    )


def _nll(
    model: PreTrainedModel, world: World, name: str = "a model", pass_: Together | None = None
) -> list[Any]:
    cut = [perplexity.Window(text, 1, number) for number, text in enumerate(world.texts)]
    return list(
        map(list, zip(*perplexity.document_nll(model, cut, len(cut), name, pass_), strict=True))
    )


def _scored(benchmark: Any, model: PreTrainedModel) -> list[Any]:
    patches = {(1, 3): Patch(torch.eye(32) / 50), (4, 5): Patch(torch.zeros(32, 32))}
    variants = [model, materialise(model, PLAN, patches)]
    found: Sequence[Any] = [benchmark.score(variant, "a variant") for variant in variants]
    return [[scores.metrics, scores.samples] for scores in found]
