"""`lamina push`: upload an exported variant as a repository of the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from lamina.errors import LaminaError
from lamina.version import VERSION
from lamina_workflow.cost.forecast import format_bytes


class Upload:
    """The upload of an export to a repository, which may already exist."""

    def __init__(self, repository: str, is_private: bool) -> None:
        """Ask the hub about the repository.

        repository: `owner/name`
        is_private: Whether a new repository is private.

        Raises LaminaError if nobody is logged in, or the hub refuses.
        """
        if not get_token():
            raise LaminaError(
                "the hub takes uploads from those who are logged in. Run `hf auth login` with a "
                "token that may write, or set HF_TOKEN."
            )
        self.repository = repository
        self.is_private = is_private
        self._api = HfApi()
        with _explaining_refusals(repository):
            try:
                self.is_private = bool(self._api.repo_info(repository).private)
                self.exists = True
            except RepositoryNotFoundError:
                self.exists = False

    def describe(self, folder: Path) -> str:
        """What would be uploaded to which repository, and who could read it."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = format_bytes(sum(path.stat().st_size for path in files))
        visibility = "private" if self.is_private else "public: anyone can read it"
        state = "exists and is" if self.exists else "is new and will be"
        return (
            f"{len(files)} files ({size}) of {folder} go to {self._api.endpoint}/"
            f"{self.repository}. This repository {state} {visibility}."
        )

    def run(self, folder: Path, message: str) -> str:
        """Upload the files of an export, and return the address of the repository.

        Raises LaminaError if the hub refuses.
        """
        with _explaining_refusals(self.repository):
            if not self.exists:
                self._api.create_repo(self.repository, private=self.is_private)
            self._api.upload_folder(
                repo_id=self.repository,
                folder_path=folder,
                commit_message=f"{message}, by lamina {VERSION}",
            )
        return f"{self._api.endpoint}/{self.repository}"


@contextmanager
def _explaining_refusals(repository: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise LaminaError(f"{repository} is no name of a repository: {error}") from error
    except HfHubHTTPError as error:
        reason = " ".join(str(error.server_message or error).split())
        raise LaminaError(
            f"the hub refuses {repository}: {reason}. Check the name, and that your token may "
            "write there."
        ) from error
