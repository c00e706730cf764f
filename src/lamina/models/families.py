"""What the modules of a family do not tell. Everything else is found by what they are and do (`structure`).

Only data, without torch. An entry changes the jobs of its own models alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Options of a family's configuration that change what its layers do.

    Attributes
    ----------
    stream_norm_unless : without this option a norm stands on the residual stream itself, after the sum, so that a layer
        without its sub-layers is not the identity.
    no_halves_if : with this option a norm's output is the residual, so that taking a sub-layer out does not leave the
        stream alone.
    alibi : positions enter by ALiBi, which counts places in the row, and no option says so.
    """

    stream_norm_unless: str = ""
    no_halves_if: str = ""
    alibi: bool = False


FAMILIES: dict[str, Family] = {
    "bloom": Family(no_halves_if="apply_residual_connection_post_layernorm", alibi=True),
    "mpt": Family(alibi=True),
    "opt": Family(stream_norm_unless="do_layer_norm_before"),
}
