"""How much of a gain by layers that run again survives: the tables of reports/edits.md.

    PYTHONPATH=src python reports/scripts/edits.py measure smollm2 models/smollm2/checkpoint arc_easy --data DATA
    PYTHONPATH=src python reports/scripts/edits.py tables
    PYTHONPATH=src python reports/scripts/edits.py control facts

`measure` answers questions that may choose and others with every block of 1, 2, … layers that runs
twice, with and without damping, and goes on where it was stopped. DATA is a folder with
TASK_calibration.jsonl and TASK_test.jsonl (tools/cut_data.py); without it the embedded task is taken.
`tables` writes the tables of every file in reports/edits/ between the marks of the page. `control`
trains the LoRA of config/edits.yaml on the embedded model itself, which the workflow does not.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory

import numpy as np

import lamina
from lamina.api.inputs import PreparedModel
from lamina.data import lm_tasks
from lamina.data.calibrations import Sample
from lamina.engine import memory, sweep
from lamina.engine.candidates import Candidate
from lamina.evaluation.tasks import TaskBenchmark
from lamina.healing import lora
from lamina.healing.batches import TrainingSource
from lamina.healing.lora import Lora
from lamina.models.adapters import apply_adapter
from lamina.models.materialise import materialise
from lamina.models.units import Repetition, list_blocks, parse_edit
from lamina.paths import PROJECT
from lamina.selection.evaluator import Evaluator, loss_of

FOLDER = Path("reports/edits")
PAGE = Path("reports/edits.md")
N_DRAWN = {"calibration": 400, "test": 600}  # of which the first ones are measured
N_EMBEDDED = 500  # all that there are
N_EMBEDDED_CHOOSING = 200
N_TOGETHER = 50  # questions after which the losses are kept
SIZES = (16, 50, 400)  # questions that choose
N_DRAWS = 2000
Z95 = 1.96
CRITERIA = {"accuracy": 0, "loss of the right answer": 1}


def list_candidates(n_layers: int, longest: int, plain: bool) -> list[str]:
    """The edits: every block up to the longest one, plain, and damped if not `plain` alone."""
    edits: list[str] = []
    for length in range(1, longest + 1):
        for block in list_blocks(range(n_layers), length):
            for is_damped in (False,) if plain else (False, True):
                edits.append(str(Repetition(block[0], block[-1], 2, is_damped)))
    return edits


def prepare_questions(
    base: PreparedModel, task: str, data: Path | None, n_measured: Mapping[str, int]
) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The questions that choose, and the others."""
    if data is None:
        options = {"task": f"microworld_{task}", "split": "validation", "limit": N_EMBEDDED}
        samples = lamina.prepare(base, task, **options).content.samples
        return samples[:N_EMBEDDED_CHOOSING], samples[N_EMBEDDED_CHOOSING:]
    parts: list[Sequence[Sample]] = []
    for part, n_drawn in N_DRAWN.items():
        file = str(data / f"{task}_{part}.jsonl")
        samples = lamina.prepare(base, task, choices=file, limit=n_drawn).content.samples
        parts.append(samples[: n_measured[part]])
    return parts[0], parts[1]


def measure(arguments: Namespace) -> None:
    """Losses of all candidates and of the base model, (2, candidates, questions) a part."""
    name, task, data = arguments.name, arguments.task, arguments.data
    base = lamina.open_model(arguments.source, name=name, dtype="bfloat16" if data else "float32")
    edits = arguments.edits
    if not edits:
        edits = list_candidates(base.n_layers, arguments.longest, arguments.plain)
    candidates = [Candidate(), *(Candidate(frozenset({edit})) for edit in edits)]
    n_measured = {"calibration": arguments.choosing, "test": arguments.others}
    label = f"{name}-{task}-{len(edits)}"
    part = f"+{arguments.part}" if arguments.part else ""
    choosing, others = prepare_questions(base, task, data, n_measured)
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        FOLDER / f"{name}-{task}{part}.npz",
        edits=np.array(edits),
        choosing=measure_part(base, choosing, candidates, f"{label}-choosing"),
        others=measure_part(base, others, candidates, f"{label}-others"),
    )


def measure_part(
    base: PreparedModel, samples: Sequence[Sample], candidates: list[Candidate], label: str
) -> np.ndarray:
    """1 - accuracy and the loss of the right answer, (2, candidates, questions)."""
    blocks: list[np.ndarray] = []
    for start in range(0, len(samples), N_TOGETHER):
        some_samples = samples[start : start + N_TOGETHER]
        file = Path(f"results/edits/{label}-{start}.npy")
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, measure_samples(base, some_samples, candidates))
            print(f"{label}: {start + len(some_samples)} of {len(samples)}", flush=True)
        blocks.append(np.load(file))
    return np.concatenate(blocks, axis=2)


