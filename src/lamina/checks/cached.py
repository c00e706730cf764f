"""Models of the hub where nothing may be downloaded: they are in the cache, or refused before the first job."""

from pathlib import Path

from lamina.checks.files import entry_of
from lamina.config.configuration import Configuration
from lamina.errors import LaminaError
from lamina.models import checkpoint, gguf
from lamina.store.checksum import read_json
from lamina.study import paths


def check_cached(config: Configuration, root: Path) -> None:
    """Refuse models of the hub that are neither prepared nor in the cache of the hub's client.

    Raises LaminaError, which names the model and says how to get it.
    """
    for name, model in config.models.items():
        is_local = gguf.is_gguf(model.source) or (root / model.source).is_dir()
        if is_local or _is_prepared(name, root):
            continue
        from huggingface_hub import errors, snapshot_download

        where = f"{entry_of(config, name)}.source"
        download = f"hf download {model.source} --revision {model.revision}"
        try:
            folder = Path(
                snapshot_download(model.source, revision=model.revision, local_files_only=True)
            )
        except errors.LocalEntryNotFoundError as error:
            raise LaminaError(
                f"{where}: '{model.source}' of revision '{model.revision}' is not in the cache of the hub, and "
                f"HF_HUB_OFFLINE lets nothing be downloaded. Unset it for once, or run `{download}` where there is a "
                "network, or write a folder here."
            ) from error
        settings = checkpoint.read_settings(folder, where, model.source)
        checkpoint.check_loadable(folder, settings, where, model.source)


def _is_prepared(name: str, root: Path) -> bool:
    manifest = root / paths.manifest(name)
    return manifest.is_file() and (root / read_json(manifest)["path"]).is_dir()
