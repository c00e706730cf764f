"""Short fine-tunes of a pruned model.

A method of healing is one module with its options and two functions, `heal` and `save`:

    lora        low-rank updates of projections, patches of a repair, or both
    full        all weights, from the pruned ones or from random ones

Both use what no method needs to repeat:

    objectives  the loss: language modelling, distillation, distance of residual streams
    batches     which samples are held out, and which of the others make each optimiser step
    training    the optimiser steps, validation, the choice of the epoch, saved progress
    adapter     the two files of a trained variant
"""

from lamina.paths import plugin_packages

__path__.extend(plugin_packages(__name__))
