"""How far the output turns: 1 - cos of its logits and those of the unpruned model at scored positions [FinerCut]."""

METRIC = {"pass_": "removal", "column": "output_cosine", "help": "how far the output turns", "bound": 2.0}
