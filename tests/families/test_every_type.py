"""Every type in the causal-LM mapping of transformers is swept rightly or refused, as docs/families.md says."""

import pytest

from tests.families import configurations, table
from tests.given.slow import slow_but

# What the tests of every day try: each kind of layer, and every 24th type.
HYBRIDS = {"bamba", "deepseek_v32", "gemma4_text", "gpt_oss", "jamba", "lfm2", "llama4_text", "qwen3_next"}
EVERY_DAY = HYBRIDS | set(configurations.TYPES[::24])


@pytest.mark.parametrize(
    "model_type",
    slow_but(EVERY_DAY, configurations.TYPES),
)
def test_a_type_is_right_or_refused(model_type: str) -> None:
    outcomes = table.tried(model_type)
    assert not {trial: told for trial, told in outcomes.items() if told.startswith(("WRONG", "CRASH"))}
    told, known = table.row(model_type, outcomes), table.rows()[model_type]
    assert told.split("|")[:3] == known.split("|")[:3]
