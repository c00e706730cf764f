"""Made-up tables with the shape of a finished study, for tests of everything that reads tables. No number is real."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from lamina.store import parquet
from lamina_workflow.report import database
from lamina_workflow.report.paired_tests import compare_selectors

PATCH = (
    dict(
        boundary="3-4",
        start=3,
        end=4,
        ridge=1e-3,
        ridge_at_edge=False,
        fit_error_before=0.5,
        fit_error=0.3,
    )
    | dict(
        heldout_error_before=0.52,
        heldout_error=0.33,
        heldout_error_stderr=0.01,
        n_samples=400,
        n_heldout=80,
    )
    | dict(antisymmetric_share=0.4, singular_values=[1.0, 0.5, 0.1], effective_rank=1.8)
)
VIEWS = Path(__file__).parents[2] / "sql" / "views.sql"
MICROWORLD = ("recall", "facts", "hops", "addition", "comparison", "boolean", "sorting")
SELECTORS = ("accuracy", "cosine", "angular", "random", "deepest")


def write_tables(folder: Path, **rows: list[dict[str, Any]]) -> list[Path]:
    """Write all tables of a run, those without rows empty, and give their files."""
    files = [folder / f"{table}.parquet" for table in parquet.TABLES]
    for file in files:
        parquet.write_table(file, parquet.from_rows(file.stem, rows.get(file.stem, [])))
    return files


def write_study(
    folder: Path,
    n_layers: int = 12,
    calibrations: tuple[str, ...] = MICROWORLD,
    sizes: tuple[int, ...] = (1, 2, 3),
    healed: int = 3,
    n_test: int = 200,
    models: tuple[str, ...] = ("reference",),
    seed: int = 0,
    selectors: tuple[str, ...] = SELECTORS,
) -> list[Path]:
    """Write every table of a study in which the last calibration is refused if there are more than three."""
    rng = np.random.default_rng(seed)
    data: dict[str, list[dict[str, Any]]] = {table: [] for table in parquet.TABLES}
    for number, model in enumerate(models):
        checkpoint = dict(series="training", step=1000 * number) if len(models) > 1 else {}
        data["models"].append(
            checkpoint
            | dict(
                model=model,
                family="llama",
                n_layers=n_layers,
                hidden_size=64,
                vocabulary=300,
                parameters=640_000,
            )
            | dict(
                weights_bytes=2_560_000,
                dtype="float32",
                source="resources/reference",
                weights_sha256="ab" * 32,
            )
        )
        refused = calibrations[-1] if len(calibrations) > 3 else None
        tasks = [f"microworld_{name}" for name in calibrations]
        difficulty = {task: rng.random(n_test) for task in tasks}
        base = {task: rng.uniform(0.75, 0.98) for task in tasks}
        none = dict(
            model=model,
            calibration="none",
            selector="none",
            removed=0,
            repair="none",
            healing="none",
        )
        _benchmark(data, none, base, difficulty, 12.0, rng)
        timed: set[tuple[int, str, int]] = set()
        for calibration in calibrations:
            _calibration(data, model, calibration, n_layers, calibration == refused, rng)
            for selector in selectors:
                skill = {"accuracy": 0.04, "random": 0.2, "deepest": 0.16}.get(selector, 0.1)
                for removed in sizes:
                    key = dict(
                        model=model, calibration=calibration, selector=selector, removed=removed
                    )
                    if calibration == refused and selector == "accuracy":
                        told = f"at chance on '{calibration}'. Give it more samples, or leave it out of the study"
                        data["plans"].append(key | dict(refused=f"the base model is {told}"))
                        continue
                    units = rng.permutation(np.arange(1, n_layers - 1))[:removed]
                    largest = removed == max(sizes)
                    scores = _steps(data, key, units.tolist() if largest else [], n_layers, rng)
                    before = 0.9
                    for position, unit in enumerate(units, start=1):
                        after = max(before - rng.uniform(0, 2 * skill), 0.2)
                        measured = (
                            dict(accuracy_before=before, accuracy_after=after)
                            if selector == "accuracy"
                            else {}
                        )
                        measured |= dict(
                            unit=str(unit), position=position, score=scores[position - 1]
                        )
                        data["plans"].append(key | measured)
                        before = after
                    repairs = [("none", "none"), ("ghost", "none")]
                    if removed == healed and selector in ("accuracy", "cosine"):
                        repairs += [("none", "lora"), ("ghost", "lora")]
                    for repair, healing in repairs:
                        variant = key | dict(repair=repair, healing=healing)
                        kept = 1 - (repair == "ghost") * 0.3 - (healing == "lora") * 0.4
                        own = f"microworld_{calibration}"
                        lost = {
                            task: kept * skill * removed * (1 if task == own else 2)
                            for task in tasks
                        }
                        value = {
                            task: max(base[task] - lost[task] * rng.uniform(0.5, 1), 0.2)
                            for task in tasks
                        }
                        _benchmark(data, variant, value, difficulty, 12 + 6 * removed * kept, rng)
                        runs = sum(layer - 1 not in units for layer in units)
                        if healing == "none" and (removed, repair, runs) not in timed:
                            timed.add((removed, repair, runs))
                            data["efficiency"].append(
                                variant | _efficiency(removed, runs, n_layers, rng)
                            )
                        if repair == "ghost" and healing == "none":
                            data["patches"].append(variant | PATCH)
                        if healing == "lora":
                            data["training"] += [variant | row for row in _training(rng)]
        data["agreements"] += _agreements(
            model, [name for name in calibrations if name != refused], n_layers
        )
        data["dissociations"] += _dissociations(model, calibrations, n_layers, rng)
        for name in calibrations:
            data["searches"] += _searches(
                dict(model=model, calibration=name, selector="evolved"), sizes, rng
            )
    data["jobs"] = [
        dict(
            rule=rule,
            wildcards=f"block=0, calibration={name}, model={model}, removed=0, selector=base/removal/layer",
        )
        | dict(seconds=rng.gamma(3, 9), cpu_seconds=9.0, max_rss_mb=812.0, device="cpu")
        for rule in ("sweep_units", "fit_patch", "heal_variant", "benchmark_variants")
        for model, name in itertools.product(models, calibrations)
    ]
    files = write_tables(folder, **data)
    found = list(compare_selectors(database.connect_views(VIEWS, files)))
    parquet.write_table(folder / "comparisons.parquet", parquet.from_rows("comparisons", found))
    return files


def _agreements(model: str, calibrations: list[str], n_layers: int) -> list[dict[str, Any]]:
    counts = dict(n_units=n_layers - 4 * (n_layers >= 8), n_calibrations=len(calibrations))
    counts |= dict(n_samples=64 * len(calibrations), calibrations=", ".join(calibrations))
    values = dict(pearson=0.3, spearman=0.4, misranked=0.7, badly_misranked=0.1, variance_ratio=1.1)
    return [
        dict(
            model=model,
            component="layer",
            metric="cosine",
            statistic=name,
            value=value,
            p_value=None,
        )
        | dict(ci_low=value - 0.1, ci_high=value + 0.1)
        | counts
        for name, value in values.items()
    ]


def _dissociations(
    model: str, calibrations: tuple[str, ...], n_layers: int, rng: Any
) -> list[dict[str, Any]]:
    return [
        dict(
            model=model,
            component="layer",
            calibration=one,
            rival=other,
            unit=str(layer),
            layer=layer,
        )
        | dict(
            difference=value, ci_low=value - 0.1, ci_high=value + 0.1, p_value=0.01, q_value=0.02
        )
        | dict(null_low=-0.2, null_high=0.2, sure=abs(value) > 0.2, n_samples=500, n_rival=500)
        for one, other in itertools.combinations_with_replacement(calibrations, 2)
        if one != other or len(calibrations) == 1
        for layer in range(n_layers)
        for value in [rng.uniform(-0.6, 0.6)]
    ]


def _steps(data: dict, key: dict, units: list[int], n_layers: int, rng: Any) -> list[float]:
    """Scores of the units of a plan; those that go by a metric and one by one are in the relevance of every step."""
    metric, scores = key["selector"], rng.random(key["removed"]).tolist()
    if metric not in ("accuracy", "cosine") or not units:
        return scores
    row = {name: key[name] for name in ("model", "calibration")} | dict(metric=metric)
    scores[0] = next(
        found["score"]
        for found in data["relevance"]
        if found | row | dict(unit=str(units[0]), removed=0) == found
    )
    for step in range(1, len(units)):
        for layer in sorted(set(range(n_layers)) - set(units[:step])):
            score = scores[step] if layer == units[step] else scores[step] + rng.random()
            told = dict(
                selector=metric,
                removed=step,
                unit=str(layer),
                layer=layer,
                component="layer",
                n_samples=500,
            )
            told |= dict(score=score, ci_low=score - 0.1, ci_high=score + 0.1, n_not_finite=0)
            data["relevance"].append(row | told)
    return scores


def _searches(key: dict[str, Any], sizes: tuple[int, ...], rng: Any) -> list[dict[str, Any]]:
    """The ends of an evolutionary search."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        loss = 0.1 * size + rng.normal(0, 0.01)
        units = [str(unit) for unit in range(size)]
        told = key | dict(
            strategy="evolutionary",
            removed=size,
            units=units,
            step=size,
            kept=True,
            layer_tokens=1e5,
        )
        rows.append(told | dict(stage="winner", n_samples=300, n_new=3000, loss=loss - 0.02))
        rows.append(
            told | dict(stage="held back", n_samples=100, n_new=100, loss=loss, loss_stderr=0.02)
        )
    return [row | dict(evaluation=number) for number, row in enumerate(rows)]


