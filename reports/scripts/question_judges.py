"""Which value of held-out questions tells best what a set of layers leaves of a task: reports/portfolio.md.

    PYTHONPATH=src python reports/scripts/question_judges.py measure smollm2 OUT
    PYTHONPATH=src python reports/scripts/question_judges.py measure qwen-0.5b OUT CHECKPOINT DATABASE
    PYTHONPATH=src python reports/scripts/question_judges.py table OUT

Sets that the portfolio and its members chose, with their accuracy on test questions, are known: those of SmolLM2 from
reports/portfolio/smollm2.csv, those of Qwen2.5-Coder from the database of config/qwen-0.5b.yaml. `measure` scores the
choices of N_JUDGES other questions, which neither chose nor tested; `OUT/MODEL-TASK.npz` holds the log-likelihoods, and
what is there is not measured again. `table` lets each judge choose among the sets of a size, from random questions.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import scipy.stats

from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.options.calibrations import Calibration as Entry

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("arc_easy", "piqa")
N_JUDGES = 200
# Sets of a task and size at most, drawn at random.
MOST_SETS = 12
TOKENS = 4096
DRAWS = 400
QUESTION_COUNTS = (25, 50, 100, 200)
SMOLLM2_TESTS = 500  # test questions of reports/scripts/portfolio_regret.py
QWEN_TESTS = 300  # test questions of config/qwen-0.5b.yaml


class KnownSet(NamedTuple):
    """A set of layers and its accuracy on test questions."""

    removed: int
    units: str
    accuracy: float


def list_smollm2_sets(task: str) -> list[KnownSet]:
    rows = duckdb.execute(
        "SELECT DISTINCT removed, units, accuracy FROM read_csv(?) WHERE task = ? ORDER BY ALL",
        [str(ROOT / "reports/portfolio/smollm2.csv"), task],
    ).fetchall()
    return [KnownSet(*row) for row in rows]


def list_qwen_sets(task: str, database: str) -> list[KnownSet]:
    with duckdb.connect(database, read_only=True) as connection:
        rows = connection.execute(
            """
            WITH sets AS (
                SELECT model, calibration, selector, removed,
                    array_to_string(list_sort(list_distinct(list(unit::INT))), ' ') AS units
                FROM studies.plans GROUP BY ALL
            )
            SELECT DISTINCT removed, units, value FROM sets JOIN studies.scores USING (model, calibration, selector, removed)
            WHERE task = ? AND repair = 'none' AND removed > 0 AND metric = 'acc_norm' ORDER BY ALL
            """,
            [task],
        ).fetchall()
    return [KnownSet(*row) for row in rows]


def draw_sets(sets: list[KnownSet]) -> list[KnownSet]:
    """At most MOST_SETS of each size."""
    generator = np.random.default_rng(0)
    drawn: list[KnownSet] = []
    for size in sorted({known.removed for known in sets}):
        of_size = [known for known in sets if known.removed == size]
        order = generator.permutation(len(of_size))[:MOST_SETS]
        drawn += [of_size[index] for index in sorted(order)]
    return drawn


def list_judge_lines(model: str, task: str) -> list[str]:
    """Questions that neither chose nor tested."""
    if model == "smollm2":
        lines = [
            line
            for part in ("calibration", "validation", "test")
            for line in (ROOT / f"models/smollm2/data/{task}_{part}.jsonl").read_text().splitlines()
        ]
        return lines[min(1400, len(lines) - 838) + SMOLLM2_TESTS :][:N_JUDGES]
    lines = (ROOT / f"models/qwen/data/{task}_test.jsonl").read_text().splitlines()
    return lines[QWEN_TESTS:][:N_JUDGES]


def measure_task(model_name: str, task: str, sets: list[KnownSet], folder: str, out: Path) -> None:
    """Log-likelihoods of all choices of the judge questions, for the whole model and each set."""
    file = out / f"{model_name}-{task}.npz"
    if file.is_file():
        return
    questions = out / f"{model_name}-{task}.jsonl"
    questions.write_text("".join(f"{line}\n" for line in list_judge_lines(model_name, task)))
    manifest = {
        "path": folder,
        "source": folder,
        "template_arguments": {},
        "vocabulary": json.loads((Path(folder) / "config.json").read_text())["vocab_size"],
        "trust_remote_code": False,
        "chat_template": False,
        "fewshot_as_turns": None,
        "system_prompt": None,
    }
    entry = Entry.from_options({"choices": str(questions)})
    samples = prepare_calibration(task, entry, manifest, ROOT).samples
    model = load_folder(folder, "bfloat16", False)
    candidates = [Candidate(), *(Candidate(frozenset(known.units.split())) for known in sets)]
    with sweep.open_session(model, samples, TOKENS, False) as session:
        session.measure(range(len(samples)), {candidate: candidate for candidate in candidates})
        order = [session.scores.index[candidate] for candidate in candidates]
        loglikelihoods = session.scores.loglikelihood[order]
    np.savez(
        file,
        loglikelihoods=loglikelihoods,
        choices=[len(sample.rows) for sample in samples],
        gold=[sample.gold for sample in samples],
        characters=[row.characters for sample in samples for row in sample.rows],
        tokens=[len(row.continuation) for sample in samples for row in sample.rows],
        removed=[known.removed for known in sets],
        units=[known.units for known in sets],
        accuracy=[known.accuracy for known in sets],
    )


def _log_share(scores: np.ndarray, gold: int) -> np.ndarray:
    """Minus the logarithm of the right choice's share, (sets,)."""
    highest = scores.max(axis=1, keepdims=True)
    total = np.log(np.exp(scores - highest).sum(axis=1)) + highest[:, 0]
    return total - scores[:, gold]


