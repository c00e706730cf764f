"""What `lamina prune` writes is a study that the workflow accepts, with data that is split once."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.data.overlap import Document, check_overlap, document_hash, hash_word_runs
from lamina.errors import LaminaError
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.prune_study import (
    PruneRequest,
    describe_study,
    find_written,
    prepare_study,
    write_study,
)
from tests.given import tiny


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, 100 questions, ten of them twice, and 50 documents."""
    tiny.model().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    questions = [
        {"query": f"w{index} w1", "choices": ["w2", "w3"], "gold": index % 2}
        for index in range(100)
    ]
    write_lines(tmp_path / "questions.jsonl", [*questions, *questions[:10]])
    write_lines(tmp_path / "text.jsonl", [{"text": f"w{index} w4 w5"} for index in range(50)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def request(**changes: Any) -> PruneRequest:
    options: dict[str, Any] = {
        "source": "model",
        "questions": Path("questions.jsonl"),
        "text": Path("text.jsonl"),
    }
    return PruneRequest(**(options | changes))


def test_questions_and_text_are_split_without_copies_on_both_sides(workplace: Path) -> None:
    study = write_study(request())

    choosing = read_lines(study.folder / "questions-choose.jsonl")
    testing = read_lines(study.folder / "questions-test.jsonl")
    assert (len(choosing), len(testing)) == (60, 40)
    assert len({*choosing, *testing}) == 100

    fitting_text = read_lines(study.folder / "text-choose.jsonl")
    test_text = read_lines(study.folder / "text-test.jsonl")
    assert (len(fitting_text), len(test_text)) == (40, 10)
    assert len({*fitting_text, *test_text}) == 50


def test_questions_on_one_passage_and_of_the_same_words_stay_on_one_side(workplace: Path) -> None:
    """In the eyes of the check that refuses overlap between a calibration and a test."""
    rng = random.Random(0)
    records: list[dict[str, Any]] = []
    for index in range(25):
        passage = " ".join(f"word{rng.randrange(5000)}" for _ in range(60))
        for ending in ("who", "where", "when", "why"):
            records.append({"query": f"{passage} {ending}", "choices": ["a", "b"], "gold": 0})
        records.append({"query": f"few words {index}", "choices": ["yes", "no"], "gold": 0})
        records.append({"query": f"few words {index}", "choices": ["no", "yes"], "gold": 1})
    write_lines(workplace / "questions.jsonl", records)

    study = write_study(request(seed=5))

    sides: list[list[Document]] = []
    for name in ("questions-choose.jsonl", "questions-test.jsonl"):
        documents = {}
        for line in read_lines(study.folder / name):
            parts = (json.loads(line)["query"], json.loads(line)["choices"])
            documents[document_hash(*parts)] = hash_word_runs(*parts)
        sides.append(list(documents.items()))
    choosing, testing = sides
    assert len(choosing) + len(testing) == 125
    assert 45 <= len(testing) <= 60
    shared = check_overlap("task", choosing, "task", testing)
    assert (shared.equal, shared.near) == (0, 0)


def test_a_share_without_a_percent_sign_is_refused_by_the_name_of_its_option(
    workplace: Path,
) -> None:
    with pytest.raises(LaminaError, match="^--keep: "):
        write_study(request(keep="95"))
    with pytest.raises(LaminaError, match="^--remove ²: write a share"):
        write_study(request(remove="²"))


def test_questions_that_are_all_alike_are_refused(workplace: Path) -> None:
    passage = " ".join(f"word{index}" for index in range(60))
    records = [
        {"query": f"{passage} {'more ' * index}", "choices": ["a", "b"], "gold": 0}
        for index in range(10)
    ]
    write_lines(workplace / "questions.jsonl", [*records, *records])

    with pytest.raises(LaminaError, match="none can test what the others choose"):
        write_study(request())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"text": None},
        {"questions": None},
        {"questions": None, "task": "arc_easy"},
        {"fit": "200kB"},
        {"faster": "20%"},
        {"remove": "2"},
        {"keep": "90%", "seed": 3},
        {"n_samples": 50},
    ],
)
def test_the_workflow_accepts_what_is_written(workplace: Path, changes: dict[str, Any]) -> None:
    study = write_study(request(**changes))

    raw = yaml.safe_load((study.folder / "config.yaml").read_text())
    configuration = load_configuration(raw, study.folder)
    assert configuration.selectors["best"].strategy == "portfolio"
    assert list(configuration.studies) == ["prune"]


def test_the_same_command_finds_its_study_and_an_edited_one_is_kept(workplace: Path) -> None:
    study = write_study(request())
    written = (study.folder / "questions-test.jsonl").read_bytes()
    assert write_study(request()).folder == study.folder
    assert (study.folder / "questions-test.jsonl").read_bytes() == written

    with pytest.raises(LaminaError, match="is another study.*lamina run.*--folder NAME"):
        write_study(request(remove="50%"))
    assert "12.5%" in (study.folder / "config.yaml").read_text()


