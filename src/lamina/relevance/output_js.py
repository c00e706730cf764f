"""How differently the output is distributed, symmetrically: JS(base, f_-u) of next tokens, in nats [FinerCut]."""
