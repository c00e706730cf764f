"""Which programs load an export: the same as its card says."""

import pytest

from lamina.models.export.runtimes import RUNTIMES, ExportTraits, list_runtimes

PLAIN = {
    "decoder": "llama",
    "has_code": False,
    "shifts_kinds": False,
    "lacks_attention": False,
    "runs_code_in_vllm": True,
}


@pytest.mark.parametrize(
    ("traits", "runtimes"),
    [
        ({}, RUNTIMES),
        ({"lacks_attention": True}, RUNTIMES),  # it is there, as zeros
        ({"shifts_kinds": True, "decoder": "gemma3_text"}, ("transformers", "vllm")),
        ({"shifts_kinds": True, "decoder": "gpt_oss"}, ("transformers",)),
        ({"has_code": True}, ("vllm",)),
        ({"has_code": True, "lacks_attention": True}, ()),
        ({"has_code": True, "runs_code_in_vllm": False}, ()),
    ],
)
def test_where_an_export_loads(traits, runtimes):
    assert list_runtimes(ExportTraits(**PLAIN | traits)) == runtimes
