"""What `lamina paper` writes: the studies of a paper, also on one small model.

`study` has the configuration, `data` the questions and texts in the place of the paper's own.
"""
