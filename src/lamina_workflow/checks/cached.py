"""Check that models of the hub are in the cache when offline; others are refused before any job."""

from pathlib import Path

from lamina import paths
from lamina.errors import LaminaError
from lamina.models import checkpoint, gguf
from lamina.options.models import Model
from lamina.store.checksum import read_json
from lamina_workflow.checks.files import model_key
from lamina_workflow.config.configuration import Configuration


def check_cached(config: Configuration, root: Path) -> None:
    """Refuse models of the hub that are neither prepared nor in the cache of the hub's client.

    Raises LaminaError, whose message names the model and says how to get it.
    """
    for name, model in config.models.items():
        is_local = gguf.is_gguf(model.source) or (root / model.source).is_dir()
        if not is_local and not _is_prepared(name, root):
            _check_snapshot(f"{model_key(config, name)}.source", model)


def _check_snapshot(entry_key: str, model: Model) -> None:
    """Refuse a model whose snapshot is not in the cache or cannot be loaded."""
    # Slow to import, and most runs are online.
    from huggingface_hub import errors, snapshot_download

    try:
        snapshot = snapshot_download(model.source, revision=model.revision, local_files_only=True)
    except errors.LocalEntryNotFoundError as error:
        download = f"hf download {model.source} --revision {model.revision}"
        raise LaminaError(
            f"{entry_key}: '{model.source}' (revision '{model.revision}') is not in the hub's "
            "cache, and HF_HUB_OFFLINE forbids downloads. Unset HF_HUB_OFFLINE for this run, run "
            f"`{download}` on a machine with network access, or write a folder here."
        ) from error
    folder = Path(snapshot)
    settings = checkpoint.read_settings(folder, entry_key, model.source)
    checkpoint.check_loadable(folder, settings, entry_key, model.source)


def _is_prepared(name: str, root: Path) -> bool:
    manifest = root / paths.manifest(name)
    return manifest.is_file() and (root / read_json(manifest)["path"]).is_dir()
