"""How often the unpruned model would reject a draft by the cut model: 1 - mean of Σ_v min(p, q).

This is the total variation of base and f_-u: a token drafted from q is accepted with chance Σ_v min(p, q) [Leviathan et
al., arXiv 2211.17192, cor. 3.6].
"""

METRIC = {
    "pass_": "removal",
    "column": "output_tv",
    "help": "how often the model would reject the cut one's draft",
    "bound": 1.0,
}
