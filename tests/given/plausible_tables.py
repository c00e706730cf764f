"""Made-up tables with the shape of a finished study, for tests of all that reads tables.

No number is real: models, accuracies and losses are drawn by a seeded generator.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lamina.store import parquet
from lamina.variant import Variant
from lamina_workflow.report import database
from lamina_workflow.report.paired_tests import compare_selectors

Row = dict[str, Any]

MICROWORLD = ("recall", "facts", "hops", "addition", "comparison", "boolean", "sorting")
SELECTORS = ("accuracy", "cosine", "angular", "random", "deepest")
MEASURED_SELECTORS = ("accuracy", "cosine")  # go by a metric and remove one unit a step

N_CALIBRATION_SAMPLES = 64
BASE_PERPLEXITY = 12.0
ACCURACY_LOST_PER_LAYER = {"accuracy": 0.04, "random": 0.2, "deepest": 0.16}
PATCH: Row = {
    "boundary": "3-4",
    "start": 3,
    "end": 4,
    "ridge": 1e-3,
    "ridge_at_edge": False,
    "fit_error_before": 0.5,
    "fit_error": 0.3,
    "heldout_error_before": 0.52,
    "heldout_error": 0.33,
    "heldout_error_stderr": 0.01,
    "mae_before": 0.8,
    "mae_after": 0.4,
    "channel_mae_before": [0.7, 1.2, 0.5],
    "channel_mae_after": [0.45, 0.55, 0.2],
    "n_samples": 400,
    "n_heldout": 80,
    "antisymmetric_share": 0.4,
    "singular_values": [1.0, 0.5, 0.1],
    "effective_rank": 1.8,
}

LAYER_SIZE: Row = {
    "attention_parameters": 16_000,
    "mlp_parameters": 30_000,
    "other_parameters": 100,
    "active_mlp_parameters": 30_000,
    "kind": 0,
}


def write_tables(folder: Path, **rows_by_table: list[Row]) -> list[Path]:
    """Write all tables of a run, those without rows empty, and return their files."""
    files = [folder / f"{table}.parquet" for table in parquet.TABLES]
    for file in files:
        table_rows = rows_by_table.get(file.stem, [])
        parquet.write_table(file, parquet.from_rows(file.stem, table_rows))
    return files


def write_study(
    folder: Path,
    n_layers: int = 12,
    calibrations: tuple[str, ...] = MICROWORLD,
    sizes: tuple[int, ...] = (1, 2, 3),
    healed_size: int = 3,
    n_test: int = 200,
    models: tuple[str, ...] = ("reference",),
    seed: int = 0,
    selectors: tuple[str, ...] = SELECTORS,
    tested_passes: tuple[int, ...] = (),
) -> list[Path]:
    """Write every table of a study, and return their files.

    The last calibration is refused if there are more than three: the base model is at chance there.

    tested_passes: Passes of the healing whose weights are healings of their own, such as `lora-1`.
    """
    study = PlausibleStudy(
        n_layers=n_layers,
        calibrations=calibrations,
        sizes=sizes,
        healed_size=healed_size,
        n_test=n_test,
        selectors=selectors,
        tested_passes=tested_passes,
        rng=np.random.default_rng(seed),
    )
    for model_number, model in enumerate(models):
        is_series = len(models) > 1
        checkpoint = {"series": "training", "step": 1000 * model_number} if is_series else {}
        study.add_model(model, checkpoint)
    study.add_jobs(models)

    files = write_tables(folder, **study.rows)
    comparisons = list(compare_selectors(database.connect_views(files)))
    parquet.write_table(
        folder / "comparisons.parquet", parquet.from_rows("comparisons", comparisons)
    )
    return files


@dataclass
class BaseModelOnTasks:
    """What a base model does on the tasks of a study, from which its variants lose."""

    accuracy_by_task: dict[str, float]
    difficulty_by_task: dict[str, np.ndarray]  # of each test document, uniform in [0, 1)


@dataclass
class PlausibleStudy:
    """Draws the rows of every table of a study, one model after the other."""

    n_layers: int
    calibrations: tuple[str, ...]
    sizes: tuple[int, ...]
    healed_size: int
    n_test: int
    selectors: tuple[str, ...]
    tested_passes: tuple[int, ...]
    rng: np.random.Generator
    rows: dict[str, list[Row]] = field(
        default_factory=lambda: {name: [] for name in parquet.TABLES}
    )

    @property
    def refused_calibration(self) -> str | None:
        return self.calibrations[-1] if len(self.calibrations) > 3 else None

    def add_model(self, model: str, checkpoint: Row) -> None:
        """Rows of everything that a study measures of one model."""
        self.rows["models"].append({**checkpoint, **model_row(model, self.n_layers)})
        for layer in range(self.n_layers):
            self.rows["layer_sizes"].append({"model": model, "layer": layer, **LAYER_SIZE})
        tasks = [f"microworld_{calibration}" for calibration in self.calibrations]
        difficulty_by_task = {task: self.rng.random(self.n_test) for task in tasks}
        accuracy_by_task = {task: self.rng.uniform(0.75, 0.98) for task in tasks}
        base_model = BaseModelOnTasks(accuracy_by_task, difficulty_by_task)
        base_key = {
            "model": model,
            "calibration": "none",
            "selector": "none",
            "removed": 0,
            "repair": "none",
            "healing": "none",
        }
        self.add_benchmarks(base_key, accuracy_by_task, base_model, BASE_PERPLEXITY)

        timings: dict[tuple[int, str, int], Row] = {}
        for calibration in self.calibrations:
            self.add_calibration(model, calibration)
            for selector in self.selectors:
                for size in self.sizes:
                    plan_key = {
                        "model": model,
                        "calibration": calibration,
                        "selector": selector,
                        "removed": size,
                    }
                    self.add_plan(plan_key, base_model, timings)

        agreeing = [name for name in self.calibrations if name != self.refused_calibration]
        self.rows["agreements"] += agreement_rows(model, agreeing, self.n_layers)
        self.add_dissociations(model)
        for calibration in self.calibrations:
            self.add_search(model, calibration)
            self.add_repetitions(model, calibration)

    def add_calibration(self, model: str, calibration: str) -> None:
        """The samples of a calibration and what was measured on them on the base model."""
        key = {"model": model, "calibration": calibration}
        description = {
            "kind": "choices",
            "n_samples": N_CALIBRATION_SAMPLES,
            "n_tokens": 21_000,
            "chance_accuracy": 0.25,
            "split": "train",
            "seed": 0,
            "choice_score": "acc_norm",
            "source": f"microworld_{calibration}",
        }
        self.rows["calibrations"].append({**key, **description})

        layer_indices = np.arange(self.n_layers)
        stream_change = 0.05 + 0.1 * self.rng.random(self.n_layers)
        stream_change = stream_change + 0.5 * (layer_indices == 0)
        stream_change = stream_change + 0.15 * (layer_indices == self.n_layers - 1)
        is_refused = calibration == self.refused_calibration
        self.add_sweep(key, stream_change, is_refused)
        self.add_diagnosis(key)
        self.add_activations_and_relevance(key, stream_change, is_refused)

    def add_sweep(self, key: Row, stream_change: np.ndarray, is_refused: bool) -> None:
        """Each sample's answer without each layer."""
        base_accuracy = 0.3 if is_refused else 0.9
        for unit in ["none", *map(str, range(self.n_layers))]:
            accuracy = base_accuracy
            if unit != "none":
                accuracy -= 2 * stream_change[int(unit)] * self.rng.random()
            is_correct = self.rng.random(N_CALIBRATION_SAMPLES) < accuracy
            for sample_index, correct in enumerate(is_correct):
                cosine = None
                if unit != "none":
                    cosine = stream_change[int(unit)] * self.rng.random()
                measurement = {
                    "selector": "base",
                    "removed": 0,
                    "unit": unit,
                    "sample": sample_index,
                    "nll": 1.0,
                    "n_tokens": 1,
                    "correct": bool(correct),
                    "correct_norm": bool(correct),
                    "cosine": cosine,
                }
                self.rows["sweeps"].append({**key, **measurement})

    def add_diagnosis(self, key: Row) -> None:
        for layer_index in range(1, self.n_layers):
            measure = {
                "diagnosis": "empty",
                "kind": "void",
                "measure": "void",
                "layer": layer_index,
                "n_samples": 40,
                "control": 0.8,
                "value": layer_index / 9,
                "ci_low": layer_index / 10,
                "ci_high": layer_index / 8,
            }
            self.rows["diagnoses"].append({**key, **measure})

    def add_activations_and_relevance(
        self, key: Row, stream_change: np.ndarray, is_refused: bool
    ) -> None:
        """How far each block turns the stream, and the scores of each layer of the base model."""
        for layer_index in range(self.n_layers):
            for span in range(1, self.n_layers - layer_index + 1):
                block_change = stream_change[layer_index : layer_index + span].sum()
                distance = 1 - np.exp(-block_change / 2)
                similarity = {
                    "layer": layer_index,
                    "span": span,
                    "cosine": distance**2,
                    "cosine_stderr": 0.003,
                    "angular_last": distance / 2,
                    "angular_last_stderr": 0.004,
                    "n_samples": 500,
                    "n_tokens": 21_000,
                }
                self.rows["activations"].append({**key, **similarity})
            for metric in MEASURED_SELECTORS:
                score = self.relevance_score(metric, layer_index, stream_change, is_refused)
                rank_shift = 1 if metric == "cosine" else 0
                score["selector"] = "base"
                score["removed"] = 0
                score["metric"] = metric
                score["unit"] = str(layer_index)
                score["layer"] = layer_index
                score["component"] = "layer"
                score["n_not_finite"] = 0
                score["n_samples"] = 500
                score["rank"] = 1 + (layer_index + rank_shift) % self.n_layers
                self.rows["relevance"].append({**key, **score})

    def relevance_score(
        self, metric: str, layer_index: int, stream_change: np.ndarray, is_refused: bool
    ) -> Row:
        """The score of a layer with its interval, or the reason why it has none."""
        if metric == "accuracy" and is_refused:
            return {"reason": "the base model is at chance"}
        # Drawn for either metric, so that later draws do not depend on it.
        accuracy_lost = self.rng.exponential(0.2) - 0.08 + 0.6 * (layer_index == 0)
        if metric == "accuracy":
            score = np.clip(accuracy_lost, -0.3, 1)
            margin = 0.06
        else:
            score = stream_change[layer_index] ** 1.2
            margin = 0.004
        return {"score": score, "ci_low": score - margin, "ci_high": min(score + margin, 1)}

    def add_plan(
        self,
        plan_key: Row,
        base_model: BaseModelOnTasks,
        timings: dict[tuple[int, str, int], Row],
    ) -> None:
        """One plan, its steps, and the benchmarks of the variants that are made of it."""
        calibration = plan_key["calibration"]
        selector = plan_key["selector"]
        size = plan_key["removed"]
        if calibration == self.refused_calibration and selector == "accuracy":
            advice = "Give it more samples, or leave it out of the study"
            refusal = f"the base model is at chance on '{calibration}'. {advice}"
            self.rows["plans"].append({**plan_key, "refused": refusal})
            return

        lost_per_layer = ACCURACY_LOST_PER_LAYER.get(selector, 0.1)
        removable_layers = np.arange(1, self.n_layers - 1)
        removed_layers = self.rng.permutation(removable_layers)[:size].tolist()
        self.add_steps(plan_key, removed_layers, lost_per_layer)

        repairs_and_healings = [("none", "none"), ("ghost", "none")]
        if size == self.healed_size and selector in MEASURED_SELECTORS:
            repairs_and_healings += [("none", "lora"), ("ghost", "lora")]
        for repair, healing in repairs_and_healings:
            variant_key = {**plan_key, "repair": repair, "healing": healing}
            handle = f"A{len(self.rows['handles'])}"
            self.rows["handles"].append({"handle": handle, **variant_key})
            self.add_variant(variant_key, base_model, lost_per_layer)

            n_runs = sum(layer_index - 1 not in removed_layers for layer_index in removed_layers)
            shape = (size, repair, n_runs)
            if healing == "none":
                if shape not in timings:
                    timings[shape] = {**self.efficiency(size), "timed": str(Variant(**variant_key))}
                timing = {**variant_key, **timings[shape]}
                self.rows["efficiency"].append(timing)
                self.rows["efficiency"].append(timing | self.other_load(timing))
            if repair == "ghost" and healing == "none":
                self.rows["patches"].append({**variant_key, **PATCH})
            if healing == "lora":
                self.rows["training"] += [{**variant_key, **row} for row in self.training()]
                for epoch in self.tested_passes:
                    self.add_tested_pass(variant_key, epoch)

    def add_steps(self, plan_key: Row, removed_layers: list[int], lost_per_layer: float) -> None:
        """The removals of a plan in their order, each with the accuracy before and after it."""
        is_largest = plan_key["removed"] == max(self.sizes)
        scores = self.step_scores(plan_key, removed_layers if is_largest else [])
        accuracy_before = 0.9
        for position, layer_index in enumerate(removed_layers, start=1):
            accuracy_after = max(accuracy_before - self.rng.uniform(0, 2 * lost_per_layer), 0.2)
            step = {
                "unit": str(layer_index),
                "position": position,
                "score": scores[position - 1],
            }
            if plan_key["selector"] == "accuracy":
                step["accuracy_before"] = accuracy_before
                step["accuracy_after"] = accuracy_after
            self.rows["plans"].append({**plan_key, **step})
            accuracy_before = accuracy_after

    def step_scores(self, plan_key: Row, removed_layers: list[int]) -> list[float]:
        """Scores of the removed layers, step by step.

        A selector that goes by a metric finds them in the relevance of every step, which is added
        here; for `removed_layers` that are empty it is not.
        """
        metric = plan_key["selector"]
        scores: list[float] = self.rng.random(plan_key["removed"]).tolist()
        if metric not in MEASURED_SELECTORS or not removed_layers:
            return scores

        key = {name: plan_key[name] for name in ("model", "calibration")}
        scores[0] = self.first_score(key, metric, removed_layers[0])
        for step in range(1, len(removed_layers)):
            remaining_layers = set(range(self.n_layers)) - set(removed_layers[:step])
            for layer_index in sorted(remaining_layers):
                score = scores[step]
                if layer_index != removed_layers[step]:
                    score = score + self.rng.random()
                relevance = {
                    "metric": metric,
                    "selector": metric,
                    "removed": step,
                    "unit": str(layer_index),
                    "layer": layer_index,
                    "component": "layer",
                    "n_samples": 500,
                    "score": score,
                    "ci_low": score - 0.1,
                    "ci_high": score + 0.1,
                    "n_not_finite": 0,
                }
                self.rows["relevance"].append({**key, **relevance})
        return scores

    def first_score(self, key: Row, metric: str, layer_index: int) -> float:
        """The score of a layer in the relevance of the base model."""
        wanted = {**key, "metric": metric, "unit": str(layer_index), "removed": 0}
        for row in self.rows["relevance"]:
            if wanted.items() <= row.items():
                return float(row["score"])
        raise LookupError(wanted)

    def add_variant(
        self, variant_key: Row, base_model: BaseModelOnTasks, lost_per_layer: float
    ) -> None:
        """Benchmarks of a variant: it loses with each layer, most on other calibrations' tasks."""
        remaining_loss = 1 - (variant_key["repair"] == "ghost") * 0.3
        remaining_loss = remaining_loss - (variant_key["healing"] == "lora") * 0.4
        size = variant_key["removed"]
        own_task = f"microworld_{variant_key['calibration']}"

        accuracy_by_task = {}
        for task, base_accuracy in base_model.accuracy_by_task.items():
            largest_loss = remaining_loss * lost_per_layer * size * (1 if task == own_task else 2)
            accuracy_lost = largest_loss * self.rng.uniform(0.5, 1)
            accuracy_by_task[task] = max(base_accuracy - accuracy_lost, 0.2)
        perplexity = BASE_PERPLEXITY + 6 * size * remaining_loss
        self.add_benchmarks(variant_key, accuracy_by_task, base_model, perplexity)

    def add_benchmarks(
        self,
        variant_key: Row,
        accuracy_by_task: dict[str, float],
        base_model: BaseModelOnTasks,
        perplexity: float,
    ) -> None:
        """Scores of one variant on every task, on each test document, and on a corpus."""
        for task, expected_accuracy in accuracy_by_task.items():
            difficulty = base_model.difficulty_by_task[task]
            noise = self.rng.normal(0, 0.05, len(difficulty))
            is_correct = (difficulty + noise < expected_accuracy).astype(float)
            n_documents = len(is_correct)
            accuracy = is_correct.mean()
            stderr = np.sqrt(accuracy * (1 - accuracy) / (n_documents - 1))
            written_accuracy = accuracy * 0.8  # what is written is right less often
            written_stderr = np.sqrt(written_accuracy * (1 - written_accuracy) / (n_documents - 1))
            scores = [
                ("acc", accuracy, stderr),
                ("acc_norm", accuracy, stderr),
                ("exact_match,written", written_accuracy, written_stderr),
                ("repetition", 1 - written_accuracy, written_stderr),
            ]
            for metric, value, value_stderr in scores:
                score = {
                    "task": task,
                    "metric": metric,
                    "value": value,
                    "stderr": value_stderr,
                    "n_samples": n_documents,
                    "n_shot": 0,
                    "higher_is_better": True,
                    "task_version": "1",
                }
                self.rows["benchmarks"].append({**variant_key, **score})
            for document_index, correct in enumerate(is_correct):
                answer = {
                    "task": task,
                    "metric": "acc_norm",
                    "sample": document_index,
                    "value": correct,
                }
                self.rows["benchmark_samples"].append({**variant_key, **answer})

        corpus_scores = [("perplexity", perplexity, 0.4)]
        corpus_scores.append(("nll_per_log_vocabulary", perplexity / 50, 0.01))
        for metric, value, value_stderr in corpus_scores:
            score = {
                "task": "corpus_test",
                "metric": metric,
                "value": value,
                "stderr": value_stderr,
                "n_samples": 80,
                "higher_is_better": False,
            }
            self.rows["benchmarks"].append({**variant_key, **score})

    def efficiency(self, n_removed: int) -> Row:
        """The sizes and times of a variant and their ratios to the base model's."""
        weight_ratio = 1 - n_removed / (self.n_layers + 1)
        latency_ratio = weight_ratio * (1 + self.rng.normal(0, 0.01))
        return {
            "device": "cpu",
            "dtype": "float32",
            "main": True,
            "prompt": 64,
            "generate": 32,
            "batch": 1,
            "repeats": 10,
            "parameters": int(640_000 * weight_ratio),
            "parameters_ratio": weight_ratio,
            "weights_bytes": int(2_560_000 * weight_ratio),
            "weights_bytes_ratio": weight_ratio,
            "kv_bytes_per_token": 6144,
            "kv_bytes_per_token_ratio": 1 - n_removed / self.n_layers,
            "latency_ms": 80 * latency_ratio,
            "latency_ratio": latency_ratio,
            "latency_ratio_stderr": 0.01,
            "tokens_per_second": 400 / latency_ratio,
            "tokens_per_second_ratio": 1 / latency_ratio,
            "tokens_per_second_ratio_stderr": 0.012,
        }

    def other_load(self, timing: Row) -> Row:
        """The numbers that differ with eight longer prompts at once."""
        return {
            "main": False,
            "prompt": 512,
            "batch": 8,
            "latency_ms": 60 * timing["latency_ms"],
            "latency_ratio": 0.9 * timing["latency_ratio"],
            "tokens_per_second_ratio": 1.1 * timing["tokens_per_second_ratio"],
        }

    def training(self) -> Iterator[Row]:
        """The log of a healing: four epochs of fifty steps, the third of which is kept."""
        for step in range(200):
            epoch = step // 50
            noise = self.rng.normal(0, 0.08)
            row: Row = {
                "step": step,
                "epoch": epoch,
                "loss": 0.4 + np.exp(-step / 40) + noise,
                "learning_rate": 3e-4,
                "tokens": step * 2000,
                "chosen": False,
            }
            if step % 50 == 49:
                row["validation_loss"] = 0.45 + np.exp(-step / 40) + 0.02 * epoch
                row["chosen"] = epoch == 2
            yield row

    def add_tested_pass(self, variant_key: Row, epoch: int) -> None:
        """A healing that keeps the weights of one pass, with scores near those of the best one."""
        key = variant_key | {"healing": f"{variant_key['healing']}-{epoch}"}
        self.rows["handles"].append({"handle": f"A{len(self.rows['handles'])}", **key})
        for table in ("training", "benchmarks", "benchmark_samples"):
            copies = [row | key for row in self.rows[table] if variant_key.items() <= row.items()]
            if table == "benchmarks":
                for row in copies:
                    row["value"] *= 1 - 0.01 * epoch
            if table == "training":
                copies = [row for row in copies if row["epoch"] <= epoch]
                for row in copies:
                    row["chosen"] = row["step"] == 50 * epoch + 49
            self.rows[table] += copies

    def add_dissociations(self, model: str) -> None:
        """How differently each layer counts for two calibrations."""
        for calibration, rival in itertools.combinations_with_replacement(self.calibrations, 2):
            if calibration == rival and len(self.calibrations) > 1:
                continue
            for layer_index in range(self.n_layers):
                difference = self.rng.uniform(-0.6, 0.6)
                dissociation = {
                    "model": model,
                    "component": "layer",
                    "calibration": calibration,
                    "rival": rival,
                    "unit": str(layer_index),
                    "layer": layer_index,
                    "difference": difference,
                    "ci_low": difference - 0.1,
                    "ci_high": difference + 0.1,
                    "p_value": 0.01,
                    "q_value": 0.02,
                    "null_low": -0.2,
                    "null_high": 0.2,
                    "sure": abs(difference) > 0.2,
                    "n_samples": 500,
                    "n_rival": 500,
                }
                self.rows["dissociations"].append(dissociation)

    def add_search(self, model: str, calibration: str) -> None:
        """The last evaluations of a search over sets, one winner a size."""
        evaluation = 0
        for size in self.sizes:
            heldout_loss = 0.1 * size + self.rng.normal(0, 0.01)
            winner = {
                "model": model,
                "calibration": calibration,
                "selector": "pairs",
                "strategy": "pairwise",
                "removed": size,
                "units": [str(unit) for unit in range(size)],
                "step": size,
                "kept": True,
                "layer_tokens": 1e5,
            }
            search_score = {
                "stage": "winner",
                "n_samples": 300,
                "n_new": 3000,
                "loss": heldout_loss - 0.02,
                "evaluation": evaluation,
            }
            heldout_score = {
                "stage": "held back",
                "n_samples": 100,
                "n_new": 100,
                "loss": heldout_loss,
                "loss_stderr": 0.02,
                "evaluation": evaluation + 1,
            }
            self.rows["searches"].append({**winner, **search_score})
            self.rows["searches"].append({**winner, **heldout_score})
            evaluation += 2

    def add_repetitions(self, model: str, calibration: str) -> None:
        """A search over every block of up to three layers that runs twice, and its ends."""
        rng = np.random.default_rng(5)  # its own, so that later draws do not depend on it
        search_key = {"model": model, "calibration": calibration, "selector": "again"}
        search_key["strategy"] = "repeat"
        compared = {"n_samples": 300, "n_new": 300, "layer_tokens": 1e5, "stage": "1"}
        evaluation = 100
        for length in (1, 2, 3):
            changes: dict[str, float] = {}
            for first in range(self.n_layers - length + 1):
                last = first + length - 1
                edit = f"{first}x2" if length == 1 else f"{first}-{last}x2"
                changes[edit] = float(rng.normal(0.02, 0.03))
            best = min(changes, key=changes.__getitem__)
            for edit, change in changes.items():
                tried = {"removed": -length, "step": -length, "units": [edit]}
                tried |= {"change": change, "change_stderr": 0.01, "loss": 2 + change}
                row = {**search_key, **compared, **tried, "kept": edit == best}
                self.rows["searches"].append({**row, "evaluation": evaluation})
                evaluation += 1
                if edit == best:
                    again = {"stage": "held back", "n_samples": 100, "change": change + 0.03}
                    self.rows["searches"].append({**row, **again, "evaluation": evaluation})
                    evaluation += 1

    def add_jobs(self, models: tuple[str, ...]) -> None:
        rules = ("sweep_units", "fit_patch", "heal_variant", "benchmark_variants")
        for rule, model, calibration in itertools.product(rules, models, self.calibrations):
            wildcards = {
                "block": "0",
                "calibration": calibration,
                "model": model,
                "removed": "0",
                "selector": "base/removal/layer",
            }
            job = {
                "rule": rule,
                "wildcards": ", ".join(f"{name}={value}" for name, value in wildcards.items()),
                "seconds": self.rng.gamma(3, 9),
                "cpu_seconds": 9.0,
                "max_rss_mb": 812.0,
            }
            self.rows["jobs"].append(job)


