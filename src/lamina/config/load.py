"""The configuration: read once, checked completely before anything runs, handed on as plain values.

Whatever can be known to go wrong later is refused here, with the key, its value and what to write instead.
"""

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from lamina.config.schema import fill, nearest, schema
from lamina.errors import LaminaError

CORPUS = "microworld_corpus"
BLOCK_METRICS = ("angular", "cosine")  # distances between two boundaries, so a whole run of layers has one
RACE_METRICS = ("accuracy", "output_js", "output_cosine")  # the sequential test needs a bound on a sample's loss
REMOVAL_METRICS = ("accuracy", "perplexity", "output_cosine", "output_norm", "output_js", "output_kl")

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")

Config = dict[str, Any]


def load(raw: Mapping[str, Any], root: Path) -> Config:
    """The configuration with defaults filled in; relative files and folders are looked up from `root`.

    The result holds plain JSON-able values, and loading it again gives the same. Paths stay as written. The layers of a
    local model are put into its entry.

    Raises
    ------
    LaminaError
        For anything that cannot run, naming the key, its value and the remedy.
    """
    _refuse_no_studies(raw)
    config: Config = fill(dict(raw), schema(), "")
    for group in ("calibrations", "selectors", "healings"):
        for entry in config[group].values():
            if "text" not in entry:
                entry.setdefault("seed", config["seed"])
    for name, entry in config["benchmarks"]["perplexity"].items():
        entry["stride"] = entry["stride"] or entry["window"]
        if entry["stride"] > entry["window"]:
            raise LaminaError(
                f"benchmarks.perplexity.{name}.stride: {entry['stride']} would skip tokens between windows of "
                f"{entry['window']}. Write at most {entry['window']}, or leave it out."
            )
    for name, entry in config["models"].items():
        entry["layers"] = _find_layers(name, entry, root)
    _check_files(config, root)
    _check_held_out(config, root)
    _check_benchmark_names(config)
    for name, selector in config["selectors"].items():
        _check_selector(f"selectors.{name}", selector)
        _check_budget(f"selectors.{name}", selector)
    for name, study in config["studies"].items():
        _check_references(config, f"studies.{name}", study)
        if "selectors" in study:
            _check_recoveries(config, f"studies.{name}", study)
            _check_measured(config, f"studies.{name}", study)
            _check_sizes(config, f"studies.{name}", study)
    return config


def layers(config: Config, model: str) -> int | None:
    """Number of decoder layers of a model; None for a hub model whose entry does not say."""
    count: int | None = config["models"][model]["layers"]
    return count


def removed_count(entry: int | str, n_layers: int | None) -> int:
    """An entry of `removed` as a number of units: a share is taken of the layers, rounded down, at least 1."""
    if isinstance(entry, int):
        return entry
    if n_layers is None:
        raise LaminaError(f"removed: '{entry}' is a share of an unknown number of layers. Write layers: N.")
    return max(1, int(n_layers * Fraction(entry.rstrip("%")) / 100))


def largest_removal(selector: Mapping[str, Any], n_layers: int) -> int:
    """The most units that a selector can remove from a model of `n_layers` layers."""
    kept = {index % n_layers for index in selector["protect"]}
    free = [index not in kept for index in range(n_layers)]
    if selector["strategy"] == "deepest":
        return sum(free[:-1])
    if selector["strategy"] == "block":
        runs = "".join("x" if is_free else " " for is_free in free).split()
        return min(max(map(len, runs), default=0), n_layers - 1)
    return min(sum(free), n_layers - 1) if selector["units"] == "layer" else sum(free)


def corpus_file(text: str, split: str | None = None) -> str:
    """The file behind a `text` entry, relative as written; the embedded corpus goes by its name and split."""
    return f"resources/reference/data/corpus_{split or 'train'}.jsonl" if text == CORPUS else text


def own_tasks(config: Config, calibration: str) -> list[str]:
    """Benchmark tasks drawn from the same lm-eval tasks as a calibration.

    Questions of one's own (`choices`) stand in two files, for calibration and test; they belong together by their name.
    """
    entry, tasks = config["calibrations"][calibration], config["benchmarks"]["tasks"]
    if "choices" in entry:
        ours = {name for name, task in tasks.items() if task["choices"] and name == calibration}
    else:
        drawn = entry.get("tasks", [entry["task"]] if "task" in entry else [])
        ours = {name for name, task in tasks.items() if name in drawn and not task["choices"]}
    return sorted(ours)


def _refuse_no_studies(raw: Mapping[str, Any]) -> None:
    if "studies" in raw and not raw["studies"]:
        raise LaminaError(
            f"studies: {raw['studies']!r} holds no study, so there is nothing to run. Add one, such as "
            "`maps: {models: [...], calibrations: [...], metrics: [accuracy, cosine]}`."
        )


