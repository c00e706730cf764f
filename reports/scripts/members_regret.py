"""What a portfolio loses against its members in hindsight, from the results folder of a study.

    PYTHONPATH=src python reports/scripts/members_regret.py results reports/qwen

It reads the test documents of every variant without a repair, also of a study that has not ended. It writes to the
second folder `variants.csv` (each way to choose, with its layers and numbers), `layers.csv` (what the removal of each
single layer costs on the calibration) and `blocks.csv` (how far each run of layers turns the stream), and prints the
tables of the note.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from scipy.stats import spearmanr

PORTFOLIO = "portfolio"
MEMBERS = ["block", "clusters", "cosine", "accuracy", "perplexity", "output_kl"]
WAYS = [PORTFOLIO, *MEMBERS]
N_DRAWS = 2000  # of documents, for an interval
INTERVAL = [2.5, 97.5]
SPANS = (2, 5, 7, 12)  # layers of the runs that are printed
VARIANT = ["calibration", "selector", "removed"]

Measurements = Mapping[tuple[str, int], np.ndarray]
"""Of a way to choose and a number of layers: values on the test documents of one task."""


def read_parquet_files(folder: Path, pattern: str) -> pd.DataFrame:
    """All tables that match, one below the other."""
    tables = [pq.read_table(file).to_pandas() for file in sorted(folder.glob(pattern))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def read_measurements(documents: pd.DataFrame, task: str, metric: str) -> dict[str, Measurements]:
    """The values of a task by calibration; the base model is in each of them, as ("none", 0)."""
    chosen = documents[(documents["task"] == task) & (documents["metric"] == metric)]
    by_calibration: dict[str, dict[tuple[str, int], np.ndarray]] = {}
    for (calibration, selector, n_removed), rows in chosen.groupby(VARIANT):
        values = rows.sort_values("sample")["value"].to_numpy()
        by_calibration.setdefault(str(calibration), {})[str(selector), int(n_removed)] = values
    base = by_calibration.pop("none", {})
    return {name: {**base, **values} for name, values in by_calibration.items()}


def complete_sizes(measurements: Measurements) -> list[int]:
    """The sizes at which every way was measured."""
    sizes = sorted({n_removed for _, n_removed in measurements if n_removed})
    return [size for size in sizes if all((way, size) in measurements for way in WAYS)]


def regret(measurements: Measurements, n_removed: int, way: str, drawn: np.ndarray) -> float:
    """By how much the best member is better than a way, on some documents: points of accuracy."""
    means = {member: measurements[member, n_removed][drawn].mean() for member in MEMBERS}
    return 100 * float(max(means.values()) - measurements[way, n_removed][drawn].mean())


def regret_of_other_half(
    measurements: Measurements, n_removed: int, way: str, generator: np.random.Generator
) -> float:
    """The same against the member that is best on the other half of the documents, mean of draws.

    The best of several on the documents that compare it is flattered; this one is not.
    """
    n_documents = len(measurements[way, n_removed])
    regrets: list[float] = []
    for _ in range(N_DRAWS):
        order = generator.permutation(n_documents)
        choosing = order[: n_documents // 2]
        judging = order[n_documents // 2 :]
        best = max(MEMBERS, key=lambda name: measurements[name, n_removed][choosing].mean())
        difference = measurements[best, n_removed] - measurements[way, n_removed]
        regrets.append(100 * float(difference[judging].mean()))
    return float(np.mean(regrets))


def draw_interval(
    statistic: Callable[[np.ndarray], float], n_documents: int, generator: np.random.Generator
) -> tuple[float, float]:
    """A 95 % interval of a statistic over drawn documents."""
    values: list[float] = []
    for _ in range(N_DRAWS):
        values.append(statistic(generator.integers(n_documents, size=n_documents)))
    low, high = np.nanpercentile(values, INTERVAL)
    return float(low), float(high)


def count_better(measurements: Measurements, n_removed: int) -> int:
    """How many members are better than the portfolio."""
    own_mean = measurements[PORTFOLIO, n_removed].mean()
    return sum(bool(measurements[member, n_removed].mean() > own_mean) for member in MEMBERS)


def print_accuracies(calibration: str, measurements: Measurements) -> None:
    """A row for each way, a column for each size, its regret, and its difference to the portfolio."""
    sizes = complete_sizes(measurements)
    base = measurements["none", 0]
    print(f"\n{calibration}, n = {len(base)}, base model {base.mean():.3f}\n")
    columns = ["way", *map(str, sizes), "regret", "worst", "other half", "to the portfolio (95 %)"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    everything = np.arange(len(base))
    generator = np.random.default_rng(0)
    for way in WAYS:
        regrets = [regret(measurements, size, way, everything) for size in sizes]
        halves = [regret_of_other_half(measurements, size, way, generator) for size in sizes]
        accuracies = " | ".join(f"{measurements[way, size].mean():.3f}" for size in sizes)
        print(
            f"| {way} | {accuracies} | {np.mean(regrets):.1f} | {max(regrets):.1f} "
            f"| {np.mean(halves):.1f} | {difference_to_portfolio(measurements, sizes, way)} |"
        )
    n_better = ", ".join(str(count_better(measurements, size)) for size in sizes)
    print(f"\nMembers that are better than the portfolio, by size: {n_better}")


def difference_to_portfolio(measurements: Measurements, sizes: Sequence[int], way: str) -> str:
    """Points of accuracy above the portfolio, mean of sizes, with its interval over documents."""
    differences = [measurements[way, size] - measurements[PORTFOLIO, size] for size in sizes]
    by_document = 100 * np.mean(differences, axis=0)
    half_width = 1.96 * by_document.std(ddof=1) / np.sqrt(len(by_document))
    mean = by_document.mean()
    return f"{mean:.1f} ({mean - half_width:.1f} to {mean + half_width:.1f})"


def print_perplexities(calibration: str, measurements: Measurements) -> None:
    """Perplexity of text by way and size: exp of the mean of the documents' nats per token."""
    sizes = complete_sizes(measurements)
    base = measurements["none", 0]
    print(f"\n{calibration}, text, n = {len(base)}, base model {np.exp(base.mean()):.1f}\n")
    print(f"| way | {' | '.join(map(str, sizes))} |")
    print("|---" * (len(sizes) + 1) + "|")
    for way in WAYS:
        values = " | ".join(f"{np.exp(measurements[way, size].mean()):,.0f}" for size in sizes)
        print(f"| {way} | {values} |")


