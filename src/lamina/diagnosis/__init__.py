"""Measurements of what the layers of an unpruned model do. Nothing is removed.

A kind of diagnosis is one module with its options, a subclass of `Diagnosis`, and a function

    diagnose(model, samples, options, token_budget) -> rows of table `diagnoses`

`samples` are those of a calibration. A diagnosis with `FILED = True` in its options has its own
`file` instead, which its `read_samples(path, tokenizer, options)` reads. `token_budget` bounds the
token positions of one forward pass, padding included.
"""

from lamina.paths import plugin_packages

__path__.extend(plugin_packages(__name__))
