"""Tables of the papers' protocol on SmolLM2 (reports/protocol.md), from reports/portfolio/protocol.csv.

`python reports/scripts/protocol_table.py [FOLDER]`: with the folder of judge_protocol.py, the CSV is made anew first.
"""

import csv
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parents[1] / "portfolio/protocol.csv"
HEAD = "task removed way questions draw repair units n accuracy loss rise_stderr text_loss right"


def gathered(folder: Path) -> list[dict[str, str]]:
    """The rows of all judged sets, with the standard error of the rise of the loss in place of all losses."""
    rows = []
    for file in sorted(folder.glob("judged-*.csv")):
        with file.open() as lines:
            judged = list(csv.DictReader(lines))
        base = np.array(judged[0]["losses"].split(), dtype=float)
        for row in judged:
            rise = np.array(row["losses"].split(), dtype=float) - base
            row["rise_stderr"] = f"{rise.std(ddof=1) / np.sqrt(len(rise)):.4f}"
            row |= {key: f"{float(row[key]):.5f}" for key in ("accuracy", "loss", "text_loss")}
            rows.append({key: row[key] for key in HEAD.split()})
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD.split())
        writer.writeheader()
        writer.writerows(rows)
    return rows


def answers(row: dict[str, str]) -> np.ndarray:
    """(n,) 1 where the answer is right."""
    return np.array([int(bit) for bit in f"{int(row['right'], 16):b}"[1:]])


def difference(mine: dict[str, list[np.ndarray]], other: dict[str, list[np.ndarray]]) -> str:
    """Points of accuracy that `mine` has more, mean over tasks, with a paired interval over questions.

    Draws of one task share its questions: each question counts by its mean over draws.
    """
    means, variances = [], []
    for task in mine:
        gain = np.mean(mine[task], axis=0) - np.mean(other[task], axis=0)
        means.append(gain.mean())
        variances.append(gain.var(ddof=1) / len(gain))
    mean, half = 100 * np.mean(means), 196 * np.sqrt(np.sum(variances)) / len(means)
    return f"{mean:+.1f} ({mean - half:.1f} to {mean + half:.1f})"


def main() -> None:
    rows = gathered(Path(sys.argv[1])) if len(sys.argv) > 1 else list(csv.DictReader(OUT.open()))
    base = {row["task"]: row for row in rows if row["way"] == "base"}
    for task, row in base.items():
        print(
            task,
            row["n"],
            "questions, accuracy",
            row["accuracy"],
            "loss",
            row["loss"],
            "text",
            row["text_loss"],
        )
    groups: dict[tuple[str, str, str, str], dict[str, list[dict[str, str]]]] = {}
    for row in rows:
        if row["way"] != "base":
            key = (row["removed"], row["way"], row["questions"], row["repair"])
            groups.setdefault(key, {}).setdefault(row["task"], []).append(row)
    print(
        "removed | way | questions | repair | draws | accuracy by task | rise of loss | text | to base | to block"
    )
    for key, by_task in sorted(groups.items()):
        tasks = {task: [answers(row) for row in some] for task, some in by_task.items()}
        whole = {task: [answers(base[task])] for task in tasks}
        block = groups[key[0], "block", "400", "none"]
        blocks = {task: [answers(row) for row in block[task]] for task in tasks}
        seen = [
            f"{task} {np.mean([float(row['accuracy']) for row in some]):.3f}"
            for task, some in by_task.items()
        ]
        rises = [
            f"{np.mean([float(row['loss']) for row in some]) - float(base[task]['loss']):.2f}"
            f" ± {1.96 * np.mean([float(row['rise_stderr']) for row in some]):.2f}"
            for task, some in by_task.items()
        ]
        texts = [
            f"{np.exp(np.mean([float(row['text_loss']) for row in some])):.0f}"
            for some in by_task.values()
        ]
        draws = "+".join(str(len(some)) for some in by_task.values())
        ends = (difference(tasks, whole), difference(tasks, blocks))
        print(" | ".join([*key, draws, ", ".join(seen), ", ".join(rises), ", ".join(texts), *ends]))


if __name__ == "__main__":
    main()
