"""How far the output turns: 1 - cos of its logits and the unpruned model's at the scored positions [FinerCut]."""

METRIC = {"pass_": "removal", "column": "output_cosine", "help": "how far the output turns", "bound": 2.0}
