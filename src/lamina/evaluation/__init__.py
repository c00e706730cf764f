"""Benchmarks of variants: what a pruned model can still do, and what its pruning saves.

    tasks        lm-eval's tasks and groups: choices by their likelihood
    generation   answers that the model writes to a task, and calibrations made of them
    perplexity   documents, apart or joined
    efficiency   latency, throughput and memory, each variant in turn with the base model

The first three score one model. `measuring` runs such a score on many variants: `assembly` reads
the files of each variant and materialises it. `together` takes the likelihoods of several variants
from one pass of the engine, if they differ from the base model only by removed units and linear
patches.
"""
