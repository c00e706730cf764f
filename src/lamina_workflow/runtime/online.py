"""A script that may download imports this first: the workflow keeps all other jobs off the network.

Libraries read these settings on import. A user who set HF_HUB_OFFLINE stays offline.
"""

import os
from collections.abc import Mapping

_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads it


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether the user has forbidden downloads.

    The workflow sets HF_HUB_OFFLINE for its jobs; LAMINA_OFFLINE keeps what the user set before.
    """
    setting = environment.get("LAMINA_OFFLINE", environment.get("HF_HUB_OFFLINE", ""))
    return setting.upper() in _TRUE


if "LAMINA_OFFLINE" in os.environ and not is_offline(os.environ):
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ.pop("HF_DATASETS_OFFLINE", None)
