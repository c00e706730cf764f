"""The configuration as a whole.

The short sections are defined here too: `diagnoses`, `sweep`, `benchmark` and `report`.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from lamina.errors import LaminaError
from lamina.options.benchmarks import Benchmarks
from lamina.options.calibrations import Calibration, Choices, Hub, Mixture, Text
from lamina.options.diagnoses import Diagnosis
from lamina.options.entry import Entry, Named, option
from lamina.options.healings import Healing
from lamina.options.models import Donor, Model
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector, share_of_layers
from lamina_workflow.config.studies import ReachedSize, Size, Study, read_percentage


class Sweep(Entry):
    """How a sweep is split into jobs and batches."""

    blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = option(
        "Jobs per sweep, of equal cost. Each job runs the base model too, so a sweep of L layers "
        "in two jobs costs 2 / (L + 1) more than in one. `auto` takes the largest number of jobs "
        "that costs at most a tenth more (2 from 19 layers on, 5 for 80). With one GPU, 1 is "
        "cheapest; with several, write their number.",
        "auto",
        allowed="a whole number of at least 1, or auto",
    )
    tokens: Annotated[int, Field(ge=64)] | Literal["auto"] = option(
        "Tokens in one batch, over all streams of the sweep; they bound the memory. `auto` takes "
        "as many as fit into half of the free GPU memory, or into 2 GB on a CPU.",
        16384,
        allowed="a whole number of at least 64, or auto",
    )


class Benchmark(Entry):
    """How the benchmarks are split into jobs."""

    blocks: int = option("Jobs per task that share the variants of one calibration.", 1, ge=1)


class Report(Entry):
    """What the report recommends: the smallest model that meets these requirements."""

    keep: Annotated[float, BeforeValidator(read_percentage)] = option(
        "Share of the base model's score on a task that a variant must keep (for perplexity, "
        "base / variant), such as 0.95 or 95%.",
        0.95,
        gt=0,
        le=1,
    )
    counted_from: Literal["zero", "chance"] = option(
        "Zero point of that share. `zero`: value / base, as in papers; it is known for every "
        "task. `chance`: (value - chance) / (base - chance), which is stricter, because guessing "
        "keeps nothing. It is unknown for a task that no calibration samples alone, since its "
        "chance is unknown. The report shows both.",
        "zero",
    )
    general_text: float | None = option(
        "Maximum perplexity of general text, as a multiple of the base model's; `null` sets no "
        "limit.",
        None,
        ge=1,
    )

    must_load: Literal["transformers", "vllm", "llama.cpp"] | None = option(
        "Program that must load the recommended variant: `transformers` (without code from the "
        "export), `vllm` or `llama.cpp`. `null` allows any variant; the report then also shows "
        "the best one that loads everywhere.",
        None,
    )


class Configuration(Entry):
    """Named entries, and the studies that combine them."""

    seed: int = option(
        "Seed of every calibration, selector, healing and diagnosis without a `seed` of its own.",
        0,
        ge=0,
    )
    models: Named[Model] = option("The models, by name.")
    donors: Named[Donor] = option(
        "Sibling models, by name, whose layers may replace a model's own layers.",
        {},
    )
    calibrations: Named[Calibration] = option(
        "The sets of samples on which units are scored and patches are fitted, by name."
    )
    selectors: Named[Selector] = option("The selectors, which choose what to remove, by name.", {})
    repairs: Named[Repair] = option(
        "The repairs of pruned models, by name. `none` always exists.", {}
    )
    healings: Named[Healing] = option(
        "The short fine-tuning runs, by name. `none` always exists.", {}
    )
    diagnoses: Named[Diagnosis] = option(
        "The diagnoses, which measure the base model and remove nothing, by name.", {}
    )
    benchmarks: Benchmarks = option(
        "What is measured on the variants, and on the base model for comparison.", Benchmarks()
    )
    sweep: Sweep = option("How a sweep is split into jobs and batches.", Sweep())
    benchmark: Benchmark = option("How the benchmarks are split into jobs.", Benchmark())
    report: Report = option("What the report recommends.", Report())
    studies: Named[Study] = option(
        "The studies to run, by name. A study of relevance maps lists `metrics`; a pruning study "
        "lists `selectors` and `removed`."
    )
    # By model, selector and size. `lamina_workflow.checks.removals` fills it.
    _reached: dict[tuple[str, str, Size], ReachedSize] = PrivateAttr(default_factory=dict)

    @property
    def reached_sizes(self) -> dict[tuple[str, str, Size], ReachedSize]:
        """What each size means, by model, selector and size.

        Units of different cost reach a size with different numbers.
        """
        return self._reached

    def count_removed(self, model: str, selector: str, entry: int | str | Size) -> int:
        """The number of units that an entry of a study's `removed` means.

        Raises LaminaError if it is a share and the number of layers is not known.
        """
        if isinstance(entry, int):
            return entry
        if isinstance(entry, Size):
            return self._reached[model, selector, entry].n_removed
        n_layers = self.models[model].layers
        if n_layers is None:
            raise LaminaError(
                f"removed: '{entry}' is a share of an unknown number of layers. Write `layers: N` in "
                f"models.{model}."
            )
        return share_of_layers(entry, n_layers)

    def parts(self, calibration: str) -> dict[str, Calibration]:
        """The calibrations of a mixture by name; any other calibration returns itself."""
        entry = self.calibrations[calibration]
        names = entry.mixture if isinstance(entry, Mixture) else [calibration]
        return {name: self.calibrations[name] for name in names}

    def is_text(self, calibration: str) -> bool:
        """Whether a calibration, or every part of a mixture, is plain text."""
        return all(isinstance(entry, Text | Hub) for entry in self.parts(calibration).values())

    def own_tasks(self, calibration: str) -> list[str]:
        """Benchmark tasks drawn from the same lm-eval tasks as a calibration.

        A user's own questions (`choices`) are in two files, for calibration and test. Equal names
        show that they belong together.
        """
        entry = self.calibrations[calibration]
        tasks = self.benchmarks.tasks
        if isinstance(entry, Mixture):
            task_names: set[str] = set()
            for mixed_name in entry.mixture:
                task_names.update(self.own_tasks(mixed_name))
            return sorted(task_names)
        if isinstance(entry, Choices):
            names = (calibration, entry.group)
            return [name for name, task in tasks.items() if task.choices and name in names]
        return sorted(
            name for name, task in tasks.items() if name in entry.drawn and not task.choices
        )

    def plain(self) -> dict[str, Any]:
        """Nested values that JSON can hold, with all defaults. Loading them gives the same."""
        return self.model_dump(mode="json", serialize_as_any=True)
