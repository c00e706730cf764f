"""The configuration as a whole."""

from typing import Any

from lamina.config.benchmarks import Benchmarks
from lamina.config.calibrations import Calibration, Choices, Mixture
from lamina.config.diagnoses import Diagnosis
from lamina.config.entry import Entry, Named, option
from lamina.config.healings import Healing
from lamina.config.jobs import Benchmark, Report, Sweep
from lamina.config.models import Donor, Model
from lamina.config.repairs import Repair
from lamina.config.selectors import Selector
from lamina.config.studies import Study


class Configuration(Entry):
    """Named things, and the studies that combine them."""

    seed: int = option("Seed of every calibration, selector and healing that names none of its own.", 0, ge=0)
    models: Named[Model] = option("The models, by name.")
    donors: Named[Donor] = option(
        "Siblings of the models, by name, whose layers a selector may put in the places of a model's own.", {}
    )
    calibrations: Named[Calibration] = option(
        "The sets of samples on which units are scored and patches are fitted, by name."
    )
    selectors: Named[Selector] = option("The ways to choose what to remove, by name.", {})
    repairs: Named[Repair] = option("Repairs of what was removed, by name. `none` always exists.", {})
    healings: Named[Healing] = option("The short fine-tunes, by name. `none` always exists.", {})
    diagnoses: Named[Diagnosis] = option("The measurements that remove nothing, by name.", {})
    benchmarks: Benchmarks = option(
        "What is measured on the variants, and on the unpruned model for comparison.", Benchmarks()
    )
    sweep: Sweep = option("How a sweep is cut into jobs and batches.", Sweep())
    benchmark: Benchmark = option("How the benchmarks are cut into jobs.", Benchmark())
    report: Report = option("What the report recommends.", Report())
    studies: Named[Study] = option(
        "What is run. A study of maps lists `metrics`, a study of pruning lists `selectors` and `removed`."
    )

    def is_own(self, model: str) -> bool:
        """Whether a model is studied, and not only there to give its layers."""
        return model not in self.donors

    def replacing(self, selector: str) -> dict[str, list[str]]:
        """What gives layers to the plans of a selector, by name: the models that it is or is merged from."""
        return {name: getattr(self.donors[name], "of", [name]) for name in self.selectors[selector].donors}

    def merged(self, name: str) -> dict[str, Any]:
        """The options of a model that is merged from several to give its layers."""
        return self.donors[name].model_dump()

    def parts(self, calibration: str) -> dict[str, Calibration]:
        """The calibrations of a mixture by name; a calibration that is no mixture gives itself."""
        names = getattr(self.calibrations[calibration], "mixture", [calibration])
        return {name: self.calibrations[name] for name in names}

    def own_tasks(self, calibration: str) -> list[str]:
        """Benchmark tasks drawn from the same lm-eval tasks as a calibration.

        Questions of one's own (`choices`) stand in two files, for calibration and test; they belong together by their
        name.
        """
        entry, tasks = self.calibrations[calibration], self.benchmarks.tasks
        if isinstance(entry, Mixture):
            return sorted({task for part in entry.mixture for task in self.own_tasks(part)})
        if isinstance(entry, Choices):
            return [name for name, task in tasks.items() if task.choices and name in (calibration, entry.group)]
        return sorted(name for name, task in tasks.items() if name in entry.drawn and not task.choices)

    def plain(self) -> dict[str, Any]:
        """Nested JSON-able values with all defaults; loading them gives the same configuration."""
        return self.model_dump(mode="json", serialize_as_any=True)