def measure_samples(
    base: PreparedModel, samples: Sequence[Sample], candidates: list[Candidate]
) -> np.ndarray:
    """As `measure_part`, in one pass."""
    budget = memory.choose_token_budget("auto", base.model, samples, base.n_layers + 2)
    with sweep.open_session(base.model, samples, budget, outputs=False) as session:
        indices = range(len(samples))
        wrong = Evaluator(session, loss_of("accuracy", "acc_norm"))
        answer_losses = Evaluator(session, loss_of("perplexity", "acc_norm"))
        return np.array(
            [
                wrong.measure_losses(candidates, indices),
                answer_losses.measure_losses(candidates, indices),
            ]
        )


def mean_with_reach(values: np.ndarray) -> tuple[float, float]:
    """Mean and half of its 95 % interval, in points."""
    stderr = values.std(ddof=1) / np.sqrt(len(values))
    return 100 * float(values.mean()), 100 * Z95 * float(stderr)


def find_best(means: np.ndarray, criterion: int) -> int:
    """Index of the largest mean gain, (2, candidates); equal ones are told apart by the loss."""
    return int(np.lexsort((means[1], means[criterion].round(12)))[-1])


def kind_of(edit: str) -> str:
    """`plain` or `damped` for a block that runs twice, `exchanged` for two layers."""
    if "<>" in edit:
        return "exchanged"
    return "damped" if "~" in edit else "plain"


class Measured:
    """What was measured of a model on a task; gains are in share of right answers."""

    def __init__(self, file: Path) -> None:
        arrays = np.load(file)
        self.name, self.task = file.stem.partition("+")[0].rsplit("-", 1)
        self.edits = [str(edit) for edit in arrays["edits"]]
        self.choosing, self.others = arrays["choosing"], arrays["others"]
        self.base_accuracy = 1 - float(self.others[0, 0].mean())

    def gains_of(self, losses: np.ndarray) -> np.ndarray:
        """How much less every candidate loses than the base model, (2, candidates, questions)."""
        return losses[:, :1] - losses[:, 1:]

    @property
    def kinds(self) -> list[str]:
        """Which edits there are: `plain` and `damped` blocks, `exchanged` layers."""
        return [kind for kind in ("plain", "damped", "exchanged") if self.list_indices(kind)]

    def list_indices(self, kind: str) -> list[int]:
        """The candidates of a kind."""
        return [i for i, edit in enumerate(self.edits) if kind_of(edit) == kind]

    def survival_rows(self, kind: str) -> list[list[str]]:
        """The best of many by few questions, and what it is worth on the others."""
        kept = self.list_indices(kind)
        choosing = self.gains_of(self.choosing)[:, kept]
        others = self.gains_of(self.others)[0, kept].mean(axis=1)
        generator = np.random.default_rng(0)
        n_questions = choosing.shape[2]
        rows: list[list[str]] = []
        for size in SIZES:
            drawn_size = min(size, n_questions)
            n_draws = 1 if drawn_size == n_questions else N_DRAWS
            row = [self.name, self.task, kind, str(len(kept)), str(drawn_size)]
            for criterion in CRITERIA.values():
                apparent: list[float] = []
                true: list[float] = []
                for _ in range(n_draws):
                    drawn = generator.permutation(n_questions)[:drawn_size]
                    means = choosing[:, :, drawn].mean(axis=2)
                    best = find_best(means, criterion)
                    apparent.append(means[0, best])
                    true.append(others[best])
                row += [f"{100 * np.mean(apparent):+.1f}", f"{100 * np.mean(true):+.1f}"]
                row += [f"{100 * np.mean(np.array(true) > 0):.0f} %"]
            rows.append(row)
        return rows

    def best_rows(self) -> list[list[str]]:
        """The best candidate by all questions that choose, on the others, with its interval."""
        rows: list[list[str]] = []
        choosing, others = self.gains_of(self.choosing), self.gains_of(self.others)
        for kind in self.kinds:
            kept = self.list_indices(kind)
            for criterion, index in CRITERIA.items():
                means = choosing[:, kept].mean(axis=2)
                best = kept[find_best(means, index)]
                chosen, _ = mean_with_reach(choosing[0, best])
                gain, reach = mean_with_reach(others[0, best])
                loss_gain = others[1, best]
                loss_reach = Z95 * loss_gain.std(ddof=1) / np.sqrt(len(loss_gain))
                rows.append(
                    [self.name, self.task, kind, criterion, self.edits[best]]
                    + [f"{100 * self.base_accuracy:.1f}", f"{chosen:+.1f}"]
                    + [f"{gain:+.1f} ± {reach:.1f}"]
                    + [f"{-loss_gain.mean():+.3f} ± {loss_reach:.3f}", str(others.shape[2])]
                )
        return rows

    def length_rows(self) -> list[list[str]]:
        """What blocks of a length do on the other questions, whichever they are."""
        others = self.gains_of(self.others)
        rows: list[list[str]] = []
        lengths = [len(parse_edit(edit).layers) for edit in self.edits]
        for length in sorted(set(lengths)):
            for kind in self.kinds:
                kept = [i for i in self.list_indices(kind) if lengths[i] == length]
                if not kept:
                    continue
                gains = 100 * others[0, kept].mean(axis=1)
                losses = -others[1, kept].mean(axis=1)
                rows.append(
                    [self.name, self.task, str(length), kind, str(len(kept))]
                    + [f"{np.median(gains):+.1f}", f"{gains.max():+.1f}"]
                    + [f"{np.median(losses):+.3f}", f"{losses.min():+.3f}"]
                    + [str(self._count_significant(others[1, kept], len(self.edits)))]
                )
        return rows

    def _count_significant(self, gains: np.ndarray, n_tried: int) -> int:
        """Candidates that lower the loss significantly, after Bonferroni's correction."""
        errors = gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])
        quantile = NormalDist().inv_cdf(1 - 0.05 / n_tried)
        return int((gains.mean(axis=1) > quantile * errors).sum())


