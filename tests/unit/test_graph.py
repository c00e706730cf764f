"""Functions of rules say what they take without being looked at again."""

from types import SimpleNamespace

from snakemake.common import get_function_params, get_input_function_aux_params

from lamina.workflow import graph


def test_a_function_keeps_its_signature_and_gives_it_away_at_once() -> None:
    def memory(wildcards: object, input: object, attempt: int = 1) -> int:
        return attempt

    def wrapped(w: object, **more: object) -> int:
        return 2

    held = SimpleNamespace(_file=SimpleNamespace(callable=wrapped))
    rule = SimpleNamespace(
        input=["a file", held], params=[3, None], resources={"mem": SimpleNamespace(_evaluator=memory)}
    )
    graph.tell_signatures([rule])
    assert get_function_params(memory) is get_function_params(memory)
    told = {"input": 1, "attempt": 2, "threads": 3}
    assert get_input_function_aux_params(memory, told) == {"input": 1, "attempt": 2}
    assert get_input_function_aux_params(wrapped, told) == told
