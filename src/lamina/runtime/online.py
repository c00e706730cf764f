"""Imported first by a script that may download: the workflow keeps all other jobs off the network.

Libraries read these settings when they are imported. A user who set HF_HUB_OFFLINE stays offline.
"""

import os

if "LAMINA_OFFLINE" in os.environ and not os.environ["LAMINA_OFFLINE"]:
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ.pop("HF_DATASETS_OFFLINE", None)