def _find_layers(name: str, entry: Mapping[str, Any], root: Path) -> int | None:
    where, source = f"models.{name}.source", entry["source"]
    folder = root / Path(source).expanduser()
    if not folder.is_dir():
        if source.count("/") == 1 and not source.startswith((".", "/", "~")):
            if entry["revision"]:
                stated: int | None = entry["layers"]
                return stated
            raise LaminaError(
                f"{where}: there is no folder '{source}'. Write the path of a folder with config.json and safetensors "
                "weights; if it is a hub id, add `revision: <commit, tag or branch>`."
            )
        raise LaminaError(
            f"{where}: there is no folder '{source}'. Write the path of a folder with config.json and safetensors "
            "weights, or a hub id of the form 'organisation/model' with its revision."
        )
    file = folder / "config.json"
    if not file.is_file():
        raise LaminaError(
            f"{where}: the folder '{source}' has no config.json, so it is no Hugging Face model. Write the folder that "
            "holds config.json and *.safetensors (a converted checkpoint, or a snapshot folder of the hub cache)."
        )
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LaminaError(f"{where}: '{source}/config.json' is not JSON ({error}). Restore the file.") from error
    settings = {**settings, **settings.get("text_config", {})}  # multimodal checkpoints nest the decoder's settings
    found = next((settings[key] for key in _LAYER_KEYS if isinstance(settings.get(key), int)), None)
    stated = entry["layers"]
    if found and stated and found != stated:
        raise LaminaError(
            f"models.{name}.layers: '{source}/config.json' says {found}, not {stated}. Leave `layers` out."
        )
    return found or stated


def _check_files(config: Config, root: Path) -> None:
    for where, key, entry in _file_entries(config):
        path = entry.get(key)
        if path is None or (key == "text" and path == CORPUS):
            continue
        if not (root / Path(path).expanduser()).is_file():
            form = (
                "a .jsonl file with query, choices and gold in each line"
                if key == "choices"
                else f"a .json, .jsonl or .txt file, or {CORPUS}"
            )
            raise LaminaError(f"{where}.{key}: there is no file '{path}' in {root}. Write the path of {form}.")


def _file_entries(config: Config) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for name, entry in config["calibrations"].items():
        yield f"calibrations.{name}", "text" if "text" in entry else "choices", entry
    for name, entry in config["benchmarks"]["tasks"].items():
        yield f"benchmarks.tasks.{name}", "choices", entry
    for name, entry in config["benchmarks"]["perplexity"].items():
        yield f"benchmarks.perplexity.{name}", "text", entry


def _check_held_out(config: Config, root: Path) -> None:
    """Nothing is both calibrated on and benchmarked, as far as file names and ranges tell; the rest is hashed later."""
    for name, entry in config["calibrations"].items():
        for test, task in config["benchmarks"]["tasks"].items():
            if task["choices"] and "choices" in entry and _same_file(root, task["choices"], entry["choices"]):
                raise LaminaError(
                    f"calibrations.{name}.choices: '{entry['choices']}' is also the test file of "
                    f"benchmarks.tasks.{test}, and nothing may be scored on test data. Split the file in two."
                )
        for test, text in config["benchmarks"]["perplexity"].items():
            if "text" not in entry or not _same_file(root, text["text"], entry["text"]):
                continue
            if entry["text"] == CORPUS and entry["split"] != text["split"]:
                continue
            (start, stop), (test_start, test_stop) = _range(entry["documents"]), _range(text["documents"])
            if max(start, test_start) < min(stop, test_stop):
                raise LaminaError(
                    f"calibrations.{name}.documents: {entry['documents'] or 'all'} of '{entry['text']}' overlaps with "
                    f"documents {text['documents'] or 'all'} of benchmarks.perplexity.{test}, and nothing may be "
                    'scored on test data. Write ranges that do not overlap, such as "0:500" here and "500:700" there.'
                )


def _same_file(root: Path, one: str, other: str) -> bool:
    return (root / Path(one).expanduser()).resolve() == (root / Path(other).expanduser()).resolve()


def _range(documents: str | None) -> tuple[float, float]:
    start, _, stop = (documents or ":").partition(":")
    return int(start or 0), int(stop) if stop else math.inf


def _check_benchmark_names(config: Config) -> None:
    for name in config["benchmarks"]["perplexity"]:
        if name in config["benchmarks"]["tasks"]:
            raise LaminaError(
                f"benchmarks.perplexity.{name}: '{name}' is a task under benchmarks.tasks too, and both would write "
                f"the same files. Rename one, for example '{name}_text'."
            )


def _check_selector(where: str, selector: Mapping[str, Any]) -> None:
    metric, strategy = selector["metric"], selector["strategy"]
    if strategy in ("deepest", "random"):
        if metric is not None:
            raise LaminaError(
                f"{where}.metric: '{metric}' would never be read, since strategy '{strategy}' looks at no score. "
                "Leave `metric` out, or write strategy: iterative."
            )
    elif metric is None:
        raise LaminaError(
            f"{where}.metric: is missing, and strategy '{strategy}' picks units by it. Write metric: accuracy "
            "or cosine, or strategy: deepest or random, which need none."
        )
    if strategy == "block" and metric not in BLOCK_METRICS:
        raise LaminaError(
            f"{where}.metric: '{metric}' has no value for a run of layers, which strategy 'block' compares. Write "
            f"metric: {' or '.join(BLOCK_METRICS)}, or strategy: iterative."
        )
    if strategy == "block" and selector["units"] != "layer":
        raise LaminaError(
            f"{where}.units: '{selector['units']}' does not go with strategy 'block', which removes a run of whole "
            "layers. Write units: layer, or strategy: iterative."
        )


