"""How far the output moves: L2 distance of its logits from the unpruned model's at the scored positions [FinerCut]."""

METRIC = {"pass_": "removal", "column": "output_norm", "help": "how far the output moves, by its norm"}
