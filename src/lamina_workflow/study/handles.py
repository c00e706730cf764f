"""Short names of variants, such as A3b. The report prints them and commands accept them.

The letters stand for model, calibration and selector, in the order of the configuration. The number
is the size, such as 3 or -2. A last letter, if any, stands for repair and healing. A new name
in the configuration can change the handles of other variants.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from lamina.errors import LaminaError
from lamina.variant import Variant
from lamina_workflow.config.configuration import Configuration
from lamina_workflow.study.requests import list_variants

TABLE = Path("results/tables/handles.parquet")
N_NEAREST = 5  # handles that an error message names

_HANDLE = re.compile(r"([a-z]+)(-?\d+)([a-z]*)", re.IGNORECASE)


def name_handles(config: Configuration) -> dict[str, str]:
    """The variants of all studies by their handles, in the order of the handles."""
    variants = list_variants(config)
    models_to_selectors = product(config.models, config.calibrations, config.selectors)
    used_keys = {variant.key for variant in variants}
    keys = [key for key in map("/".join, models_to_selectors) if key in used_keys]
    treatments = _order_treatments(config, variants)

    variant_by_handle: dict[tuple[int, int, int], Variant] = {}
    for variant in variants:
        treatment = treatments.index((variant.repair, variant.healing))
        variant_by_handle[keys.index(variant.key), variant.removed, treatment] = variant
    return {
        f"{_letters(key).upper()}{removed}{_letters(treatment - 1)}": str(variant)
        for (key, removed, treatment), variant in sorted(variant_by_handle.items())
    }


def _order_treatments(config: Configuration, variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """Pairs of repair and healing that variants have; the pair without either comes first."""
    healings_and_repairs = product(["none", *config.healings], ["none", *config.repairs])
    used_pairs = {(variant.repair, variant.healing) for variant in variants} | {("none", "none")}
    pairs = [(repair, healing) for healing, repair in healings_and_repairs]
    return [pair for pair in pairs if pair in used_pairs]


def _letters(index: int) -> str:
    """a, b, … z, aa, ab, …; empty for -1."""
    letters = ""
    while index >= 0:
        index, position = divmod(index, 26)
        letters = chr(ord("a") + position) + letters
        index -= 1
    return letters


def resolve_variant(text: str, table: Path = TABLE) -> str:
    """The name of a variant, from a handle of the last run or from the name itself.

    table: the handles of the run

    Raises LaminaError if there is no such handle, or if the text is neither a handle nor a name.
    """
    if not _HANDLE.fullmatch(text):
        return str(Variant.parse(text))
    if not table.is_file():
        raise LaminaError(
            f"'{text}' is a handle of a run, and there is no run in this folder ({table}). cd to "
            "the folder of the study, or run it here: lamina run"
        )
    from lamina.store import parquet  # not at the top, because a dry run imports this module

    variant_by_handle = {
        row["handle"]: str(Variant.of(row)) for row in parquet.read_table(table).to_pylist()
    }
    for handle, variant in variant_by_handle.items():
        if handle.lower() == text.lower():
            return variant
    nearest = ", ".join(_describe_nearest(text, variant_by_handle))
    raise LaminaError(f"there is no variant '{text}'. The nearest handles: {nearest or 'none'}.")


def _describe_nearest(text: str, variant_by_handle: Mapping[str, str]) -> Iterator[str]:
    """The handles most similar to a text, each with its variant."""
    handles = {handle.lower(): handle for handle in variant_by_handle}
    for name in difflib.get_close_matches(text.lower(), handles, N_NEAREST, cutoff=0.0):
        yield f"{handles[name]} ({variant_by_handle[handles[name]]})"
