"""Facts about model families that their modules do not show.

`structure` reads everything else off the modules. This module holds only data and does not import
torch. An entry changes only the jobs of its own models.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FamilyOptions:
    """Options of a family's configuration that change what its layers do."""

    stream_norm_unless: str = ""
    """Name of an option. Without it a norm acts on the stream itself, so a layer without its
    sub-layers is not the identity."""
    no_sublayers_if: str = ""
    """Name of an option. With it the residual is the output of a norm, so the removal of a
    sub-layer would change the stream."""
    alibi: bool = False
    """Whether positions enter by ALiBi, which counts them in the row. No option of the
    configuration shows this."""


FAMILIES: dict[str, FamilyOptions] = {
    "bloom": FamilyOptions(no_sublayers_if="apply_residual_connection_post_layernorm", alibi=True),
    "mpt": FamilyOptions(alibi=True),
    "opt": FamilyOptions(stream_norm_unless="do_layer_norm_before"),
}
