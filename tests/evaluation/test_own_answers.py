"""Calibrations of what a model answers itself, against transformers' own generation and lm-eval's own exact match."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples
from lamina.data.encoding import open_encoder
from lamina.data.lm_tasks import task_object
from lamina.data.prepare import draw_tasks, prepare_calibration
from lamina.data.prompts import Style
from lamina.errors import LaminaError
from lamina.evaluation.generation import own_answers
from lamina.models.load import load_folder, load_tokenizer
from lamina.models.manifest import describe_model
from lamina.options.calibrations import Calibration as Entry
from lamina.options.models import Model
from lamina_workflow.checks.load import load_configuration
from lamina_workflow.stages.prepare import GenerateAnswers, PrepareCalibration
from tests.given import tiny
from tests.given.configurations import minimal_config, set_key, write_model_and_data
from tests.given.scripts import make_wildcards
from tests.given.tasks import evaluate_with_lm_eval

LONGEST, QUESTIONS, EOS, STOP = 5, 36, 2, 34  # the stop is w30
TASK: dict[str, Any] = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"train": "mine.jsonl", "test": "mine.jsonl"}},
    "output_type": "generate_until",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": {
        "until": ["w30"],
        "do_sample": True,
        "temperature": 0.7,
        "max_gen_toks": LONGEST,
    },
    "metric_list": [{"metric": "exact_match", "regexes_to_ignore": [r"^\s+|\s+$"]}],
}
OWN = {"task": "mine", "answers": "model"}


def plainly(
    model: PreTrainedModel, prompt: tuple[int, ...], most: int = LONGEST, stop: int = EOS
) -> tuple[int, ...]:
    """What transformers alone writes, up to the first end or stop and with it."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        found = model.generate(
            ids, do_sample=False, max_new_tokens=most, attention_mask=torch.ones_like(ids)
        )
    written = found[0, len(prompt) :].tolist()
    ended = [place for place, token in enumerate(written) if token in (EOS, stop)]
    return tuple(written[: ended[0] + 1] if ended else written)


class Place:
    """A folder with a task of generated answers, a model and its tokenizer."""

    def __init__(self, root: Path) -> None:
        self.root, folder = root, root / "model"
        model = tiny.model()
        with torch.no_grad():
            model.lm_head.weight[EOS] *= 1.2
        model.save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
        self.manifest = describe_model("tiny", Model(source=str(folder), dtype="float32"), folder)
        self.model, self.tokenizer = (
            load_folder(str(folder), "float32", False),
            load_tokenizer(self.manifest),
        )
        draw, records = random.Random(0), []
        for number in range(QUESTIONS):
            query = " ".join(draw.choices(tiny.WORDS, k=draw.randint(2, 9)))
            written = plainly(self.model, tuple(self.tokenizer(query)["input_ids"]), stop=STOP)
            right = self.tokenizer.decode([token for token in written if token not in (EOS, STOP)])
            records.append({"q": query, "a": right if number % 3 and right else "w1 w2"})
        (root / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))
        texts = [" ".join(draw.choices(tiny.WORDS, k=draw.randint(2, 9))) for _ in range(12)]
        (root / "texts.json").write_text(json.dumps(texts))
        self.task()

    def task(self, **changes: Any) -> None:
        (self.root / "workflow/tasks").mkdir(parents=True, exist_ok=True)
        (self.root / "workflow/tasks/mine.yaml").write_text(yaml.safe_dump(TASK | changes))

    def questions(self, entry: dict[str, Any]) -> CalibrationSamples:
        return prepare_calibration("own", Entry.from_options(entry), self.manifest, self.root)

    def answered(self, entry: dict[str, Any], file: str = "own.parquet") -> CalibrationSamples:
        """As the three jobs of the workflow do it."""
        own, lm = Entry.from_options(entry), open_encoder(self.model, self.tokenizer)
        tasks = [task for task, _ in draw_tasks("own", own, lm, Style.of(self.manifest), self.root)]
        made = own_answers(own, self.questions(entry), tasks, self.model, self.tokenizer)
        calibrations.write_calibration(self.root / file, made)
        return prepare_calibration(
            "own", own, self.manifest, self.root, written={"own": str(self.root / file)}
        )


