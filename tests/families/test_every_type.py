"""Every type in the causal-LM mapping of transformers is swept rightly or refused, as docs/families.md says."""

import pytest

from tests.families import configurations, table


@pytest.mark.parametrize("model_type", configurations.TYPES)
def test_a_type_is_right_or_refused(model_type: str) -> None:
    outcomes = table.tried(model_type)
    assert not {trial: told for trial, told in outcomes.items() if told.startswith(("WRONG", "CRASH"))}
    told, known = table.row(model_type, outcomes), table.rows()[model_type]
    assert told.split("|")[:3] == known.split("|")[:3]
