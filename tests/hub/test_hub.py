"""Models, tasks and texts by their ids, with the real clients, from a hub on the loopback."""

import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from lamina.data import calibrations
from lamina.data.benchmark_documents import read_texts
from lamina.models.load import load_model
from lamina.options.benchmarks import PerplexityEntry, TaskEntry
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from lamina.store import checksum, parquet
from lamina.variant import Variant
from lamina_workflow.stages.benchmark import BenchmarkPerplexity
from lamina_workflow.stages.job import Job
from lamina_workflow.stages.prepare import (
    CheckOverlap,
    PrepareCalibration,
    PrepareModel,
    PrepareTask,
)
from tests.given import tiny
from tests.given.model_folders import save_model
from tests.given.quantised_models import fp8, write_quantised
from tests.given.scripts import ENVIRONMENT, script_arguments, script_path
from tests.given.variants import compute_logits
from tests.hub import server
from tests.hub.server import Hub, Repository

# In one worker, so that all ask the hub once.
pytestmark = pytest.mark.xdist_group("hub")

LARGE_VOCABULARY = 100_000  # weights of more than two chunks of a download
TOKEN = "hf_user"


def write_card(folder: Path, data_files: Any, configuration: str) -> None:
    """A card that names the files of each split."""
    card = json.dumps({"configs": [{"config_name": configuration, "data_files": data_files}]})
    (folder / "README.md").write_text(f"---\n{card}\n---\n")


