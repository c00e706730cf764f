"""The study behind `lamina prune`: a folder with the configuration and the split data.

Questions and text are split once. One part chooses the layers and fits the repairs: half of it
judges the sets that the other half proposes. The rest tests the result. The configuration has paths
and keys as a user would write them, so that the next study can begin by editing it.
"""

import json
import math
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lamina.data.documents import read_documents
from lamina.data.files import read_questions
from lamina.errors import LaminaError
from lamina.options.models import Model
from lamina.options.selectors import share_of_layers
from lamina_workflow.checks.advice import FEWEST_QUESTIONS, seems_conversational
from lamina_workflow.config.studies import Size
from lamina_workflow.config.text import check_same_study

TEST_SHARE = 0.4
"""Share of the questions that test. Of 100 questions, 40 can show a loss of 20 points, and 60 are
left to choose."""
TEXT_TEST_SHARE = 0.2
DEFAULT_REMOVED = "25%"
LEAST_QUESTIONS = 20
ENOUGH_QUESTIONS = math.ceil(FEWEST_QUESTIONS / min(TEST_SHARE, 1 - TEST_SHARE))
LEAST_DOCUMENTS = 20
MOST_QUESTIONS = 400
"""Most questions that choose. More make the search longer and rankings hardly better
(docs/choose.md)."""
MOST_TASK_SAMPLES = 400
SAMPLE_SIZES = (400, 200, 100, 50)
"""Limits on questions and documents; a given time decides which. Fewer rank by chance."""
MOST_TEXT_RATIO = 1.25  # perplexity of the user's text, × the base model's: as config/config.yaml
LENGTH = 128  # tokens of a document that are read
WINDOW = 128  # tokens that are scored together

TASK = "task"  # names in the configuration
TEXT = "text"
REPAIR = "ghost_mixed"
QUESTIONS_THAT_CHOOSE = "questions-choose.jsonl"  # files next to the configuration
QUESTIONS_THAT_TEST = "questions-test.jsonl"
TEXT_THAT_CHOOSES = "text-choose.jsonl"
TEXT_THAT_TESTS = "text-test.jsonl"
CONFIGURATION = "config.yaml"
# The command's words for configuration keys that messages name.
OPTIONS_BY_KEY = {
    "--text.text:": "--text:",
    "calibrations.task:": "--task:",
    "report.keep:": "--keep:",
    "MODEL.source:": "MODEL:",
    "add `revision: <commit, tag or branch>`": "add --revision (a commit, tag or branch) and --layers",
}
MEMBERS_WITHOUT_ANSWERS = ["block", "clusters", "cosine", "perplexity", "output_kl"]


@dataclass(frozen=True)
class PruneRequest:
    """A user's request to `lamina prune`."""

    source: str
    questions: Path | None = None
    task: str | None = None
    text: Path | None = None
    remove: str | None = None
    """By default `DEFAULT_REMOVED`, unless `fit` or `faster` is given."""
    fit: str | None = None
    faster: str | None = None
    keep: str = "95%"
    revision: str | None = None
    layers: int | None = None
    seed: int = 0
    n_samples: int | None = None
    """Limit on the questions that choose, and on the documents of text that choose and that test;
    None for the default."""

    @property
    def has_task(self) -> bool:
        """Whether a task is to be kept; otherwise it is text."""
        return self.questions is not None or self.task is not None


@dataclass(frozen=True)
class PruneStudy:
    """A written study that can be run."""

    folder: Path
    notes: list[str]
    """Sentences that say how data were split and what was left out."""


@dataclass(frozen=True)
class PreparedStudy:
    """The contents of a study's folder."""

    configuration: dict[str, Any]
    files: dict[str, list[Any]]
    """Records of the files next to the configuration, by file name."""
    notes: list[str]

    def format_configuration(self) -> str:
        """The text of the configuration file."""
        header = "# Written by `lamina prune`. Edit it and run it: lamina run\n"
        return header + yaml.safe_dump(
            self.configuration, sort_keys=False, allow_unicode=True, default_flow_style=None
        )


@contextmanager
def naming_options(option_by_key: Mapping[str, str] = OPTIONS_BY_KEY) -> Iterator[None]:
    """While open, errors name options of the command instead of configuration keys."""
    try:
        yield
    except LaminaError as error:
        message = str(error)
        for key, option in option_by_key.items():
            message = message.replace(key, option)
        raise LaminaError(message) from None


