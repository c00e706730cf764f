"""What commands of `lamina` do with one variant: `judge` it, `chat` with it, `push` it to the hub.

They import torch or the hub's client, so `lamina_workflow.cli` imports each only when it is called.
"""