def _calibration(
    data: dict, model: str, calibration: str, n_layers: int, refused: bool, rng: Any
) -> None:
    key = dict(model=model, calibration=calibration)
    described = dict(
        kind="choices", n_samples=64, n_tokens=21_000, chance_accuracy=0.25, split="train", seed=0
    )
    described |= dict(choice_score="acc_norm", source=f"microworld_{calibration}")
    data["calibrations"].append(key | described)
    step, layers = 0.05 + 0.1 * rng.random(n_layers), np.arange(n_layers)
    step = step + 0.5 * (layers == 0) + 0.15 * (layers == n_layers - 1)
    for unit in ["none", *map(str, range(n_layers))]:
        share = (0.3 if refused else 0.9) - (
            0 if unit == "none" else 2 * step[int(unit)] * rng.random()
        )
        for sample, right in enumerate(rng.random(64) < share):
            row = key | dict(
                selector="base", removed=0, unit=unit, sample=sample, nll=1.0, n_tokens=1
            )
            turned = dict(cosine=None if unit == "none" else step[int(unit)] * rng.random())
            data["sweeps"].append(
                row | dict(correct=bool(right), correct_norm=bool(right)) | turned
            )
    for layer in range(1, n_layers):
        told = dict(
            diagnosis="empty", kind="void", measure="void", layer=layer, n_samples=40, control=0.8
        )
        data["diagnoses"].append(
            key | told | dict(value=layer / 9, ci_low=layer / 10, ci_high=layer / 8)
        )
    for layer in range(n_layers):
        for span in range(1, n_layers - layer + 1):
            angle = 1 - np.exp(-step[layer : layer + span].sum() / 2)
            data["activations"].append(
                key
                | dict(
                    layer=layer,
                    span=span,
                    cosine=angle**2,
                    cosine_stderr=0.003,
                    angular_last=angle / 2,
                )
                | dict(angular_last_stderr=0.004, n_samples=500, n_tokens=21_000)
            )
        for metric in ("accuracy", "cosine"):
            row = key | dict(
                selector="base",
                removed=0,
                metric=metric,
                unit=str(layer),
                layer=layer,
                component="layer",
            )
            row |= dict(n_not_finite=0, rank=1 + (layer + (metric == "cosine")) % n_layers)
            if metric == "accuracy" and refused:
                row |= dict(n_samples=500, reason="the base model is at chance")
            else:
                accuracy = np.clip(rng.exponential(0.2) - 0.08 + 0.6 * (layer == 0), -0.3, 1)
                score, width = (
                    (accuracy, 0.06) if metric == "accuracy" else (step[layer] ** 1.2, 0.004)
                )
                row |= dict(
                    score=score, ci_low=score - width, ci_high=min(score + width, 1), n_samples=500
                )
            data["relevance"].append(row)