SURVIVAL = ["model", "task", "blocks", "tried", "questions"]
SURVIVAL += ["chosen by accuracy: apparent gain, points", "on the others", "gains there"]
SURVIVAL += ["chosen by loss: apparent gain, points", "on the others", "gains there"]
BEST = ["model", "task", "blocks", "chosen by", "best", "base, %", "on those that chose"]
BEST += ["gain on the others, points", "change of loss", "n"]
LENGTHS = ["model", "task", "layers", "blocks", "tried", "median gain, points", "largest"]
LENGTHS += ["median change of loss", "least", "significant gains of loss"]


def as_markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_tables() -> None:
    """Replace the tables of the page."""
    measured = [Measured(file) for file in sorted(FOLDER.glob("*.npz"))]
    survival: list[list[str]] = []
    for entry in measured:
        for kind in entry.kinds:
            if len(entry.list_indices(kind)) > 1:
                survival += entry.survival_rows(kind)
    tables = {
        "survival": as_markdown(SURVIVAL, survival),
        "best": as_markdown(BEST, [row for entry in measured for row in entry.best_rows()]),
        "lengths": as_markdown(LENGTHS, [row for entry in measured for row in entry.length_rows()]),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, start, after = page.partition(f"<!-- {name} -->\n")
        _, end, after = after.partition("<!-- end -->")
        page = before + start + table + end + after
    PAGE.write_text(page, encoding="utf-8")


def train_control(task_name: str) -> None:
    """What LoRA alone gives the base model on all test questions of a task."""
    base = lamina.open_model("resources/reference", dtype="float32")
    own = lamina.prepare(
        base, task_name, task=f"microworld_{task_name}", split="validation", limit=300
    )
    text_options = {"split": "validation", "documents": "0:200", "length": 128}
    general = lamina.prepare(base, "general", text="microworld_corpus", **text_options)
    sources = [
        TrainingSource(own.content.samples),
        TrainingSource(general.content.samples, 0.1),
    ]
    options = Lora(rank=8, alpha=16, learning_rate=0.002, batch=16, epochs=4, warmup_steps=8)
    healed, _ = lora.heal(base.model, None, None, sources, options)
    with TemporaryDirectory() as folder:
        lora.save(healed, folder)
        trained = apply_adapter(materialise(base.model, None), Path(folder))
    benchmark = TaskBenchmark(
        lm_tasks.task_object(f"microworld_{task_name}", PROJECT), base.model, base.tokenizer, None
    )
    right: list[np.ndarray] = []
    for name, model in (("base", base.model), ("control", trained)):
        samples = benchmark.score(model, name).samples
        values = [row["value"] for row in samples if row["metric"] in ("acc_norm", "exact_match")]
        right.append(np.array(values))
    gain, reach = mean_with_reach(right[1] - right[0])
    accuracy = 100 * right[0].mean()
    print(
        f"{task_name}: base {accuracy:.1f} %, LoRA {gain:+.1f} ± {reach:.1f}, n = {len(right[0])}"
    )


def parse_arguments() -> Namespace:
    parser = ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tables")
    commands.add_parser("control").add_argument("task")
    measuring = commands.add_parser("measure")
    for key in ("name", "source", "task"):
        measuring.add_argument(key)
    measuring.add_argument("--data", type=Path)
    measuring.add_argument("--longest", type=int, default=1)
    measuring.add_argument("--plain", action="store_true", help="without damping")
    measuring.add_argument("--edits", nargs="*", help="these alone, such as 25x2 12-14x2~")
    measuring.add_argument("--part", help="keep them in a file of their own, of this name")
    measuring.add_argument("--choosing", type=int, default=N_DRAWN["calibration"])
    measuring.add_argument("--others", type=int, default=N_DRAWN["test"])
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    if arguments.command == "tables":
        write_tables()
    elif arguments.command == "control":
        train_control(arguments.task)
    else:
        measure(arguments)
