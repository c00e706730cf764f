"""The configuration, read once and checked completely before anything runs.

An entry that is known to fail later is refused here, with the key, its value and what to write instead.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import accumulate, product
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lamina.checks import files
from lamina.config.benchmarks import Perplexity
from lamina.config.calibrations import CORPUS, Choices, Hub, Mixture, Text
from lamina.config.configuration import Configuration
from lamina.config.entry import document_range
from lamina.config.explain import nearest, refusal
from lamina.config.models import Merged, Model, Sibling
from lamina.config.repairs import OWN, Repair
from lamina.config.replicates import expand_checkpoints, replicate
from lamina.config.selectors import Selector
from lamina.config.studies import Prune, ReachedSize, Size, Study
from lamina.errors import LaminaError
from lamina.models import checkpoint, manifest, sizes


def load(raw: Mapping[str, Any], root: Path) -> Configuration:
    """The configuration with defaults filled in; relative files and folders are looked up from `root`.

    Entries without a seed get the top-level one, replicates stand beside what they repeat, and the models of a series
    of checkpoints in its place. Layers and family of a local model and the stride of a perplexity are filled in too.
    Loading `plain()` of the result gives the same.

    Raises LaminaError if something cannot run; the message names the key, its value and the remedy.
    """
    if "studies" in raw and not raw["studies"]:
        raise LaminaError(
            f"studies: {raw['studies']!r} holds no study, so there is nothing to run. Add one, such as "
            "`maps: {models: [...], calibrations: [...], metrics: [accuracy, cosine]}`."
        )
    try:
        config = Configuration.model_validate(dict(raw))
    except ValidationError as error:
        raise refusal(Configuration, error, raw) from None
    expand_checkpoints(config)
    _add_donors(config)
    _complete(config, root)
    _check_names(config)
    _check_held_out(config, root)
    _check_benchmark_names(config)
    _check_loops(config)
    for name, study in config.studies.items():
        _check_references(config, f"studies.{name}", study)
        for check in (
            _check_repairs,
            _check_healings,
            _check_measured,
            partial(_check_sizes, root),
        ):
            if isinstance(study, Prune):
                check(config, f"studies.{name}", study)
    files.check(config, root)
    return config


def _add_donors(config: Configuration) -> None:
    """Add the siblings to the models, so that they are prepared too; only studies that list one use it as a model."""
    for name, donor in config.donors.items():
        if isinstance(donor, Sibling):
            donor_model, there = Model(**donor.model_dump()), config.models.get(name)
            if there and (there.source, there.revision) != (
                donor_model.source,
                donor_model.revision,
            ):
                raise LaminaError(
                    f"donors.{name}: '{name}' is another model under `models` already. Rename one of the two."
                )
            config.models.setdefault(name, donor_model)
    for name, donor in config.donors.items():
        for sibling in donor.of if isinstance(donor, Merged) else ():
            if not isinstance(config.donors.get(sibling), Sibling):
                siblings = [
                    each for each, entry in config.donors.items() if isinstance(entry, Sibling)
                ]
                raise LaminaError(
                    f"donors.{name}.of: '{sibling}' is no sibling under `donors`. {nearest(sibling, siblings)} Name "
                    "one that has a `source`."
                )


def _defined(where: str, name: str, section: str, known: Collection[str]) -> None:
    """Refuse a name at the place `where` that is not among the names `known` under `section`."""
    if name not in known:
        raise LaminaError(
            f"{where}: '{name}' is not defined under `{section}`. {nearest(name, known)} Correct the name, or define "
            "it there."
        )


def _complete(config: Configuration, root: Path) -> None:
    sections: list[dict[str, Any]] = [
        config.calibrations,
        config.selectors,
        config.healings,
        config.diagnoses,
    ]
    for section in sections:
        for name, entry in section.items():
            if "seed" in type(entry).model_fields and "seed" not in entry.model_fields_set:
                section[name] = entry.model_copy(update={"seed": config.seed})
    replicate(config)
    for name, model in config.models.items():
        config.models[name] = files.described(files.entry_of(config, name), model, root)
    texts = config.benchmarks.perplexity
    for name, text in texts.items():
        texts[name] = text.model_copy(update={"stride": text.stride or text.window})


def _check_names(config: Configuration) -> None:
    """Refuse names in entries that are not defined, mixtures of mixtures, and `own` with two meanings."""
    named: dict[str, Iterable[str]] = {}
    mixtures = {
        name: entry.mixture
        for name, entry in config.calibrations.items()
        if isinstance(entry, Mixture)
    }
    named |= {f"calibrations.{name}.mixture": parts for name, parts in mixtures.items()}
    for name, selector in config.selectors.items():
        for donor in selector.donors:
            _defined(f"selectors.{name}.donors", donor, "donors", config.donors)
        named[f"selectors.{name}.also"] = selector.also
        named[f"selectors.{name}.judge"] = [selector.judge] if selector.judge else []
    data = {f"repairs.{name}.data": tuple(entry.data) for name, entry in config.repairs.items()}
    data |= {
        f"healings.{name}.data": tuple(entry.weights(OWN))
        for name, entry in config.healings.items()
    }
    for where, calibrations in {**named, **data}.items():
        known = [OWN, *config.calibrations] if where in data else config.calibrations
        for calibration in calibrations:
            _defined(where, calibration, "calibrations", known)
            if where.endswith(".mixture") and calibration in mixtures:
                raise LaminaError(
                    f"{where}: '{calibration}' is a mixture itself. Name what it is mixed from."
                )
    for where, calibrations in data.items():
        if len(calibrations) > 1 and OWN in config.calibrations:
            raise LaminaError(
                f"calibrations.{OWN}: {where} means the variant's own calibration by '{OWN}'. "
                "Give this calibration another name."
            )


def _check_held_out(config: Configuration, root: Path) -> None:
    """Refuse data for both calibration and benchmark, as far as file names and ranges show it; jobs compare hashes."""
    for name, entry in config.calibrations.items():
        if isinstance(entry, Choices):
            for test, task in config.benchmarks.tasks.items():
                if task.choices and _same_file(root, task.choices, entry.choices):
                    raise LaminaError(
                        f"calibrations.{name}.choices: '{entry.choices}' is also the test file of "
                        f"benchmarks.tasks.{test}, and nothing may be scored on test data. Split the file in two."
                    )
        if isinstance(entry, Text):
            for test, text in config.benchmarks.perplexity.items():
                if _same_file(root, text.text, entry.text) and (
                    entry.text != CORPUS or entry.split == text.split
                ):
                    _check_ranges(
                        f"calibrations.{name}", entry, f"benchmarks.perplexity.{test}", text
                    )


def _check_ranges(where: str, entry: Text, test: str, text: Perplexity) -> None:
    (start, stop), (first, last) = document_range(entry.documents), document_range(text.documents)
    if max(start, first) < min(stop or math.inf, last or math.inf):
        raise LaminaError(
            f"{where}.documents: {entry.documents or 'all'} of '{entry.text}' overlaps with documents "
            f"{text.documents or 'all'} of {test}, and nothing may be scored on test data. Write ranges that do not "
            'overlap, such as "0:500" here and "500:700" there.'
        )


def _same_file(root: Path, one: str, other: str) -> bool:
    return (root / one).resolve() == (root / other).resolve()


def _check_benchmark_names(config: Configuration) -> None:
    for name in config.benchmarks.perplexity:
        if name in config.benchmarks.tasks:
            raise LaminaError(
                f"benchmarks.perplexity.{name}: '{name}' is a task under benchmarks.tasks too, and both would write "
                f"the same files. Rename one, for example '{name}_text'."
            )


def _check_loops(config: Configuration) -> None:
    """Refuse repairs that cannot be in place while candidates are compared."""
    for selector_name, selector in config.selectors.items():
        key = "repairs" if selector.repairs else "repair"
        where = f"selectors.{selector_name}.{key}"
        for name in filter(None, [selector.repair, *selector.repairs]):
            _defined(where, name, "repairs", config.repairs)
            repair = config.repairs[name]
            if not repair.LINEAR:
                raise LaminaError(
                    f"{where}: '{name}' is of method '{repair.method}', which is no linear map of the stream and "
                    f"cannot be in place while units are scored. Name a repair of method {Repair.of_stream()}, or "
                    f"leave `{key}` out."
                )
            if repair.chain:
                raise LaminaError(
                    f"{where}: '{name}' has `refit: true`, whose patches depend on the plan, and patches in the loop "
                    f"serve all candidates of a step. Name one without `refit` here, and list '{name}' under the "
                    "study's repairs."
                )


def _check_references(config: Configuration, where: str, study: Study) -> None:
    sections = "models calibrations selectors repairs healings diagnoses benchmarks.tasks benchmarks.perplexity"
    for section in sections.split():
        key, known = section.rpartition(".")[2], list(attrgetter(section)(config))
        known = ["none", *known] if key in ("repairs", "healings") else known
        named = getattr(study, key, [])
        for name in [] if isinstance(named, str) else named:
            _defined(f"{where}.{key}", name, section, known)


def _check_repairs(config: Configuration, where: str, study: Prune) -> None:
    folded = [name for name in study.repairs if name != "none" and not config.repairs[name].LINEAR]
    for name in study.selectors:
        units = config.selectors[name].units
        if folded and units != "layer":
            raise LaminaError(
                f"{where}.repairs: '{folded[0]}' is folded into weights before removed layers, but selector '{name}' "
                f"removes {units} units. List repairs of method {Repair.of_stream()} in this study, or write units: "
                f"layer in selectors.{name}."
            )


def _check_healings(config: Configuration, where: str, study: Prune) -> None:
    for healing in study.healings:
        if healing == "none" or not config.healings[healing].trains_patches:
            continue
        for name in study.repairs:
            if name == "none" or not config.repairs[name].LINEAR:
                left = "leaves none" if name == "none" else "folds its repair into weights"
                raise LaminaError(
                    f"{where}.healings: '{healing}' trains the patches of the repair, and repair '{name}' {left}. "
                    f"List repairs of method {Repair.of_stream()} alone in this study, and the others in another "
                    f"one, or write train: lora in healings.{healing}."
                )


def _check_measured(config: Configuration, where: str, study: Prune) -> None:
    """Refuse `tasks: own` where nothing would measure the variants of a calibration."""
    texts = list(config.benchmarks.perplexity) if study.perplexity == "all" else study.perplexity
    for name in study.calibrations if study.tasks == "own" else ():
        # Text has no task of its own; where it is benchmarked, its variants are measured all the same.
        only_text = all(isinstance(part, Text | Hub) for part in config.parts(name).values())
        if not config.own_tasks(name) and not (texts and only_text):
            parts = config.parts(name).items()
            wanted = [
                task
                for part, entry in parts
                for task in ([part] if isinstance(entry, Choices) else entry.drawn)
            ]
            near = f" {nearest(wanted[0], config.benchmarks.tasks)}" if wanted else ""
            raise LaminaError(
                f"{where}.tasks: 'own' measures nothing for calibration '{name}': no task under `benchmarks.tasks` is "
                f"called {' or '.join(map(repr, wanted)) or 'like it'}.{near} Add it there (own questions "
                "under the name of their calibration), or write tasks: all."
            )


def _check_sizes(root: Path, config: Configuration, where: str, study: Prune) -> None:
    """Refuse numbers of units that cannot go, and note in the configuration what sizes come to."""
    for model in study.models:
        entry = config.models[model]
        wanted = [size for size in study.removed if isinstance(size, Size)]
        shapes = _shapes(root, config, model) if wanted else None
        if wanted and shapes is None:
            raise LaminaError(
                f"{where}.removed: {wanted[0]} follows from the shapes of '{model}', which are read from a folder of "
                "safetensors weights that are not quantised. Write such a folder as its source, or a number of layers."
            )
        if entry.layers is None:
            for size in study.removed:
                if isinstance(size, str):
                    raise LaminaError(
                        f"{where}.removed: '{size}' is a share of the layers of '{model}', whose number is "
                        f"not known here. Write layers: N in models.{model}, or a number of layers here."
                    )
            continue
        for name in study.selectors:
            _check_protected(name, config.selectors[name], model, entry.layers)
        for size, name in product(study.removed, study.selectors):
            if isinstance(size, Size) and shapes is not None:
                reached = _reached_size(config, where, model, name, size, shapes)
                config.reached_sizes[model, name, size] = reached
            _check_count(config, where, model, name, size)


def _shapes(root: Path, config: Configuration, model: str) -> sizes.Sizes | None:
    """The sizes of a model in a folder; None of one whose weights are elsewhere or quantised."""
    entry, where = config.models[model], files.entry_of(config, model)
    folder = root / entry.source
    if entry.layers is None or not folder.is_dir() or checkpoint.is_quantised(folder):
        return None
    settings = checkpoint.read_settings(folder, where, entry.source)
    tensors = checkpoint.read_weights(folder, where)
    skeleton = manifest.skeleton(folder, entry.source, entry.trust_remote_code)
    decoder = checkpoint.decoder_settings(settings)
    width = checkpoint.stored_width(entry.dtype, decoder, tensors)
    return sizes.count_sizes(skeleton, width)


def _check_protected(name: str, selector: Selector, model: str, n_layers: int) -> None:
    for index in selector.protect:
        if not -n_layers <= index < n_layers:
            raise LaminaError(
                f"selectors.{name}.protect: {index} is no layer of '{model}', which has {n_layers}. Write 0 to "
                f"{n_layers - 1}, or -1 to -{n_layers} from the end."
            )


def _reached_size(
    config: Configuration, where: str, model: str, name: str, size: Size, shapes: sizes.Sizes
) -> ReachedSize:
    """The fewest units of a selector with which every plan leaves at most a size.

    Raises LaminaError if the size is not below that of the unpruned model, or cannot be reached.
    """
    selector, n_layers = config.selectors[name], config.models[model].layers or 0
    whole, saved = shapes.amounts(size.what, size.context, selector.cost)
    # Whichever units a plan takes, it saves at least what the smallest ones do.
    left = [whole - lost for lost in accumulate(sorted(saved[selector.units]), initial=0.0)]
    limit = size.limit(whole)
    if whole <= limit:
        raise LaminaError(
            f"{where}.removed: {size} leaves '{model}' as it is ({size.share(whole, whole)}). Write less."
        )
    largest = selector.largest_removal(n_layers)
    if left[largest] > limit:
        context = ", or a smaller `context`" if size.what == "memory" else ""
        raise LaminaError(
            f"{where}.removed: {size} cannot be reached: selector '{name}' removes at most {largest} of the "
            f"{n_layers} layers of '{model}', and without them up to {size.share(left[largest], whole)} are left. "
            f"Write more{context}."
        )
    n_removed = sum(amount > limit for amount in left)
    return ReachedSize(n_removed, left[n_removed], whole)


def _check_count(
    config: Configuration, where: str, model: str, name: str, entry: int | str | Size
) -> None:
    """Refuse more units than a selector can remove from a model."""
    selector, n_layers = config.selectors[name], config.models[model].layers or 0
    count, largest = config.n_removed(model, name, entry), selector.largest_removal(n_layers)
    if count <= largest:
        return
    share = "" if isinstance(entry, int) else f" ({entry})"
    reason = f"{n_layers - sum(selector.free(n_layers)) or 'none'} protected{selector.LIMIT}"
    remedy = (
        f"Write at most {largest}." if largest else f"Protect fewer layers in selectors.{name}."
    )
    raise LaminaError(
        f"{where}.removed: {count}{share} is more than selector '{name}' can remove from '{model}', which has "
        f"{n_layers} layers ({reason}). {remedy}"
    )
