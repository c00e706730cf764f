"""What makes a large graph of jobs quick."""

import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from snakemake.common import overwrite_function_params


def tell_signatures(rules: Iterable[Any]) -> None:
    """Write down what the functions of rules take, which Snakemake would find out anew at each of their calls."""
    for rule in rules:
        given = [*rule.input, *rule.params, *(resource._evaluator for resource in rule.resources.values())]
        for place in given:
            function = getattr(getattr(place, "_file", place), "callable", place)
            if isinstance(function, FunctionType):
                overwrite_function_params(function, inspect.signature(function).parameters)