def model_row(model: str, n_layers: int) -> Row:
    return {
        "model": model,
        "family": "llama",
        "n_layers": n_layers,
        "hidden_size": 64,
        "vocabulary": 300,
        "parameters": 640_000,
        "weights_bytes": 2_560_000,
        "head_parameters": 19_200,
        "decoder": "llama",
        "runs_code_in_vllm": True,
        "dtype": "float32",
        "source": "resources/reference",
        "weights_sha256": "ab" * 32,
    }


def agreement_rows(model: str, calibrations: list[str], n_layers: int) -> list[Row]:
    """How well the cosine metric agrees with the accuracy metric, over all calibrations."""
    values = {
        "pearson": 0.3,
        "spearman": 0.4,
        "misranked": 0.7,
        "badly_misranked": 0.1,
        "variance_ratio": 1.1,
    }
    rows = []
    for statistic, value in values.items():
        row = {
            "model": model,
            "component": "layer",
            "metric": "cosine",
            "statistic": statistic,
            "value": value,
            "p_value": None,
            "ci_low": value - 0.1,
            "ci_high": value + 0.1,
            "n_units": n_layers - 4 * (n_layers >= 8),
            "n_calibrations": len(calibrations),
            "n_samples": 64 * len(calibrations),
            "calibrations": ", ".join(calibrations),
        }
        rows.append(row)
    return rows
