"""Void layers, probes and patching equal plain computations, and the cases that can be worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from lamina.data import files
from lamina.diagnosis import patching, probe, void
from lamina.diagnosis.patching import Patching
from lamina.diagnosis.probe import Probe
from lamina.diagnosis.void import Void
from lamina.errors import LaminaError
from lamina.models.structure import layers_of
from lamina.report import answers, database
from lamina.store import parquet as store
from tests.given import tiny
from tests.given.plausible_tables import write_tables

ROOT = Path(__file__).parents[2]

TWO = pytest.mark.parametrize("family", ["llama", "gpt2"])


def by_measure(
    rows: list[dict[str, Any]], kind: str
) -> dict[tuple[str, int | None], dict[str, Any]]:
    store.from_rows("diagnoses", rows, model="m", calibration="c", diagnosis="d", kind=kind)
    return {(row["measure"], row.get("layer")): row for row in rows}


@TWO
def test_void_shares_are_those_of_a_plain_loop(family: str) -> None:
    model = tiny.model(family)
    sequences = [tiny.tokens(1, 5 + number % 6, seed=number)[0].tolist() for number in range(10)]
    found = by_measure(
        void.diagnose(model, tiny.samples(sequences, "choices", 3), Void(alpha=0.7), 40), "void"
    )
    counts = {part: np.zeros((5, 2)) for part in void.PARTS}
    for ids in sequences:
        streams = tiny.stream(model, torch.tensor([ids]), layers_of(model))
        for token in range(len(ids)):
            norms = [float(stream[0, token].norm()) for stream in streams]
            growth = [after - before for before, after in zip(norms, norms[1:], strict=False)]
            for layer in range(1, 5):
                empty = growth[layer] < 0.7 * (max(growth[:layer]) - min(growth[:layer]))
                for part in ("void", "void_prompt" if token < 3 else "void_response"):
                    counts[part][layer] += (empty, 1)
    for part, numbers in counts.items():
        for layer in range(1, 5):
            row = found[part, layer]
            assert row["value"] == pytest.approx(numbers[layer, 0] / numbers[layer, 1])
            assert row["ci_low"] <= row["value"] <= row["ci_high"] and row["n_samples"] == 10
            assert 0 <= row["control"] <= 1
    assert ("void", 0) not in found


def test_a_text_has_no_response() -> None:
    rows = void.diagnose(tiny.model(), tiny.samples(tiny.tokens(4, 8).tolist()), Void(), 40)
    assert {row["measure"] for row in rows} == {"void"}


@TWO
def test_a_label_planted_at_a_layer_is_read_from_there_on(family: str) -> None:
    model, planted = tiny.model(family), 3
    given = list(zip(tiny.tokens(120, 7).tolist(), "ab" * 60, strict=True))
    direction = torch.randn(32, generator=torch.Generator().manual_seed(1))

    def plant(module: Any, args: Any, output: Any) -> Any:
        stream = output[0] if isinstance(output, tuple) else output
        for line, ids in enumerate(current):
            stream[line] += (1 if given[number_of[ids]][1] == "a" else -1) * 40 * direction
        return output

    number_of = {ids: number for number, ids in enumerate(tuple(ids) for ids, _ in given)}
    current: list[tuple[int, ...]] = []

    def see(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        current[:] = [tuple(line) for line in ids.tolist()]

    handles = [
        model.base_model.register_forward_pre_hook(see, with_kwargs=True),
        layers_of(model)[planted - 1].register_forward_hook(plant),
    ]
    found = by_measure(probe.diagnose(model, given, Probe(file="x"), 200), "probe")
    assert found["depth_90", None]["value"] == planted
    for boundary in range(6):
        row = found["accuracy", boundary]
        assert (row["value"] > 0.95) == (boundary >= planted) and row["n_samples"] == 120
        assert (
            abs(row["control"] - 0.5) < 0.3
            and row["ci_low"] <= row["value"] <= row["ci_high"] + 1e-9
        )
        assert found["selectivity", boundary]["value"] == pytest.approx(
            row["value"] - row["control"]
        )
    for handle in handles:
        handle.remove()


@TWO
def test_a_probe_is_a_logistic_regression_on_standardised_streams(family: str) -> None:
    model = tiny.model(family)
    sequences = [tiny.tokens(1, 4 + number % 3, seed=number)[0].tolist() for number in range(50)]
    labels = np.array(["odd" if ids[-1] % 2 else "even" for ids in sequences])
    given = list(zip(sequences, labels, strict=True))
    found = by_measure(
        probe.diagnose(model, given, Probe(file="x", folds=4, strength=0.5, seed=2), 40), "probe"
    )
    streams = [tiny.stream(model, torch.tensor([ids]), layers_of(model)) for ids in sequences]
    for boundary in (0, 4):
        last = np.stack([stream[boundary][0, -1].numpy() for stream in streams])
        right = 0
        folds = probe._folds(sequences, labels, Probe(file="x", folds=4, strength=0.5, seed=2))
        for fold in range(4):
            train, test = folds != fold, folds == fold
            assert {
                sum(labels[test] == label) - sum(labels == label) // 4 for label in ("odd", "even")
            } <= {0, 1}
            mean, spread = last[train].mean(0), last[train].std(0)
            fitted = LogisticRegression(C=0.5, max_iter=300).fit(
                (last[train] - mean) / spread, labels[train]
            )
            right += int((fitted.predict((last[test] - mean) / spread) == labels[test]).sum())
        assert found["accuracy", boundary]["value"] == pytest.approx(right / 50)


def pairs(count: int = 12) -> list[patching.Pair]:
    """Prompts of two lengths that differ at their second token; what follows each is what the model would say."""
    model, found = tiny.model(), []
    for number in range(count):
        clean = tiny.tokens(1, 6 + number % 2, seed=number)[0].tolist()
        corrupt = [clean[0], (clean[1] + 7 - 4) % 60 + 4, *clean[2:]]
        right, foil = (
            int(model(torch.tensor([ids])).logits[0, -1].argmax()) for ids in (clean, corrupt)
        )
        if right != foil:
            found.append(patching.Pair(tuple(clean), tuple(corrupt), right, foil))
    return found


@torch.no_grad()
@TWO
def test_patching_is_a_run_with_one_stream_swapped(family: str) -> None:
    model, given = tiny.model(family), pairs()
    found = by_measure(
        patching.diagnose(model, given, Patching(file="x", least=1e-3), 60), "patching"
    )
    layers, shares = layers_of(model), []
    for pair in given:
        clean, corrupt = torch.tensor([pair.clean]), torch.tensor([pair.corrupt])
        streams = tiny.stream(model, clean, layers)

        def difference(ids: torch.Tensor, pair: patching.Pair = pair) -> float:
            logits = model(ids).logits[0, -1]
            return float(logits[pair.right] - logits[pair.foil])

        gap = difference(clean) - difference(corrupt)
        if gap < 1e-3:
            continue
        row = []
        for boundary in range(5):
            for place in (1, slice(2, -1), -1):
                handle = swapping(layers[boundary], place, streams[boundary])
                patched = difference(corrupt)
                handle.remove()
                row.append((patched - difference(corrupt)) / gap)
        shares.append(row)
    assert found["usable", None]["value"] == pytest.approx(len(shares) / len(given))
    means = np.mean(shares, 0).reshape(5, 3)
    for boundary in range(5):
        for place, name in enumerate(("changed", "between", "last")):
            row = found[f"recovery_{name}", boundary]
            assert row["value"] == pytest.approx(means[boundary, place], abs=2e-4) and row[
                "n_samples"
            ] == len(shares)
    assert found["recovery_changed", 0]["value"] == pytest.approx(1, abs=1e-4), (
        "the embedding is all that differs"
    )
    assert found["noise_changed", 0]["value"] == pytest.approx(1, abs=1e-4)


def swapping(layer: Any, place: Any, stream: torch.Tensor) -> Any:
    """A hook that lets `stream` enter a layer at a place."""

    def swap(module: Any, args: Any, kwargs: Any) -> None:
        (args[0] if args else kwargs["hidden_states"])[0, place] = stream[0, place]

    return layer.register_forward_pre_hook(swap, with_kwargs=True)


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "given.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"text": "w1"}, "line 7: `label` is missing"),
        ({"text": 3, "label": "a"}, "line 7: `text` is missing or no text"),
        ({"text": "w1", "label": "c"}, "only 1 of 'c'"),
    ],
)
def test_labelled_texts_are_refused_in_words(tmp_path: Path, line: Any, words: str) -> None:
    lines = [{"text": f"w{n}", "label": "ab"[n % 2]} for n in range(6)]
    with pytest.raises(LaminaError, match=words):
        files.labelled(write(tmp_path, *lines, line), "diagnoses.p.file", 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"foil": None}, "line 1: `foil` is missing"),
        ({"corrupt": "w1 w2"}, "`clean` and `corrupt` are both"),
        ({"corrupt": "w1 w2 w3"}, "`clean` has 2 tokens and `corrupt` 3"),
        ({"foil": "w4 w7"}, "begin with the same token"),
    ],
)
def test_pairs_are_refused_in_words(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    line = {"clean": "w1 w2", "corrupt": "w1 w3", "right": "w4", "foil": "w5"}
    with pytest.raises(LaminaError, match=words):
        patching.read(write(tmp_path, line | change), tiny.tokenizer(), Patching(file="x"))


def test_pairs_that_the_model_does_not_tell_apart_are_refused() -> None:
    with pytest.raises(LaminaError, match="tells none of the"):
        patching.diagnose(tiny.model(), pairs(), Patching(file="x", least=1e6), 60)


def test_correlations_with_relevance_are_those_of_scipy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values, scores = rng.integers(0, 4, 9) / 4, rng.normal(size=9)
    key = dict(model="m", calibration="c", layer=0, n_samples=30)
    told = key | dict(diagnosis="d", kind="void", measure="void")
    rows = [told | dict(layer=n, value=value) for n, value in enumerate(values)]
    base = key | dict(selector="base", removed=0, metric="accuracy", component="layer")
    relevance = [base | dict(unit=str(n), layer=n, score=score) for n, score in enumerate(scores)]
    files = write_tables(tmp_path, diagnoses=rows, relevance=relevance)
    sql = (ROOT / "sql/queries/which_diagnosis_tells_what_can_go.sql").read_text(encoding="utf-8")
    found = {
        row["measure"]: row
        for row in answers.rows(database.connect(ROOT / "sql/views.sql", files), sql)
    }
    for measure, x in (("void", values), ("depth", np.arange(9))):
        assert found[measure]["pearson"] == pytest.approx(
            stats.pearsonr(x, scores).statistic, abs=1e-3
        )
        spearman = stats.spearmanr(x, scores).statistic
        assert found[measure]["spearman"] == pytest.approx(spearman, abs=1e-3)
        assert (
            found[measure]["ci_low"] < spearman < found[measure]["ci_high"]
            and found[measure]["n_layers"] == 9
        )