def _margin(scores: np.ndarray, gold: int) -> np.ndarray:
    return np.delete(scores, gold, axis=1).max(axis=1) - scores[:, gold]


def _error(scores: np.ndarray, gold: int) -> np.ndarray:
    return (scores.argmax(axis=1) != gold).astype(float)


# From log-likelihoods (sets, choices), characters and tokens (choices,), and the right choice.
JUDGES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]] = {
    "loss": lambda scores, characters, tokens, gold: -scores[:, gold],
    "loss per token": lambda scores, characters, tokens, gold: -scores[:, gold] / tokens[gold],
    "error": lambda scores, characters, tokens, gold: _error(scores / characters, gold),
    "margin": lambda scores, characters, tokens, gold: _margin(scores, gold),
    "margin per character": lambda scores, characters, tokens, gold: _margin(
        scores / characters, gold
    ),
    "share": lambda scores, characters, tokens, gold: _log_share(scores, gold),
    "share per token": lambda scores, characters, tokens, gold: _log_share(scores / tokens, gold),
    "share by length": lambda scores, characters, tokens, gold: _log_share(
        scores / characters * characters.mean(), gold
    ),
    "loss and share": lambda scores, characters, tokens, gold: (
        _log_share(scores, gold) - scores[:, gold]
    ),
}


def judge_all(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What each judge says of the whole model and of each set, (1 + sets, questions)."""
    ends = np.cumsum(data["choices"])
    values: dict[str, list[np.ndarray]] = {name: [] for name in JUDGES}
    for end, n_choices, gold in zip(ends, data["choices"], data["gold"], strict=True):
        rows = slice(end - n_choices, end)
        for name, judge in JUDGES.items():
            values[name].append(
                judge(
                    data["loglikelihoods"][:, rows],
                    data["characters"][rows],
                    data["tokens"][rows],
                    gold,
                )
            )
    return {name: np.array(columns).T for name, columns in values.items()}


def list_regrets(file: Path) -> Iterator[tuple[str, str, int, int, float]]:
    """(task, judge, questions, size, regret in points) of a file: means of DRAWS random draws."""
    data = dict(np.load(file))
    for name, values in judge_all(data).items():
        for n_questions in QUESTION_COUNTS:
            generator = np.random.default_rng(n_questions)
            draws = [generator.permutation(values.shape[1])[:n_questions] for _ in range(DRAWS)]
            for size in np.unique(data["removed"]):
                of_size = np.flatnonzero(data["removed"] == size)
                accuracy = data["accuracy"][of_size]
                chosen = [values[1 + of_size][:, draw].mean(axis=1).argmin() for draw in draws]
                regret = 100 * float(accuracy.max() - accuracy[chosen].mean())
                yield file.stem, name, n_questions, int(size), round(regret, 2)


def write_table(out: Path) -> None:
    """Write reports/portfolio/question_judges.csv, and print the means over tasks and sizes."""
    rows = [row for file in sorted(out.glob("*.npz")) for row in list_regrets(file)]
    table = ROOT / "reports/portfolio/question_judges.csv"
    lines = [
        ",".join(map(str, row))
        for row in [("task", "judge", "questions", "removed", "regret"), *rows]
    ]
    table.write_text("".join(f"{line}\n" for line in lines))
    regrets = {
        (name, n_questions): np.array([row[-1] for row in rows if row[1:3] == (name, n_questions)])
        for name in JUDGES
        for n_questions in QUESTION_COUNTS
    }
    for name in JUDGES:
        cells: list[str] = []
        for n_questions in QUESTION_COUNTS:
            own = regrets[name, n_questions]
            more = own - regrets["loss", n_questions]
            reach = scipy.stats.t.ppf(0.975, len(more) - 1) * more.std(ddof=1) / len(more) ** 0.5
            cells.append(f"{own.mean():.1f} ({own.max():.1f}); {more.mean():+.1f} ± {reach:.1f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    if action == "table":
        write_table(Path(arguments[0]))
    else:
        out_folder = Path(arguments[1])
        out_folder.mkdir(parents=True, exist_ok=True)
        for task_name in TASKS:
            if arguments[0] == "smollm2":
                checkpoint = str(ROOT / "models/smollm2/checkpoint")
                known_sets = list_smollm2_sets(task_name)
            else:
                checkpoint = arguments[2]
                known_sets = list_qwen_sets(task_name, arguments[3])
            measure_task(arguments[0], task_name, draw_sets(known_sets), checkpoint, out_folder)