def write_variants(
    results: Path, measured: Mapping[str, Mapping[str, Measurements]], output: Path
) -> None:
    """One row per variant and measure: its layers, mean, standard error and documents."""
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["calibration", "selector", "removed", "layers", "measure", "value", "stderr", "n"]
        )
        for measure, by_calibration in measured.items():
            for calibration, measurements in by_calibration.items():
                for (selector, n_removed), values in sorted(measurements.items()):
                    layers = read_plan(results, calibration, selector, n_removed)
                    stderr = values.std(ddof=1) / np.sqrt(len(values))
                    numbers = [f"{values.mean():.5f}", f"{stderr:.5f}", len(values)]
                    writer.writerow([calibration, selector, n_removed, layers, measure, *numbers])


def read_plan(results: Path, calibration: str, selector: str, n_removed: int) -> str:
    """The layers that a plan removes, in order."""
    pattern = f"plans/*/{calibration}/{selector}/removed={n_removed}.json"
    plans = [json.loads(file.read_text()) for file in results.glob(pattern)]
    return " ".join(sorted(plans[0]["units"], key=int)) if plans else ""


def print_choices(results: Path, calibration: str, sizes: Sequence[int]) -> None:
    """Which member won the portfolio, and by which losses."""
    print("\n| size | winner | layers | judged loss (corrected) | base | judges |")
    print("|---" * 6 + "|")
    for size in sizes:
        pattern = f"plans/*/{calibration}/{PORTFOLIO}/removed={size}.json"
        for file in results.glob(pattern):
            plan = json.loads(file.read_text())
            choice = plan["choice"]
            layers = ", ".join(sorted(plan["units"], key=int))
            print(
                f"| {size} | {choice['member']} | {layers} | {choice['loss']:.2f} "
                f"({choice['corrected_loss']:.2f}) | {choice['base_loss']:.2f} "
                f"| {choice['n_samples']} |"
            )