@pytest.fixture
def given(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_own_answers_are_those_of_transformers_prompt_by_prompt(given: Place) -> None:
    """Whatever the task file says of sampling; questions, and what finds them among test documents, are the same."""
    made, gold = given.answered(OWN), given.questions(OWN)
    rows = [sample.rows[0] for sample in made.samples]
    assert [row.continuation for row in rows] == [
        plainly(given.model, row.context, stop=STOP) for row in rows
    ]
    assert (
        len({len(row.continuation) for row in rows}) > 2
    )  # some end by themselves, some at the stop, some nowhere
    assert {row.continuation[-1] for row in rows} >= {EOS, STOP}
    assert [row.context for row in rows] == [sample.rows[0].context for sample in gold.samples]
    mine, theirs = ([(s.document, s.runs, s.index) for s in each.samples] for each in (made, gold))
    assert mine == theirs
    assert (
        made.facts["n_asked"] == made.facts["n_samples"] == QUESTIONS
        and made.facts["temperature"] == 0
    )
    assert "n_asked" not in gold.facts and gold.facts == given.questions({"task": "mine"}).facts


def test_penalties_of_the_model_and_of_the_task_do_not_count(given: Place) -> None:
    """Of Qwen2.5 and its like, which are published with a repetition penalty."""
    text = {
        "text": str(given.root / "texts.json"),
        "documents": None,
        "length": 12,
        "prompt": 4,
        "answers": "model",
    }
    asked, continued = given.answered(OWN).samples, given.answered(text).samples
    given.task(generation_kwargs=TASK["generation_kwargs"] | {"repetition_penalty": 1.8})
    given.model.generation_config.repetition_penalty = 1.8
    given.model.generation_config.no_repeat_ngram_size = 2
    assert given.answered(OWN).samples == asked
    assert given.answered(text).samples == continued
    repeated = [sample.rows[0] for sample in asked]
    penalised = [plainly(given.model, row.context, stop=STOP) for row in repeated]
    assert penalised != [row.continuation for row in repeated]


def test_texts_go_on_after_their_first_tokens(given: Place) -> None:
    entry = {
        "text": str(given.root / "texts.json"),
        "documents": None,
        "length": 12,
        "prompt": 4,
        "answers": "model",
    }
    made = given.answered(entry)
    for sample, gold in zip(made.samples, given.questions(entry).samples, strict=True):
        (row,) = sample.rows
        assert row.context == gold.sequence()[:4] and sample.kind == "text"
        assert row.continuation == plainly(given.model, row.context, 12 - len(row.context))
    assert made.facts["n_right"] is None and made.facts["n_samples"] == 12


def test_right_answers_are_those_that_lm_eval_calls_right(given: Place) -> None:
    kept, everything = given.answered(OWN | {"keep": "right"}), given.answered(OWN)
    given.task(
        generation_kwargs=TASK["generation_kwargs"] | {"do_sample": False, "temperature": 0.0}
    )
    found = evaluate_with_lm_eval(given.model, task_object("mine", given.root, split="train"))[
        "samples"
    ]["mine"]
    right = [sample["exact_match"] > 0 for sample in sorted(found, key=lambda each: each["doc_id"])]
    assert 10 <= sum(right) < QUESTIONS
    wanted = [sample.rows for sample, one in zip(everything.samples, right, strict=True) if one]
    assert [sample.rows for sample in kept.samples] == wanted
    assert [sample.index for sample in kept.samples] == list(range(sum(right)))
    for made in (kept, everything):
        assert (made.facts["n_asked"], made.facts["n_right"]) == (QUESTIONS, sum(right))


def test_drawn_answers_depend_on_the_seed_and_on_nothing_else(given: Place) -> None:
    drawn = OWN | {"temperature": 1.5}
    first, again, other = (given.answered(drawn | {"seed": seed}).samples for seed in (0, 0, 1))
    assert first == again != other
    cold = given.answered(OWN | {"temperature": 1e-6}).samples
    assert cold == given.answered(OWN).samples != first


def test_a_mixture_holds_the_own_answers_of_its_part(given: Place) -> None:
    wanted = [*given.answered(OWN).samples, *given.questions(OWN).samples]
    parts = {"own": Entry.from_options(OWN), "gold": Entry.from_options({"task": "mine"})}
    entry = Entry.from_options({"mixture": {"own": 1, "gold": 1}, "limit": 2 * QUESTIONS})
    made = prepare_calibration(
        "both", entry, given.manifest, given.root, parts, {"own": str(given.root / "own.parquet")}
    )
    assert [sample.rows for sample in made.samples] == [sample.rows for sample in wanted]


def test_what_has_no_own_answers_is_refused(given: Place) -> None:
    records = [
        json.loads(line) | {"a": "w1 w2"}
        for line in (given.root / "mine.jsonl").read_text().splitlines()
    ]
    (given.root / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = f"calibrations.own.keep: the model answers 0 of {QUESTIONS} questions right.*Write keep: all, a larger"
    with pytest.raises(LaminaError, match=words):
        given.answered(OWN | {"keep": "right"})
    given.task(metric_list=[{"metric": "bleu"}])
    with pytest.raises(
        LaminaError, match="calibrations.own.keep: task 'mine' has no exact_match.*Write keep: all"
    ):
        given.questions(OWN | {"keep": "right"})
    given.task(output_type="loglikelihood")
    with pytest.raises(
        LaminaError, match="calibrations.own.answers: task 'mine' scores by loglikelihood"
    ):
        given.questions(OWN)


CHOICES = (
    "task 'microworld_recall' scores by multiple_choice.*Write answers: gold, or .*generate_until"
)


@pytest.mark.parametrize(
    ("where", "entry", "words"),
    [
        (
            "recall",
            {"task": "microworld_recall", "answers": "model"},
            f"calibrations.recall.answers: {CHOICES}",
        ),
        (
            "mine",
            {"choices": "mine.jsonl", "answers": "model"},
            "calibrations.mine.answers: .*Leave `answers` out",
        ),
        (
            "recall",
            {"task": "microworld_sorting", "keep": "right"},
            "calibrations.recall.keep: .*add `answers: model`",
        ),
        (
            "corpus",
            {"text": "microworld_corpus", "temperature": 1},
            "corpus.temperature: .*answers: model",
        ),
        (
            "corpus",
            {"text": "microworld_corpus", "answers": "model", "prompt": 128},
            "prompt: .*shorter than `length`",
        ),
    ],
)
def test_a_configuration_is_refused_before_any_job(
    tmp_path: Path, where: str, entry: Any, words: str
) -> None:
    (tmp_path / "resources").symlink_to(Path("resources").resolve())
    with pytest.raises(LaminaError, match=words):
        load_configuration(
            set_key(minimal_config(), f"calibrations.{where}", entry),
            write_model_and_data(tmp_path),
        )


def test_jobs_of_other_calibrations_have_the_options_that_they_had(tmp_path: Path) -> None:
    """What the model answers depends on all keys of its calibration, and on its family."""
    raw, wildcards = minimal_config(), {"model": "small"}
    raw["calibrations"]["own"] = {
        "task": "microworld_sorting",
        "answers": "model",
        "temperature": 0.5,
    }
    config = load_configuration(raw, write_model_and_data(tmp_path))
    for name in ("recall", "mixture", "corpus", "mine"):
        options = PrepareCalibration.of(
            config, make_wildcards(**wildcards, calibration=name)
        ).options()
        assert (
            not {"answers", "keep", "temperature", "prompt"} & options["entry"].keys()
            and "answers" not in options
        )
    options = GenerateAnswers.of(config, make_wildcards(**wildcards, calibration="own")).options()
    assert options["entry"] == {
        "task": "microworld_sorting",
        "answers": "model",
        "temperature": 0.5,
    }
    assert (
        options["follows"].keys() == {"family"}
        and load_configuration(config.plain(), tmp_path) == config
    )