def test_the_layers_that_go_are_counted_before_anything_is_written(workplace: Path) -> None:
    study = write_study(request(remove="50%"))
    assert re.search(r"Each variant removes \d+ or \d+ of the \d+ layers\.", study.notes[0])

    with pytest.raises(LaminaError, match="--remove 100: the model has .* For a share .* 100%"):
        write_study(request(remove="100"), Path("other"))
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"fit": "1kB"}, "^--fit: .*cannot be reached"), ({"fit": "900GB"}, "^--fit: .* as it is")],
)
def test_sizes_are_checked_before_anything_is_written(
    workplace: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaminaError, match=message):
        write_study(request(**changes), Path("new"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": Path("latin1.txt")}, "^--text: latin1.txt, line 1: not UTF-8"),
        ({"questions": None, "task": "arc_eazy"}, "^--task: there is no task 'arc_eazy'"),
        ({"source": "lab/model"}, "^MODEL: there is no folder .* add --revision .* and --layers"),
    ],
)
def test_messages_name_options_of_the_command(
    workplace: Path, changes: dict[str, Any], message: str
) -> None:
    Path("latin1.txt").write_bytes(b"caf\xe9")

    with pytest.raises(LaminaError, match=message):
        write_study(request(**changes), Path("new"))


def test_fewer_samples_choose_where_a_time_asks_for_it(workplace: Path) -> None:
    configuration = prepare_study(request(n_samples=50)).configuration
    assert configuration["calibrations"]["task"]["limit"] == 50
    assert configuration["calibrations"]["text"]["documents"] == "0:40"  # as many as there are
    assert configuration["benchmarks"]["perplexity"]["text"]["documents"] == "0:10"

    by_task = prepare_study(request(questions=None, task="arc_easy", n_samples=50)).configuration
    assert by_task["calibrations"]["task"]["limit"] == 50


def test_a_study_of_some_size_is_found_again(workplace: Path) -> None:
    sizes = [request(n_samples=n_samples) for n_samples in (400, 20)]
    study = write_study(sizes[1])

    assert find_written(sizes, study.folder) == sizes[1]
    assert find_written([request(remove="50%", n_samples=20)], study.folder) is None


def test_few_questions_are_remarked_on_in_words_of_the_command(workplace: Path) -> None:
    few = [{"query": f"w{index}", "choices": ["w1", "w2"], "gold": 0} for index in range(75)]
    write_lines(workplace / "enough.jsonl", few)
    write_lines(workplace / "few.jsonl", few[:70])

    notes = prepare_study(request(questions=Path("few.jsonl"))).notes
    assert [note for note in notes if "at least 75 in all" in note]
    assert not re.search(r"calibrations|benchmarks", " ".join(notes))
    enough_notes = prepare_study(request(questions=Path("enough.jsonl"))).notes
    assert not [note for note in enough_notes if "at least" in note]


def test_half_of_a_share_is_tried_too() -> None:
    assert describe_study(request(remove="30%"))["studies"]["prune"]["removed"] == ["15%", "30%"]
    assert describe_study(request(remove="5"))["studies"]["prune"]["removed"] == [2, 5]
    assert describe_study(request(faster="20%"))["studies"]["prune"]["removed"] == [
        {"latency": "80%"}
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questions": None, "text": None}, "Give --questions FILE, --task NAME or --text FILE"),
        ({"task": "arc_easy"}, "--questions and --task: give only one"),
        ({"fit": "6GB", "faster": "20%"}, "--fit and --faster: give only one"),
        ({"fit": "6GB", "remove": "25%"}, "--remove and --fit: give only one"),
        ({"remove": "a third"}, "--remove a third: write a share.*such as 25%"),
        ({"faster": "120%"}, "--faster 120%: write a share"),
        ({"fit": "2"}, "--fit 2: write a memory with its unit, such as 6GB"),
        ({"fit": "half"}, "--fit half: write a memory"),
        ({"questions": Path("few.jsonl")}, "few.jsonl has 3 questions, too few"),
        ({"questions": Path("missing.jsonl")}, "--questions: there is no file missing.jsonl"),
        ({"text": Path("few.jsonl")}, 'few.jsonl.*"text"'),
    ],
)
def test_wrong_requests_are_refused_before_a_folder_is_written(
    workplace: Path, changes: dict[str, Any], message: str
) -> None:
    few = [{"query": f"w{index}", "choices": ["w1", "w2"], "gold": 0} for index in range(3)]
    write_lines(workplace / "few.jsonl", few)

    with pytest.raises(LaminaError, match=message):
        write_study(request(**changes))
    assert not Path("lamina-model").exists()


def test_with_text_the_recommendation_limits_its_perplexity(workplace: Path) -> None:
    with_text = describe_study(request())
    without_text = describe_study(request(text=None))

    assert with_text["report"] == {"keep": "95%", "general_text": 1.25}
    assert without_text["report"] == {"keep": "95%"}
