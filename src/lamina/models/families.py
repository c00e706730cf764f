"""Facts about model families that their modules do not show.

`structure` reads everything else off the modules. This module holds only data and does not import
torch. An entry changes only the jobs of its own models.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FamilyOptions:
    """Options of a family's configuration that change what its layers do."""

    stream_norm_unless: str = ""
    """Without this option, a norm acts on the stream itself: a layer without its sub-layers is not
    the identity."""
    no_sublayers_if: str = ""
    """With this option, the residual is the output of a norm: the removal of a sub-layer would
    change the stream."""
    alibi: bool = False
    """Positions enter by ALiBi, which counts positions in the row. No option of the configuration
    says so."""


FAMILIES: dict[str, FamilyOptions] = {
    "bloom": FamilyOptions(no_sublayers_if="apply_residual_connection_post_layernorm", alibi=True),
    "mpt": FamilyOptions(alibi=True),
    "opt": FamilyOptions(stream_norm_unless="do_layer_norm_before"),
}