def _benchmark(
    data: dict, variant: dict, value: dict, difficulty: dict, perplexity: float, rng: Any
) -> None:
    for task, share in value.items():
        right = (difficulty[task] + rng.normal(0, 0.05, len(difficulty[task])) < share).astype(
            float
        )
        n, mean = len(right), right.mean()
        row = dict(task=task, n_samples=n, n_shot=0, higher_is_better=True, task_version="1")
        for metric in ("acc", "acc_norm"):
            error = np.sqrt(mean * (1 - mean) / (n - 1))
            data["benchmarks"].append(variant | row | dict(metric=metric, value=mean, stderr=error))
        one = variant | dict(task=task, metric="acc_norm")
        data["benchmark_samples"] += [
            one | dict(sample=n, value=value) for n, value in enumerate(right)
        ]
        mean *= 0.8  # what is written is right less often
        error = np.sqrt(mean * (1 - mean) / (n - 1))
        data["benchmarks"].append(
            variant | row | dict(metric="exact_match,written", value=mean, stderr=error)
        )
        data["benchmarks"].append(
            variant | row | dict(metric="repetition", value=1 - mean, stderr=error)
        )
    row = dict(task="corpus_test", metric="perplexity", value=perplexity, stderr=0.4, n_samples=80)
    row |= dict(higher_is_better=False)
    data["benchmarks"].append(variant | row)
    data["benchmarks"].append(
        variant | row | dict(metric="nll_per_log_vocabulary", value=perplexity / 50, stderr=0.01)
    )


