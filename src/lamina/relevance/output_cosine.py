"""How far the output turns: 1 - cos of its logits and the unpruned model's at the scored positions [FinerCut]."""
