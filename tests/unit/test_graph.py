"""Functions of rules say what they take without being looked at again."""

import inspect
from types import SimpleNamespace

from lamina.workflow import graph


def test_a_function_keeps_its_signature_and_gives_it_away_at_once() -> None:
    def memory(wildcards: object, input: object, attempt: int = 1) -> int:
        return attempt

    def wrapped(w: object, **more: object) -> int:
        return 2

    names = list(inspect.signature(memory).parameters)
    held = SimpleNamespace(_file=SimpleNamespace(callable=wrapped))
    rule = SimpleNamespace(
        input=["a file", held], params=[3, None], resources={"mem": SimpleNamespace(_evaluator=memory)}
    )
    graph.tell_signatures([rule])
    assert inspect.signature(memory) is inspect.signature(memory)
    assert list(inspect.signature(memory).parameters) == names
    assert inspect.signature(wrapped).parameters["more"].kind is inspect.Parameter.VAR_KEYWORD
