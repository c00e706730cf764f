"""How far the output moves: L2 distance between its logits and the unpruned model's at scored positions [FinerCut]."""

METRIC = {"pass_": "removal", "column": "output_norm", "help": "how far the output moves, by its norm"}