@naming_options()
def write_study(
    request: PruneRequest, folder: Path | None = None, file_name: str = CONFIGURATION
) -> PruneStudy:
    """Write the configuration and the split data of a study into a folder.

    folder: By default `lamina-MODEL`. A folder with the same study is used again, so that a run
        continues.
    file_name: The name of the configuration file.

    Raises LaminaError if nothing says what to keep, a file cannot be read or is too small, the
    study cannot run, or the folder holds another one. In these cases nothing is written.
    """
    prepared = prepare_study(request)
    removal_notes = _describe_removal(request)
    _check_study(request, prepared)
    if folder is None:
        folder = default_folder(request.source)
    _write_files(folder, file_name, prepared)
    location = f"The study is {folder}/{file_name}. To change it, edit it and run lamina run."
    return PruneStudy(folder, [*removal_notes, *prepared.notes, location])


def find_written(requests: Iterable[PruneRequest], folder: Path) -> PruneRequest | None:
    """The request whose configuration a folder holds; None if it holds none of them."""
    file = folder / CONFIGURATION
    if not file.exists():
        return None
    written = file.read_text(encoding="utf-8")
    for request in requests:
        if prepare_study(request).format_configuration() == written:
            return request
    return None


@naming_options()
def prepare_study(request: PruneRequest) -> PreparedStudy:
    """Split the data of a request and describe its study.

    Raises LaminaError if nothing says what to keep, or a file cannot be read or is too small.
    """
    _check_request(request)
    notes: list[str] = []
    files: dict[str, list[Any]] = {}
    if request.questions is not None:
        questions = read_questions(request.questions, "--questions")
        files |= _split_questions(questions, request, notes)
    if request.text is not None:
        documents = read_documents(request.text, where="--text")
        files |= _split_text(documents, request, notes)
    else:
        notes.append(
            "Without --text, general language is neither protected nor measured: what is chosen "
            "and repaired for your task may ruin other text."
        )

    if request.has_task and seems_conversational(request.source, Path.cwd()):
        notes.append(
            f"{request.source} is named like a chat model, but questions are asked without its "
            "chat template. If you use it with the template, add chat_template: true to the model "
            f"in {CONFIGURATION}, and run lamina run in that folder."
        )
    configuration = describe_study(request)
    if request.n_samples is not None:
        _limit_samples(configuration, files, request.n_samples)
    return PreparedStudy(configuration, files, notes)


def default_folder(source: str) -> Path:
    """The default folder for a study of this model."""
    return Path(f"lamina-{_name_of(source)}")


def describe_study(request: PruneRequest) -> dict[str, Any]:
    """The configuration: a portfolio with general text and repairs in place (docs/choose.md)."""
    repair: dict[str, Any] = {"method": "ghost"}
    selector: dict[str, Any] = {"strategy": "portfolio", "repairs": [REPAIR]}
    report: dict[str, Any] = {"keep": request.keep}
    if not request.has_task:
        selector["members"] = MEMBERS_WITHOUT_ANSWERS
    elif request.text is not None:
        repair["data"] = {"own": 1, TEXT: 0.1}
        selector["also"] = {TEXT: 1}
        report["general_text"] = MOST_TEXT_RATIO
    return {
        "seed": request.seed,
        "models": {"model": _describe_model(request)},
        "calibrations": _describe_calibrations(request),
        "selectors": {"best": selector},
        "repairs": {REPAIR: repair},
        "benchmarks": _describe_benchmarks(request),
        "report": report,
        "studies": {"prune": _describe_variants(request)},
    }


def _describe_model(request: PruneRequest) -> dict[str, Any]:
    model: dict[str, Any] = {"source": _absolute_source(request.source), "dtype": "auto"}
    if request.revision is not None:
        model["revision"] = request.revision
    if request.layers is not None:
        model["layers"] = request.layers
    return model


def _describe_benchmarks(request: PruneRequest) -> dict[str, Any]:
    benchmarks: dict[str, Any] = {"efficiency": {"prompt": 64, "generate": 32}}
    if request.questions is not None:
        benchmarks["tasks"] = {TASK: {"choices": QUESTIONS_THAT_TEST}}
    elif request.task is not None:
        benchmarks["tasks"] = {request.task: {}}
    if request.text is not None:
        benchmarks["perplexity"] = {TEXT: {"text": TEXT_THAT_TESTS, "window": WINDOW}}
    return benchmarks