def _check_budget(where: str, selector: Mapping[str, Any]) -> None:
    budget, metric = selector["budget"], selector["metric"]
    if budget == "full":
        return
    if selector["strategy"] != "iterative":
        raise LaminaError(
            f"{where}.budget: '{budget}' finds one unit at a time, but strategy '{selector['strategy']}' does not go "
            "step by step. Write budget: full, or strategy: iterative."
        )
    if metric not in REMOVAL_METRICS:
        raise LaminaError(
            f"{where}.budget: '{budget}' saves nothing with metric '{metric}', which removes no unit to measure it. "
            "Write budget: full, or metric: accuracy."
        )
    if budget == "race" and metric not in RACE_METRICS:
        raise LaminaError(
            f"{where}.budget: 'race' needs a metric with a bounded loss, which '{metric}' has not. Write budget: "
            f"exact, or metric: {', '.join(RACE_METRICS[:-1])} or {RACE_METRICS[-1]}."
        )


def _check_references(config: Config, where: str, study: Mapping[str, Any]) -> None:
    benchmarks = config["benchmarks"]
    known = {
        "models": (list(config["models"]), "models"),
        "calibrations": (list(config["calibrations"]), "calibrations"),
        "selectors": (list(config["selectors"]), "selectors"),
        "recoveries": (["none", *config["recoveries"]], "recoveries"),
        "healings": (["none", *config["healings"]], "healings"),
        "tasks": (list(benchmarks["tasks"]), "benchmarks.tasks"),
        "perplexity": (list(benchmarks["perplexity"]), "benchmarks.perplexity"),
    }
    for key, (names, section) in known.items():
        entries = study.get(key, [])
        for name in [] if isinstance(entries, str) else entries:
            if name not in names:
                raise LaminaError(
                    f"{where}.{key}: '{name}' is not defined under `{section}`. {nearest(name, names)} "
                    f"Correct the name, or define '{name}' there."
                )


def _check_recoveries(config: Config, where: str, study: Mapping[str, Any]) -> None:
    mending = [name for name in study["recoveries"] if name != "none"]
    for name in study["selectors"]:
        units = config["selectors"][name]["units"]
        if mending and units != "layer":
            raise LaminaError(
                f"{where}.recoveries: '{mending[0]}' mends the boundary of whole layers, but selector '{name}' removes "
                f"{units} units. Write recoveries: [none] in this study, or units: layer in selectors.{name}."
            )


def _check_measured(config: Config, where: str, study: Mapping[str, Any]) -> None:
    """`tasks: own` must not end in variants that nothing measures."""
    texts = config["benchmarks"]["perplexity"] if study["perplexity"] == "all" else study["perplexity"]
    if study["tasks"] != "own" or texts:
        return
    for name in study["calibrations"]:
        if not own_tasks(config, name):
            raise LaminaError(
                f"{where}.tasks: 'own' measures nothing for calibration '{name}', none of whose tasks is under "
                "`benchmarks.tasks`. Add its task there, or write tasks: all."
            )


def _check_sizes(config: Config, where: str, study: Mapping[str, Any]) -> None:
    for model in study["models"]:
        n_layers = layers(config, model)
        for entry in study["removed"]:
            if n_layers is None:
                if isinstance(entry, str):
                    raise LaminaError(
                        f"{where}.removed: '{entry}' is a share of the layers of '{model}', whose number is "
                        f"not known here. Write layers: N in models.{model}, or a number of layers here."
                    )
                continue
            for selector in study["selectors"]:
                _check_size(config, where, model, n_layers, selector, entry)


def _check_size(config: Config, where: str, model: str, n_layers: int, selector: str, entry: int | str) -> None:
    settings = config["selectors"][selector]
    for index in settings["protect"]:
        if not -n_layers <= index < n_layers:
            raise LaminaError(
                f"selectors.{selector}.protect: {index} is no layer of '{model}', which has {n_layers}. Write 0 to "
                f"{n_layers - 1}, or -1 to -{n_layers} from the end."
            )
    count, largest = removed_count(entry, n_layers), largest_removal(settings, n_layers)
    if count <= largest:
        return
    share = f" ({entry})" if isinstance(entry, str) else ""
    reason = f"{len({index % n_layers for index in settings['protect']}) or 'none'} protected"
    if settings["strategy"] == "deepest":
        reason += ", and the last layer stays"
    if settings["strategy"] == "block":
        reason += ", and they go as one run"
    remedy = f"Write at most {largest}." if largest else f"Protect fewer layers in selectors.{selector}."
    raise LaminaError(
        f"{where}.removed: {count}{share} is more than selector '{selector}' can remove from '{model}', which has "
        f"{n_layers} layers ({reason}). {remedy}"
    )