def save_texts(folder: Path) -> Path:
    """As allenai/c4 has them."""
    folder.mkdir()
    lines = [json.dumps({"text": f"w{number} w1 w2 w3 w4 w5 w6 w7 w8"}) for number in range(20)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    write_card(folder, "train.jsonl", "regular")
    return folder


def arc_question(number: int) -> dict[str, Any]:
    return {
        "id": str(number),
        "question": f"w{number} w{number + 1}",
        "choices": {"text": ["w1", "w2", "w3", "w4"], "label": ["A", "B", "C", "D"]},
        "answerKey": "ABCD"[number % 4],
    }


def save_arc(folder: Path) -> Path:
    """As allenai/ai2_arc has it: a folder of Parquet files for each configuration."""
    (folder / "ARC-Easy").mkdir(parents=True)
    data_files: list[dict[str, str]] = []
    for split, first_number in (("train", 0), ("validation", 20), ("test", 40)):
        numbers = range(first_number, first_number + 12)
        questions = pa.Table.from_pylist([arc_question(number) for number in numbers])
        pq.write_table(questions, folder / f"ARC-Easy/{split}-00000-of-00001.parquet")
        data_files.append({"split": split, "path": f"ARC-Easy/{split}-*"})
    write_card(folder, data_files, "ARC-Easy")
    return folder


def wiki_lines(split: str) -> list[str]:
    """Lines of articles, with empty ones between them; the last one of all splits is the same."""
    generator = random.Random(split)
    lines: list[str] = []
    for _ in range(12):
        words = generator.choices(tiny.WORDS, k=generator.randint(3, 30))
        lines += ["", f" {' '.join(words)} \n"]
    return [*lines, "w1 w2 w3 w4 w5 w6"]


def save_wiki(folder: Path) -> Path:
    """As Salesforce/wikitext has it: a folder of Parquet files for each configuration."""
    (folder / "raw").mkdir(parents=True)
    data_files: list[dict[str, str]] = []
    for split in ("train", "test"):
        lines = pa.Table.from_pylist([{"text": line} for line in wiki_lines(split)])
        pq.write_table(lines, folder / f"raw/{split}-00000-of-00001.parquet")
        data_files.append({"split": split, "path": f"raw/{split}-*"})
    write_card(folder, data_files, "raw")
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    word_model = save_model(root / "words")
    # The weights again, as some publishers add them, and a tokenizer of another format.
    (word_model / "original").mkdir()
    for name in ("consolidated.safetensors", "original/model.safetensors"):
        shutil.copy(word_model / "model.safetensors", word_model / name)
    (word_model / "words.tiktoken").write_text("dw== 0")
    large = save_model(root / "large", vocab_size=LARGE_VOCABULARY)
    packed = save_model(root / "packed")
    fp8(packed)
    awq = save_model(root / "awq")
    write_quantised(awq, load_file(word_model / "model.safetensors"), {"quant_method": "awq"})
    texts = save_texts(root / "texts")
    # Transfers are counted by folder.
    (root / "broken").symlink_to(large)
    (root / "late").symlink_to(large)
    (root / "cut off").symlink_to(texts)

    repositories = {
        ("models", "lab/words"): Repository(word_model, revisions=("main", "v1")),
        ("models", "lab/gated"): Repository(word_model, gated=401),
        ("models", "lab/closed"): Repository(word_model, gated=403),
        ("models", "lab/licensed"): Repository(word_model, gated=401, token=TOKEN),
        ("models", "lab/broken"): Repository(root / "broken", n_breaks=1),
        ("models", "lab/late"): Repository(root / "late", n_breaks=7),
        ("models", "lab/packed"): Repository(packed),
        ("models", "lab/awq"): Repository(awq),
        ("datasets", "lab/texts"): Repository(texts),
        ("datasets", "lab/stream"): Repository(texts),
        ("datasets", "lab/wiki"): Repository(save_wiki(root / "wiki")),
        ("datasets", "lab/shut"): Repository(texts, gated=401),
        ("datasets", "lab/cut-off"): Repository(root / "cut off", n_breaks=99),
        ("datasets", "allenai/swag"): Repository(root / "cut off", n_breaks=99),
        ("datasets", "allenai/ai2_arc"): Repository(save_arc(root / "arc")),
    }
    with server.serve(Hub(repositories)) as running_hub:
        yield running_hub


@dataclass(frozen=True)
class Project:
    """The folder in which jobs run; `home` is the user's folder of the Hugging Face clients."""

    folder: Path
    home: Path
    hub: Hub

    def model_job(self, name: str, source: str, **options: Any) -> PrepareModel:
        entry = Model.from_options({"source": source, "revision": "main"} | options)
        return PrepareModel(model=name, entry=entry, output=str(self.folder / f"{name}.json"))

    def calibration_job(self, name: str, options: Mapping[str, Any]) -> PrepareCalibration:
        return PrepareCalibration(
            calibration=name,
            entry=Calibration.from_options(options),
            manifest=str(self.folder / "words.json"),
            output=str(self.folder / f"{name}.parquet"),
        )

    def task_job(self, name: str) -> PrepareTask:
        return PrepareTask(name=name, task=TaskEntry(), output=str(self.folder / f"{name}.parquet"))

    def text_job(self, name: str, options: Mapping[str, Any]) -> PrepareTask:
        return PrepareTask(
            name=name,
            text=PerplexityEntry.from_options(options),
            output=str(self.folder / f"{name}.parquet"),
        )

    def overlap_job(self, calibration: str, task: str) -> CheckOverlap:
        return CheckOverlap(
            calibration=calibration,
            task=task,
            samples=str(self.folder / f"{calibration}.parquet"),
            documents=str(self.folder / f"{task}.parquet"),
            output=str(self.folder / f"{calibration}-{task}.json"),
        )

    def perplexity_job(
        self, name: str, options: Mapping[str, Any], documents: Path
    ) -> BenchmarkPerplexity:
        return BenchmarkPerplexity(
            name=name,
            text=PerplexityEntry.from_options(options),
            variants=[str(Variant.base("words"))],
            manifest=str(self.folder / "words.json"),
            documents=str(documents),
            output=str(self.folder / f"{name}-measured.parquet"),
            samples=str(self.folder / f"{name}-samples.parquet"),
        )

    def run(self, jobs: Mapping[str, Job], **variables: str) -> dict[str, str]:
        """The message of each job that failed, "" for the others.

        They run one after the other in one process, with these variables of its environment.
        """
        environment = {
            name: value for name, value in ENVIRONMENT.items() if not name.startswith("HF_")
        }
        environment["HF_ENDPOINT"] = self.hub.address
        environment["HF_HOME"] = str(self.home)
        environment["HF_TOKEN"] = TOKEN
        environment["LAMINA_OFFLINE"] = ""
        scripts = [(script_path(job), script_arguments(job)) for job in jobs.values()]
        process = subprocess.run(
            [sys.executable, "-m", "tests.hub.jobs"],
            cwd=self.folder,
            env=environment | variables,
            input=json.dumps(scripts),
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return dict(zip(jobs, json.loads(process.stdout), strict=True))


def create_project(folder: Path) -> Path:
    """Copy three task files of lm-eval: to look through all of lm-eval's takes seconds."""
    task_folder = folder / "workflow/tasks"
    task_folder.mkdir(parents=True)
    for name in ("arc/arc_easy", "sciq/sciq", "swag/swag"):
        shutil.copy(Path(lm_eval.__file__).parent / f"tasks/{name}.yaml", task_folder)
    return folder


@pytest.fixture(scope="module")
def project(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = create_project(tmp_path_factory.mktemp("project"))
    return Project(folder, tmp_path_factory.mktemp("home"), hub)


TEXTS = {"hub": "lab/texts", "revision": "main", "documents": "2:6", "length": 8}
STREAM = TEXTS | {"hub": "lab/stream"}
KEPT_TEXTS = TEXTS | {"streaming": False}
WIKI = {"hub": "lab/wiki", "name": "raw", "revision": "main", "joined": "\n\n", "window": 16}
APART = {"hub": "lab/wiki", "name": "raw", "revision": "main", "window": 8, "split": "train"}
TRAINING = {"hub": "lab/wiki", "name": "raw", "revision": "main", "length": 8}
ARC = {"task": "arc_easy", "split": "train", "limit": 5, "seed": 0}


@pytest.fixture(scope="module")
def first_run(project: Project) -> dict[str, str]:
    """How each job of the first run ended, which has the network."""
    late = project.model_job("late", "lab/late")
    jobs = {
        "words": project.model_job("words", "lab/words", revision="v1"),
        "gated": project.model_job("gated", "lab/gated"),
        "licensed": project.model_job("licensed", "lab/licensed"),
        "closed": project.model_job("closed", "lab/closed"),
        "revision": project.model_job("revision", "lab/words", revision="v9"),
        "nobody": project.model_job("nobody", "nobody/nothing"),
        "packed": project.model_job("packed/manifest", "lab/packed"),
        "awq": project.model_job("awq", "lab/awq"),
        "broken": project.model_job("broken", "lab/broken"),
        "late": late,
        "late again": late,
        "streamed": project.calibration_job("streamed", STREAM),
        "kept": project.calibration_job("kept", KEPT_TEXTS),
        "wiki": project.text_job("wiki", WIKI),
        "wiki lines": project.text_job("lines", APART | {"documents": "3:9"}),
        "wiki train": project.calibration_job("train", TRAINING | {"documents": "0:12"}),
        "wiki train and test": project.overlap_job("train", "wiki"),
        "wiki shared": project.calibration_job("shared", TRAINING | {"documents": "6:13"}),
        "wiki shared and test": project.overlap_job("shared", "wiki"),
        "texts gated": project.calibration_job("shut", TEXTS | {"hub": "lab/shut"}),
        "texts revision": project.calibration_job("revision", TEXTS | {"revision": "v9"}),
        "texts nobody": project.calibration_job("nobody", TEXTS | {"hub": "nobody/texts"}),
        "arc": project.calibration_job("arc", ARC),
        "arc_easy": project.task_job("arc_easy"),
        "sciq": project.task_job("sciq"),
    }
    return project.run(jobs)


class SecondRun(NamedTuple):
    """Another project without a network, and how each of its jobs ended."""

    project: Project
    messages: dict[str, str]


OFFLINE = {"LAMINA_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
NO_ANSWER: dict[str, str] = {}  # the address is one where nobody listens


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(OFFLINE, id="offline"),
        pytest.param(NO_ANSWER, id="down", marks=pytest.mark.slow),
    ],
)
def second_run(
    request: pytest.FixtureRequest,
    first_run: dict[str, str],
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
) -> SecondRun:
    """A run with the user's folder of the first one: told to stay offline, or with a dead hub."""
    folder = create_project(tmp_path_factory.mktemp("second"))
    dead_hub = Hub({}, address="http://127.0.0.1:9")
    second_project = Project(folder, project.home, dead_hub)
    jobs = {
        "words": second_project.model_job("words", "lab/words", revision="v1"),
        "never": second_project.model_job("never", "lab/never"),
        "kept": second_project.calibration_job("kept", KEPT_TEXTS),
        "arc": second_project.calibration_job("arc", ARC),
        "arc_easy": second_project.task_job("arc_easy"),
        "streamed": second_project.calibration_job("streamed", STREAM),
        "sciq": second_project.task_job("sciq"),
        "wiki": second_project.text_job("wiki", WIKI),
        "wiki measured": second_project.perplexity_job(
            "wiki", WIKI, project.folder / "wiki.parquet"
        ),
    }
    return SecondRun(second_project, second_project.run(jobs, **request.param))


def read_samples(project: Project, name: str) -> list[calibrations.Sample]:
    return calibrations.read_calibration(project.folder / f"{name}.parquet").samples


def test_a_model_by_its_id_is_that_of_the_hub(first_run: dict[str, str], project: Project) -> None:
    assert first_run["words"] == ""
    manifest = checksum.read_json(project.folder / "words.json")
    assert manifest["source"] == "lab/words"
    assert manifest["revision"] == "v1"
    assert manifest["n_layers"] == 5
    assert Path(manifest["path"]).is_relative_to(project.home)
    token_ids = tiny.tokens()
    found_logits = compute_logits(load_model(manifest), token_ids)
    assert torch.equal(found_logits, compute_logits(tiny.model(), token_ids))


def test_each_weight_of_the_hub_is_downloaded_once(first_run: dict[str, str], hub: Hub) -> None:
    assert first_run["words"] == ""
    files = f"lab/words/resolve/{hub.repositories['models', 'lab/words'].commit}"
    assert hub.downloaded_ranges(f"{files}/model.safetensors")
    assert hub.downloaded_ranges(f"{files}/words.tiktoken")
    assert not hub.downloaded_ranges(f"{files}/consolidated.safetensors")
    assert not hub.downloaded_ranges(f"{files}/original/")


def test_a_quantised_model_of_the_hub_is_dequantised(
    first_run: dict[str, str], project: Project, tmp_path: Path
) -> None:
    assert first_run["packed"] == ""
    manifest = checksum.read_json(project.folder / "packed/manifest.json")
    assert manifest["source"] == "lab/packed"
    assert manifest["path"] == "packed/checkpoint"
    model = load_model(manifest | {"path": str(project.folder / "packed/checkpoint")})
    expected_weights = fp8(tmp_path / "packed")
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, expected_weights[name], rtol=0, atol=0)


def test_a_gated_model_is_had_with_a_token(first_run: dict[str, str]) -> None:
    assert first_run["licensed"] == ""


@pytest.mark.parametrize(
    ("job_name", "message"),
    [
        (
            "gated",
            "models.gated.source: 'lab/gated' is gated: accept its licence on the hub's page, "
            "then run `hf auth",
        ),
        ("closed", "models.closed.source: 'lab/closed' is gated: accept its licence"),
        (
            "revision",
            "models.revision.revision: 'lab/words' has no revision 'v9'. Write an existing one.",
        ),
        (
            "nobody",
            "models.nobody.source: 'nobody/nothing' is neither a local folder nor a model on "
            "the hub",
        ),
        (
            "awq",
            "models.awq.source: 'lab/awq' is quantised (awq), but layers are measured and cut in "
            "floating point",
        ),
        (
            "late",
            "models.late.source: the download of 'lab/late' broke off (RemoteProtocolError). "
            "Start again",
        ),
        (
            "texts gated",
            "gated dataset on the Hub. You must be authenticated to access it. Correct its id or",
        ),
        (
            "texts revision",
            "Revision 'v9' doesn't exist for dataset 'lab/texts' on the Hub. Correct its id or",
        ),
        (
            "texts nobody",
            "Dataset 'nobody/texts' doesn't exist on the Hub or cannot be accessed. Correct its "
            "id or",
        ),
        (
            "sciq",
            "the data of task 'sciq' cannot be loaded (Dataset 'allenai/sciq' doesn't exist on "
            "the Hub",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_said_in_one_line(
    first_run: dict[str, str], job_name: str, message: str
) -> None:
    assert_one_line(first_run[job_name], message)


def assert_one_line(output: str, message: str) -> None:
    assert output.startswith("lamina: ")
    assert message in output
    assert "\n" not in output


def test_a_broken_transfer_goes_on_where_it_ended(
    first_run: dict[str, str], hub: Hub, project: Project
) -> None:
    assert first_run["broken"] == ""
    ranges = hub.downloaded_ranges("lab/broken/resolve/")
    assert ranges.count("") == 5
    assert [byte_range for byte_range in ranges if byte_range] == ["bytes=10485760-"]
    manifest = checksum.read_json(project.folder / "broken.json")
    assert manifest["vocabulary"] == LARGE_VOCABULARY


def test_after_a_failed_download_only_missing_files_are_fetched(
    first_run: dict[str, str], hub: Hub, project: Project
) -> None:
    assert first_run["late again"] == ""
    commit = Repository(Path("late")).commit
    assert len(hub.downloaded_ranges(f"late/resolve/{commit}/config")) == 1
    assert len(hub.downloaded_ranges(f"late/resolve/{commit}/tokenizer.json")) == 1
    late_manifest = checksum.read_json(project.folder / "late.json")
    broken_manifest = checksum.read_json(project.folder / "broken.json")
    assert late_manifest["weights_sha256"] == broken_manifest["weights_sha256"]


def test_texts_of_the_hub_are_a_calibration(first_run: dict[str, str], project: Project) -> None:
    assert first_run["streamed"] == ""
    assert first_run["kept"] == ""
    tokenizer = tiny.tokenizer()
    expected_ids = [
        tokenizer.encode(f"w{number} w1 w2 w3 w4 w5 w6 w7 w8")[:8] for number in range(2, 6)
    ]
    streamed_samples = read_samples(project, "streamed")
    assert [list(sample.sequence()) for sample in streamed_samples] == expected_ids
    assert read_samples(project, "kept") == streamed_samples


def paper_perplexity(lines: list[str], window: int) -> float:
    """WikiText-2 as papers on pruning measure it: one stream, windows that do not overlap."""
    stream = tiny.tokenizer()("\n\n".join(lines), return_tensors="pt")["input_ids"]
    network = tiny.model()
    losses: list[float] = []
    for start in range(0, stream.shape[1] - window + 1, window):
        token_ids = stream[:, start : start + window]
        with torch.no_grad():
            losses.append(float(network(token_ids, labels=token_ids).loss))
    return math.exp(sum(losses) / len(losses))


def test_a_perplexity_on_data_of_the_hub_is_that_of_papers(
    second_run: SecondRun, first_run: dict[str, str]
) -> None:
    """It is measured where there is no network, from what the first run prepared."""
    assert first_run["wiki"] == ""
    assert second_run.messages["wiki measured"] == ""
    rows = parquet.read_table(second_run.project.folder / "wiki-measured.parquet").to_pylist()
    (row,) = [row for row in rows if row["metric"] == "perplexity"]
    assert row["value"] == pytest.approx(paper_perplexity(wiki_lines("test"), 16), rel=1e-5)
    assert row["task_version"] == "window=16 joined='\\n\\n'"


def test_documents_of_a_perplexity_are_counted_as_those_of_a_calibration(
    first_run: dict[str, str], project: Project
) -> None:
    assert first_run["wiki lines"] == ""
    lines = [line for line in wiki_lines("train") if line.strip()]
    assert read_texts(project.folder / "lines.parquet") == lines[3:9]


def test_a_calibration_that_shares_a_line_with_a_perplexity_is_refused(
    first_run: dict[str, str],
) -> None:
    assert first_run["wiki train and test"] == ""
    assert_one_line(first_run["wiki shared and test"], "calibrations.shared shares 1 of its 7")
    assert "13 test documents of benchmark 'wiki'" in first_run["wiki shared and test"]


def test_a_task_of_lm_eval_has_its_data_from_the_hub(
    first_run: dict[str, str], project: Project
) -> None:
    assert first_run["arc"] == ""
    assert first_run["arc_easy"] == ""
    samples = read_samples(project, "arc")
    assert [len(sample.rows) for sample in samples] == [4, 4, 4, 4, 4]
    assert parquet.read_table(project.folder / "arc_easy.parquet").num_rows == 12


def test_a_second_run_needs_no_network(second_run: SecondRun, project: Project) -> None:
    for job_name in ("words", "kept", "arc", "arc_easy"):
        assert second_run.messages[job_name] == "", job_name
    first_manifest = checksum.read_json(project.folder / "words.json")
    assert checksum.read_json(second_run.project.folder / "words.json") == first_manifest
    for name in ("kept", "arc"):
        assert read_samples(second_run.project, name) == read_samples(project, name)


@pytest.mark.parametrize(
    ("job_name", "message"),
    [
        (
            "never",
            "models.never.source: 'lab/never' is not a local folder, and the hub cannot be reached",
        ),
        (
            "streamed",
            "Without network access, run `snakemake results/calibrations/MODEL/streamed.parquet`",
        ),
        ("wiki", "Without network access, run `snakemake results/tasks/wiki.parquet` on a node"),
        ("sciq", "Without network access, load it once where there is a network"),
    ],
)
def test_without_a_network_the_remedy_is_said(
    second_run: SecondRun, job_name: str, message: str
) -> None:
    assert_one_line(second_run.messages[job_name], message)


@pytest.mark.slow  # clients try again for seconds
def test_data_whose_transfer_breaks_again_and_again_are_named(
    first_run: dict[str, str], project: Project
) -> None:
    options = TEXTS | {"hub": "lab/cut-off", "streaming": False}
    jobs = {"texts": project.calibration_job("cut", options), "task": project.task_job("swag")}
    messages = project.run(jobs)
    assert messages["texts"].startswith(
        "lamina: calibrations.cut.hub: 'lab/cut-off' (name None, split train, revision"
    )
    assert messages["task"].startswith(
        "lamina: the data of task 'swag' cannot be loaded (Server disconnected"
    )
    for message in messages.values():
        assert_one_line(message, "Without network access")