def layer_costs(sweep: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What the removal of each layer costs on each document, by metric: (documents, layers)."""
    removals = sweep[sweep["selector"] == "base"]
    columns = {"accuracy": "correct_norm", "perplexity": "nll", "output_kl": "output_kl"}
    costs: dict[str, pd.DataFrame] = {}
    for metric, column in columns.items():
        values = removals.pivot_table(index="sample", columns="unit", values=column, dropna=False)
        values = values.astype(float)
        base = values.pop("none")
        rise = values.sub(base, axis=0)
        costs[metric] = -rise if metric == "accuracy" else rise
    costs["output_kl"] = costs["output_kl"].dropna(axis=0, how="all")
    cosine = removals[removals["unit"] != "none"].groupby(["sample", "unit"])["cosine"].max()
    costs["cosine"] = cosine.unstack().dropna(axis=0, how="all")
    layers = sorted(costs["accuracy"].columns, key=int)
    return {metric: values[layers] for metric, values in costs.items()}


def print_agreements(calibration: str, costs: Mapping[str, pd.DataFrame]) -> None:
    """Spearman's correlation of each metric with accuracy over layers, on the same documents.

    The last row is accuracy on one half of the documents with accuracy on the other half: what the
    noise of accuracy leaves to agree with.
    """
    n_documents, n_layers = costs["accuracy"].shape
    spans = {"all layers": slice(None), "without the first and last two": slice(2, n_layers - 2)}
    print(f"\n{calibration}, {n_layers} single layers, n = {n_documents}\n")
    print(f"| with accuracy | {' | '.join(spans)} |")
    print("|---" * 3 + "|")
    for metric in ("cosine", "perplexity", "output_kl"):
        cells = [format_agreement(costs, metric, layers) for layers in spans.values()]
        print(f"| {metric} | {' | '.join(cells)} |")
    generator = np.random.default_rng(0)
    halves: list[str] = []
    for layers in spans.values():
        accuracy_costs = costs["accuracy"].to_numpy()[:, layers]
        halves.append(f"{correlate_halves(accuracy_costs, generator):.2f}")
    print(f"| accuracy, half and half | {' | '.join(halves)} |")


def format_agreement(costs: Mapping[str, pd.DataFrame], metric: str, layers: slice) -> str:
    """Spearman's correlation of a metric with accuracy, and its interval over documents."""
    accuracy_costs = costs["accuracy"].to_numpy()[:, layers]
    metric_costs = costs[metric].to_numpy()[:, layers]

    def correlate(drawn: np.ndarray) -> float:
        means = accuracy_costs[drawn].mean(axis=0), metric_costs[drawn].mean(axis=0)
        return float(spearmanr(*means).statistic)

    n_documents = len(accuracy_costs)
    low, high = draw_interval(correlate, n_documents, np.random.default_rng(0))
    return f"{correlate(np.arange(n_documents)):.2f} ({low:.2f} to {high:.2f})"


def correlate_halves(document_costs: np.ndarray, generator: np.random.Generator) -> float:
    """Spearman's correlation of the means of two halves of the documents, mean of draws."""
    correlations: list[float] = []
    for _ in range(N_DRAWS):
        order = generator.permutation(len(document_costs))
        halves = np.array_split(document_costs[order], 2)
        means = [half.mean(axis=0) for half in halves]
        correlations.append(float(spearmanr(*means).statistic))
    return float(np.mean(correlations))


def write_layers(costs: Mapping[str, Mapping[str, pd.DataFrame]], output: Path) -> None:
    """One row per calibration and layer: the mean of each metric over documents."""
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["calibration", "layer", "metric", "value", "stderr", "n"])
        for calibration, by_metric in costs.items():
            for metric, values in by_metric.items():
                for layer in values.columns:
                    column = values[layer].dropna()
                    stderr = column.std(ddof=1) / np.sqrt(len(column))
                    numbers = [f"{column.mean():.5f}", f"{stderr:.5f}", len(column)]
                    writer.writerow([calibration, layer, metric, *numbers])


def write_blocks(blocks: pd.DataFrame, output: Path) -> None:
    """Write how far each run of layers turns the stream; print the runs that turn it least."""
    columns = ["calibration", "layer", "span", "cosine", "angular_last", "angular_last_stderr"]
    blocks[columns].round(5).to_csv(output, index=False)
    print(
        "\n| calibration | layers in a run | the run that turns least (angle) | the deepest run |"
    )
    print("|---" * 4 + "|")
    for (calibration, span), runs in blocks.groupby(["calibration", "span"]):
        if span not in SPANS:
            continue
        least = runs.loc[runs["angular_last"].idxmin()]
        deepest = runs.loc[runs["layer"].idxmax()]
        cells = [
            f"{run['layer']} to {run['layer'] + span - 1} ({run['angular_last']:.3f})"
            for run in (least, deepest)
        ]
        print(f"| {calibration} | {span} | {' | '.join(cells)} |")


def main(results: Path, output: Path) -> None:
    """Write the CSV files and print the tables."""
    output.mkdir(parents=True, exist_ok=True)
    documents = read_parquet_files(results, "benchmarks/**/*.samples.parquet")
    measured: dict[str, dict[str, Measurements]] = {}
    if len(documents):
        documents = documents[documents["repair"] == "none"]
        for task in sorted(documents["task"].unique()):
            for metric in ("acc_norm", "acc", "nll"):
                by_calibration = read_measurements(documents, task, metric)
                if by_calibration:
                    measured[f"{task} {metric}"] = by_calibration
        write_variants(results, measured, output / "variants.csv")
    for measure, by_calibration in measured.items():
        for calibration, measurements in by_calibration.items():
            if not complete_sizes(measurements):
                continue
            print(f"\n## {measure}")
            if measure.endswith("nll"):
                print_perplexities(calibration, measurements)
            else:
                print_accuracies(calibration, measurements)
                print_choices(results, calibration, complete_sizes(measurements))

    costs: dict[str, dict[str, pd.DataFrame]] = {}
    for folder in sorted(results.glob("sweeps/*/*/base")):
        sweep = read_parquet_files(folder, "removal/layer/removed=0.parquet")
        if len(sweep):
            costs[folder.parent.name] = layer_costs(sweep)
    for calibration, by_metric in costs.items():
        print_agreements(calibration, by_metric)
    if costs:
        write_layers(costs, output / "layers.csv")
    blocks = read_parquet_files(results, "activations/*/*.parquet")
    if len(blocks):
        write_blocks(blocks[blocks["span"] > 0], output / "blocks.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
