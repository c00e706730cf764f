"""How often another token becomes the likeliest one: 1 - share of scored tokens where the argmax stays.

For greedy decoding that is how often a draft by f_-u would be rejected [Leviathan et al., arXiv 2211.17192].
"""