def _limit_samples(
    configuration: dict[str, Any], files: dict[str, list[Any]], n_samples: int
) -> None:
    """Limit the questions and documents that choose, and the documents that test."""
    calibrations = configuration["calibrations"]
    if QUESTIONS_THAT_CHOOSE in files:
        calibrations[TASK]["limit"] = min(n_samples, len(files[QUESTIONS_THAT_CHOOSE]))
    elif TASK in calibrations:
        calibrations[TASK]["limit"] = n_samples
    if TEXT in calibrations:
        n_choosing = min(n_samples, len(files[TEXT_THAT_CHOOSES]))
        calibrations[TEXT]["documents"] = f"0:{n_choosing}"
        n_testing = min(n_samples, len(files[TEXT_THAT_TESTS]))
        configuration["benchmarks"]["perplexity"][TEXT]["documents"] = f"0:{n_testing}"


def _describe_variants(request: PruneRequest) -> dict[str, Any]:
    """The study: sizes, bare and repaired, measured on all test data."""
    study: dict[str, Any] = {
        "models": ["model"],
        "calibrations": [TASK if request.has_task else TEXT],
        "selectors": ["best"],
        "removed": _sizes(request),
        "repairs": ["none", REPAIR],
    }
    if request.has_task:
        study["tasks"] = "all"
    if request.text is not None:
        study["perplexity"] = "all"
    return study


def _check_request(request: PruneRequest) -> None:
    if request.questions is not None and request.task is not None:
        raise LaminaError("--questions and --task: give only one of them.")
    if not request.has_task and request.text is None:
        raise LaminaError(
            "nothing says what the model should keep. Give --questions FILE, --task NAME or "
            "--text FILE."
        )
    is_file = request.source.endswith(".gguf") or Path(request.source).is_absolute()
    if is_file and not Path(request.source).exists():
        raise LaminaError(
            f"there is no {request.source}. Give a folder with config.json, a .gguf file, or an id "
            "of the hub."
        )
    sizes = {"--remove": request.remove, "--fit": request.fit, "--faster": request.faster}
    given = [option for option, size in sizes.items() if size is not None]
    if len(given) > 1:
        raise LaminaError(f"{' and '.join(given)}: give only one of them.")


def _describe_removal(request: PruneRequest) -> list[str]:
    """How many layers are removed, in a sentence; none if they are not counted or not yet known.

    Raises LaminaError if no layer would be left.
    """
    from lamina_workflow.checks.files import describe_model  # imports transformers

    source = _absolute_source(request.source)
    model = Model(source=source, revision=request.revision, layers=request.layers)
    n_layers = describe_model("MODEL", model, Path.cwd()).layers
    if n_layers is None or request.fit is not None or request.faster is not None:
        return []
    numbers = [
        share_of_layers(size, n_layers) if isinstance(size, str) else size
        for size in _sizes(request)
    ]
    if max(numbers) >= n_layers:
        raise LaminaError(
            f"--remove {request.remove}: the model has {n_layers} layers, of which at most "
            f"{n_layers - 1} can be removed. For a share of them, write {request.remove}%."
        )
    listed = " or ".join(map(str, dict.fromkeys(numbers)))
    return [f"Each variant removes {listed} of the {n_layers} layers."]


def _check_study(request: PruneRequest, prepared: PreparedStudy) -> None:
    """Check a study as its run would, before anything is written into the user's folder.

    Raises LaminaError if it cannot run, in the command's words.
    """
    from lamina_workflow.checks.load import load_configuration  # imports transformers

    with tempfile.TemporaryDirectory() as scratch:
        _write_files(Path(scratch), CONFIGURATION, prepared)
        option = "--remove"
        if request.fit is not None:
            option = "--fit"
        elif request.faster is not None:
            option = "--faster"
        with naming_options({"studies.prune.removed": option}):
            load_configuration(prepared.configuration, Path(scratch))


def _describe_calibrations(request: PruneRequest) -> dict[str, Any]:
    calibrations: dict[str, Any] = {}
    if request.questions is not None:
        calibrations[TASK] = {"choices": QUESTIONS_THAT_CHOOSE}
    elif request.task is not None:
        calibrations[TASK] = {"task": request.task, "limit": MOST_TASK_SAMPLES}
    if request.text is not None:
        calibrations[TEXT] = {"text": TEXT_THAT_CHOOSES, "length": LENGTH, "documents": None}
    return calibrations


