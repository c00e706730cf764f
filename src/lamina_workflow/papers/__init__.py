"""What `lamina paper` writes: the studies of a paper, optionally on one small model.

`study` makes the configuration, `data` the questions and texts that replace the paper's own.
"""
