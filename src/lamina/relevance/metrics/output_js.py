"""How different the output distribution is, symmetrically: JS(base, f_-u) of next tokens, in nats [FinerCut]."""

METRIC = {
    "pass_": "removal",
    "column": "output_js",
    "help": "Jensen-Shannon divergence of the output",
    "bound": 0.6931471805599453,  # ln 2
}