def _sizes(request: PruneRequest) -> list[Any]:
    """What is removed: the requested size, and half of it if it is a share of the layers."""
    if request.fit is not None:
        _check_memory(request.fit)
        return [{"memory": request.fit}]
    if request.faster is not None:
        share = _read_percentage(request.faster, "--faster")
        return [{"latency": f"{100 - share:g}%"}]
    removed = request.remove or DEFAULT_REMOVED
    if removed.isdecimal():
        n_layers = int(removed)
        return sorted({max(1, n_layers // 2), n_layers})
    share = _read_percentage(removed, "--remove")
    return [f"{share / 2:g}%", f"{share:g}%"]


def _check_memory(text: str) -> None:
    try:
        Size(memory=text)
    except ValidationError:
        raise LaminaError(
            f"--fit {text}: write a memory with its unit, such as 6GB, or a share of the base "
            "model's memory, such as 80%."
        ) from None


def _read_percentage(text: str, option: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None or not 0 < float(match[1]) < 100:
        raise LaminaError(f"{option} {text}: write a share between 0 and 100 %, such as 25%.")
    return float(match[1])


def _split_questions(
    questions: Sequence[dict[str, Any]], request: PruneRequest, notes: list[str]
) -> dict[str, list[Any]]:
    """Split the questions into choosing and test questions; copies of a question stay together."""
    if len(questions) < LEAST_QUESTIONS:
        raise LaminaError(
            f"--questions: {request.questions} has {len(questions)} questions, too few to choose "
            f"and to test. Give at least {LEAST_QUESTIONS}; with fewer than 400 a ranking is rough."
        )
    test, choose = _split(questions, TEST_SHARE, request.seed)
    n_choosing = min(len(choose), request.n_samples or MOST_QUESTIONS)
    notes.append(
        f"Of {len(questions)} questions, {n_choosing} choose layers and fit repairs, and "
        f"{len(test)} others test the result."
    )
    if min(n_choosing, len(test)) < FEWEST_QUESTIONS:
        notes.append(
            f"Fewer than {FEWEST_QUESTIONS} questions choose and test little better than chance. "
            f"Give at least {ENOUGH_QUESTIONS} in all, preferably a few hundred."
        )
    return {QUESTIONS_THAT_CHOOSE: choose[:MOST_QUESTIONS], QUESTIONS_THAT_TEST: test}


def _split_text(
    documents: Sequence[str], request: PruneRequest, notes: list[str]
) -> dict[str, list[Any]]:
    if len(documents) < LEAST_DOCUMENTS:
        raise LaminaError(
            f"--text: {request.text} has {len(documents)} documents (blank lines separate those of "
            f"a .txt file), too few to fit and to test. Give at least {LEAST_DOCUMENTS}."
        )
    records = [{"text": document} for document in documents]
    test, choose = _split(records, TEXT_TEST_SHARE, request.seed)
    n_most = request.n_samples or len(records)
    notes.append(
        f"Of {len(test) + len(choose)} different documents, {min(len(choose), n_most)} choose and "
        f"fit, and {min(len(test), n_most)} others test."
    )
    return {TEXT_THAT_CHOOSES: choose, TEXT_THAT_TESTS: test}


def _split(
    records: Sequence[dict[str, Any]], test_share: float, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A seeded random test part, and the rest.

    Copies are left out. Records that the overlap check of a study takes for near duplicates, such as
    questions on one passage, are on one side.

    Raises LaminaError if too many are near duplicates of each other to leave any for the rest.
    """
    from lamina.data import overlap  # imports scipy

    records_by_text = {json.dumps(record, ensure_ascii=False): record for record in records}
    different = list(records_by_text.values())
    documents: list[overlap.Document] = []
    for record in different:
        parts = (record.get("text") or record["query"], record.get("choices", ()))
        documents.append((overlap.document_hash(*parts), overlap.hash_word_runs(*parts)))
    records_by_group: dict[int, list[dict[str, Any]]] = {}
    for record, group in zip(different, overlap.group_near_duplicates(documents), strict=True):
        records_by_group.setdefault(group, []).append(record)

    groups = list(records_by_group.values())
    random.Random(seed).shuffle(groups)
    n_test = round(len(different) * test_share)
    test: list[dict[str, Any]] = []
    while len(test) < n_test:
        test += groups.pop()
    rest = [record for group in groups for record in group]
    if not rest:
        raise LaminaError(
            "--questions, --text: nearly all documents of a file share half of their text with one "
            "another, so none can test what the others choose. Give documents that differ."
        )
    return test, rest


def _write_files(folder: Path, file_name: str, prepared: PreparedStudy) -> None:
    """Write a study into a new folder, or check that the same one is there."""
    text = prepared.format_configuration()
    file = folder / file_name
    check_same_study(file, text)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    for name, records in prepared.files.items():
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (folder / name).write_text("".join(lines), encoding="utf-8")


def _absolute_source(source: str) -> str:
    """A source that stays valid from another folder: files get absolute paths, hub ids stay."""
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _name_of(source: str) -> str:
    """A name for a folder, made from the name of a model."""
    name = source.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[^\w.-]+", "-", name) or "model"
