"""Facts about families that their modules do not show. `structure` reads everything else from the modules.

This module holds only data and does not import torch. An entry changes only the jobs of its own models.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Options of a family's configuration that change what its layers do."""

    # Without this option a norm stands on the stream itself: a layer without its sub-layers is not the identity.
    stream_norm_unless: str = ""
    # With this option a norm's output is the residual: taking a sub-layer out does not leave the stream alone.
    no_halves_if: str = ""
    # Positions enter by ALiBi, which counts places in the row; no option of the configuration says so.
    alibi: bool = False


FAMILIES: dict[str, Family] = {
    "bloom": Family(no_halves_if="apply_residual_connection_post_layernorm", alibi=True),
    "mpt": Family(alibi=True),
    "opt": Family(stream_norm_unless="do_layer_norm_before"),
}