def _efficiency(removed: int, runs: int, n_layers: int, rng: Any) -> dict:
    ratio = 1 - removed / (n_layers + 1)
    latency = ratio * (1 + rng.normal(0, 0.01))
    return (
        dict(runs=runs, device="cpu", dtype="float32", prompt=64, generate=32, batch=1, repeats=10)
        | dict(parameters=int(640_000 * ratio), parameters_ratio=ratio)
        | dict(
            weights_bytes=int(2_560_000 * ratio), weights_bytes_ratio=ratio, kv_bytes_per_token=6144
        )
        | dict(
            kv_bytes_per_token_ratio=1 - removed / n_layers,
            latency_ms=80 * latency,
            latency_ratio=latency,
        )
        | dict(
            latency_ratio_stderr=0.01,
            tokens_per_second=400 / latency,
            tokens_per_second_ratio=1 / latency,
        )
        | dict(tokens_per_second_ratio_stderr=0.012)
    )


def _training(rng: Any) -> list[dict]:
    rows: list[dict] = [
        dict(
            step=step,
            epoch=step // 50,
            loss=0.4 + np.exp(-step / 40) + rng.normal(0, 0.08),
            learning_rate=3e-4,
        )
        | dict(tokens=step * 2000, chosen=False)
        for step in range(200)
    ]
    for epoch in range(4):
        loss = 0.45 + np.exp(-(50 * epoch + 49) / 40) + 0.02 * epoch
        rows[50 * epoch + 49] |= dict(validation_loss=loss, chosen=epoch == 2)
    return rows
