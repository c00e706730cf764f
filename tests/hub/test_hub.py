"""Models, tasks and texts by their ids, with the real clients, from a hub on the loopback."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from lamina.data import calibrations
from lamina.models.load import load_model
from lamina.options.benchmarks import TaskEntry
from lamina.options.calibrations import Calibration
from lamina.options.models import Model
from lamina.store import checksum, parquet
from lamina_workflow.stages.job import Job
from lamina_workflow.stages.prepare import PrepareCalibration, PrepareModel, PrepareTask
from tests.given import tiny
from tests.given.scripts import ENVIRONMENT, script_arguments, script_path
from tests.hub import server
from tests.hub.server import Hub, Repository
from tests.models.test_quantised import fp8, state_config

# In one worker, so that all ask the hub once.
pytestmark = pytest.mark.xdist_group("hub")

BIG = 100_000  # words: weights of more than two chunks of a download
TOKEN = "hf_user"


def save_model(folder: Path, **changes: Any) -> Path:
    tiny.model("llama", **changes).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def save_texts(folder: Path) -> Path:
    """As allenai/c4 has it: a card that names the files of each split."""
    folder.mkdir()
    lines = [json.dumps({"text": f"w{number} w1 w2 w3 w4 w5 w6 w7 w8"}) for number in range(20)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    files = json.dumps({"configs": [{"config_name": "regular", "data_files": "train.jsonl"}]})
    (folder / "README.md").write_text(f"---\n{files}\n---\n")
    return folder


def save_arc(folder: Path) -> Path:
    """As allenai/ai2_arc has it: a folder of Parquet files for each configuration."""
    for split, first in (("train", 0), ("validation", 20), ("test", 40)):
        choices = {"text": ["w1", "w2", "w3", "w4"], "label": ["A", "B", "C", "D"]}
        rows = [
            {
                "id": f"{n}",
                "question": f"w{n} w{n + 1}",
                "choices": choices,
                "answerKey": "ABCD"[n % 4],
            }
            for n in range(first, first + 12)
        ]
        file = folder / f"ARC-Easy/{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), file)
    splits = [{"split": s, "path": f"ARC-Easy/{s}-*"} for s in ("train", "validation", "test")]
    card = json.dumps({"configs": [{"config_name": "ARC-Easy", "data_files": splits}]})
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    words, texts = save_model(root / "words"), save_texts(root / "texts")
    big = save_model(root / "big", vocab_size=BIG)
    fp8(packed := save_model(root / "packed"))
    state_config(
        awq := save_model(root / "awq"),
        load_file(words / "model.safetensors"),
        {"quant_method": "awq"},
    )
    for name, folder in (("broken", big), ("late", big), ("cut off", texts)):
        (root / name).symlink_to(folder)
    repositories = {
        ("models", "lab/words"): Repository(words, revisions=("main", "v1")),
        ("models", "lab/gated"): Repository(words, gated=401),
        ("models", "lab/closed"): Repository(words, gated=403),
        ("models", "lab/licensed"): Repository(words, gated=401, token=TOKEN),
        ("models", "lab/broken"): Repository(root / "broken", breaks=1),
        ("models", "lab/late"): Repository(root / "late", breaks=7),
        ("models", "lab/packed"): Repository(packed),
        ("models", "lab/awq"): Repository(awq),
        ("datasets", "lab/texts"): Repository(texts),
        ("datasets", "lab/stream"): Repository(texts),
        ("datasets", "lab/shut"): Repository(texts, gated=401),
        ("datasets", "lab/cut-off"): Repository(root / "cut off", breaks=99),
        ("datasets", "allenai/swag"): Repository(root / "cut off", breaks=99),
        ("datasets", "allenai/ai2_arc"): Repository(save_arc(root / "arc")),
    }
    with server.running(Hub(repositories)) as running:
        yield running


@dataclass(frozen=True)
class Place:
    """Where jobs run: `folder` is the project, `home` the user's folder of the Hugging Face clients."""

    folder: Path
    home: Path
    hub: Hub

    def model(self, name: str, source: str, **options: Any) -> PrepareModel:
        entry = Model.from_options({"source": source, "revision": "main"} | options)
        return PrepareModel(model=name, entry=entry, output=str(self.folder / f"{name}.json"))

    def calibration(
        self, name: str, options: Mapping[str, Any], model: str = "words"
    ) -> PrepareCalibration:
        entry, manifest = Calibration.from_options(options), str(self.folder / f"{model}.json")
        output = str(self.folder / f"{name}.parquet")
        return PrepareCalibration(calibration=name, entry=entry, manifest=manifest, output=output)

    def task(self, name: str) -> PrepareTask:
        return PrepareTask(name=name, task=TaskEntry(), output=str(self.folder / f"{name}.parquet"))

    def ended(self, jobs: Mapping[str, Job], **settings: str) -> dict[str, str]:
        """The message of each job that failed, "" for the others; they run one after the other in one process."""
        clean = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("HF_")}
        ours = {
            "HF_ENDPOINT": self.hub.address,
            "HF_HOME": str(self.home),
            "HF_TOKEN": TOKEN,
            "LAMINA_OFFLINE": "",
        }
        asked = json.dumps([(script_path(job), script_arguments(job)) for job in jobs.values()])
        command, told = (
            [sys.executable, "-m", "tests.hub.jobs"],
            {"cwd": self.folder, "env": clean | ours | settings},
        )
        done = subprocess.run(
            command, **told, input=asked, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(zip(jobs, json.loads(done.stdout), strict=True))


def project(folder: Path) -> Path:
    """A project that has three task files of lm-eval as its own: to look through all of lm-eval's takes seconds."""
    (folder / "workflow/tasks").mkdir(parents=True)
    for name in ("arc/arc_easy", "sciq/sciq", "swag/swag"):
        file = Path(lm_eval.__file__).parent / f"tasks/{name}.yaml"
        shutil.copy(file, folder / "workflow/tasks")
    return folder


@pytest.fixture(scope="module")
def place(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(project(tmp_path_factory.mktemp("project")), tmp_path_factory.mktemp("home"), hub)


TEXTS = {"hub": "lab/texts", "revision": "main", "documents": "2:6", "length": 8}
ARC = {"task": "arc_easy", "split": "train", "limit": 5, "seed": 0}


@pytest.fixture(scope="module")
def first(place: Place) -> dict[str, str]:
    """How the first run ended, which has the network."""
    late = place.model("late", "lab/late")
    return place.ended(
        {
            "words": place.model("words", "lab/words", revision="v1"),
            "gated": place.model("gated", "lab/gated"),
            "licensed": place.model("licensed", "lab/licensed"),
            "closed": place.model("closed", "lab/closed"),
            "revision": place.model("revision", "lab/words", revision="v9"),
            "nobody": place.model("nobody", "nobody/nothing"),
            "packed": place.model("packed/manifest", "lab/packed"),
            "awq": place.model("awq", "lab/awq"),
            "broken": place.model("broken", "lab/broken"),
            "late": late,
            "late again": late,
            "streamed": place.calibration("streamed", TEXTS | {"hub": "lab/stream"}),
            "kept": place.calibration("kept", TEXTS | {"streaming": False}),
            "texts gated": place.calibration("shut", TEXTS | {"hub": "lab/shut"}),
            "texts revision": place.calibration("revision", TEXTS | {"revision": "v9"}),
            "texts nobody": place.calibration("nobody", TEXTS | {"hub": "nobody/texts"}),
            "arc": place.calibration("arc", ARC),
            "arc_easy": place.task("arc_easy"),
            "sciq": place.task("sciq"),
        }
    )


@pytest.fixture(scope="module", params=["offline", pytest.param("down", marks=pytest.mark.slow)])
def again(
    request: pytest.FixtureRequest, first: dict[str, str], place: Place
) -> tuple[Place, dict[str, str]]:
    """A second run with the user's folder of the first: told to stay offline, or with a hub that does not answer."""
    folder = place.folder.parent / request.param
    lost = Place(project(folder), place.home, Hub({}, address="http://127.0.0.1:9"))
    settings = {"LAMINA_OFFLINE": "1", "HF_HUB_OFFLINE": "1"} if request.param == "offline" else {}
    jobs = {
        "words": lost.model("words", "lab/words", revision="v1"),
        "never": lost.model("never", "lab/never"),
        "kept": lost.calibration("kept", TEXTS | {"streaming": False}),
        "arc": lost.calibration("arc", ARC),
        "arc_easy": lost.task("arc_easy"),
        "streamed": lost.calibration("streamed", TEXTS | {"hub": "lab/stream"}),
        "sciq": lost.task("sciq"),
    }
    return lost, lost.ended(jobs, **settings)


def test_a_model_by_its_id_is_that_of_the_hub(first: dict[str, str], place: Place) -> None:
    assert first["words"] == ""
    manifest = checksum.read_json(place.folder / "words.json")
    assert (manifest["source"], manifest["revision"], manifest["n_layers"]) == (
        "lab/words",
        "v1",
        5,
    )
    assert Path(manifest["path"]).is_relative_to(place.home)
    ids = tiny.tokens()
    with torch.no_grad():
        assert torch.equal(load_model(manifest)(ids).logits, tiny.model("llama")(ids).logits)


def test_a_quantised_model_is_dequantised_once_it_is_here(
    first: dict[str, str], place: Place, tmp_path: Path
) -> None:
    assert first["packed"] == ""
    manifest = checksum.read_json(place.folder / "packed/manifest.json")
    assert (manifest["source"], manifest["path"]) == ("lab/packed", "packed/checkpoint")
    worth = fp8(tmp_path / "packed")
    model = load_model(manifest | {"path": str(place.folder / manifest["path"])})
    assert sum(weight.numel() for weight in model.parameters()) == manifest["parameters"]
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, worth[name], rtol=0, atol=0)


def test_a_gated_model_is_had_with_a_token(first: dict[str, str]) -> None:
    assert first["licensed"] == ""


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "gated",
            "models.gated.source: 'lab/gated' is gated: accept its licence on the hub's page, then run `hf auth",
        ),
        ("closed", "models.closed.source: 'lab/closed' is gated: accept its licence"),
        (
            "revision",
            "models.revision.revision: 'lab/words' has no revision 'v9'. Write an existing one.",
        ),
        (
            "nobody",
            "models.nobody.source: 'nobody/nothing' is neither a local folder nor a model on the hub",
        ),
        (
            "awq",
            "models.awq.source: 'lab/awq' is quantised (awq), and layers are measured and cut in floating point",
        ),
        (
            "late",
            "models.late.source: the download of 'lab/late' broke off (RemoteProtocolError). Start again",
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
            "Dataset 'nobody/texts' doesn't exist on the Hub or cannot be accessed. Correct its id or",
        ),
        (
            "sciq",
            "the data of task 'sciq' cannot be loaded (Dataset 'allenai/sciq' doesn't exist on the Hub",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_said_in_one_line(
    first: dict[str, str], case: str, words: str
) -> None:
    assert first[case].startswith("lamina: ") and words in first[case] and "\n" not in first[case]


def test_a_broken_transfer_goes_on_where_it_ended(
    first: dict[str, str], hub: Hub, place: Place
) -> None:
    assert first["broken"] == ""
    assert hub.fetched("lab/broken/resolve/").count("") == 5
    assert [span for span in hub.fetched("lab/broken") if span] == ["bytes=10485760-"]
    assert checksum.read_json(place.folder / "broken.json")["vocabulary"] == BIG


def test_after_a_failed_download_only_what_lacks_is_fetched(
    first: dict[str, str], hub: Hub, place: Place
) -> None:
    assert first["late again"] == ""
    commit = Repository(Path("late")).commit
    assert all(
        len(hub.fetched(f"late/resolve/{commit}/{name}")) == 1
        for name in ("config", "tokenizer.json")
    )
    sums = [
        checksum.read_json(place.folder / f"{name}.json")["weights_sha256"]
        for name in ("broken", "late")
    ]
    assert sums[0] == sums[1]


def test_texts_of_the_hub_are_a_calibration(first: dict[str, str], place: Place) -> None:
    assert first["streamed"] == first["kept"] == ""
    streamed, kept = (
        calibrations.read_calibration(place.folder / f"{name}.parquet")
        for name in ("streamed", "kept")
    )
    encode = tiny.tokenizer().encode
    wanted = [encode(f"w{number} w1 w2 w3 w4 w5 w6 w7 w8")[:8] for number in range(2, 6)]
    assert [list(sample.sequence()) for sample in streamed.samples] == wanted
    assert streamed.samples == kept.samples


def test_a_task_of_lm_eval_with_its_data_of_the_hub(first: dict[str, str], place: Place) -> None:
    assert first["arc"] == first["arc_easy"] == ""
    samples = calibrations.read_calibration(place.folder / "arc.parquet").samples
    assert len(samples) == 5 and {len(sample.rows) for sample in samples} == {4}
    assert parquet.read_table(place.folder / "arc_easy.parquet").num_rows == 12


def test_a_second_run_needs_no_network(again: tuple[Place, dict[str, str]], place: Place) -> None:
    lost, ended = again
    for name in ("words", "kept", "arc", "arc_easy"):
        assert ended[name] == "", name
    assert checksum.read_json(lost.folder / "words.json") == checksum.read_json(
        place.folder / "words.json"
    )
    for name in ("kept", "arc"):
        before, now = (
            calibrations.read_calibration(root / f"{name}.parquet").samples
            for root in (place.folder, lost.folder)
        )
        assert before == now


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "never",
            "models.never.source: 'lab/never' is not a local folder, and the hub cannot be reached",
        ),
        (
            "streamed",
            "Where there is no network, run `snakemake results/calibrations/MODEL/streamed.parquet`",
        ),
        ("sciq", "Where there is no network, load them once where there is one"),
    ],
)
def test_without_a_network_the_way_is_said(
    again: tuple[Place, dict[str, str]], case: str, words: str
) -> None:
    ended = again[1][case]
    assert ended.startswith("lamina: ") and words in ended and "\n" not in ended


@pytest.mark.slow  # clients try again for seconds
def test_data_whose_transfer_breaks_again_and_again_are_named(
    first: dict[str, str], place: Place
) -> None:
    texts = place.calibration("cut", TEXTS | {"hub": "lab/cut-off", "streaming": False})
    ended = place.ended({"texts": texts, "task": place.task("swag")})
    assert ended["texts"].startswith(
        "lamina: calibrations.cut.hub: 'lab/cut-off' (name None, split train, revision"
    )
    assert ended["task"].startswith(
        "lamina: the data of task 'swag' cannot be loaded (Server disconnected"
    )
    assert all("Where there is no network" in said and "\n" not in said for said in ended.values())
