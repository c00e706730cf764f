"""A hub on the loopback: what huggingface_hub and datasets ask for models and data sets."""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

UPLOAD_TOKEN = "hf_writer"
_ID = r"(?P<id>[^/]+/[^/]+)"
_API_PATH = re.compile(
    rf"/api/(?P<kind>models|datasets)/{_ID}(/(?P<query>revision|tree|paths-info)/(?P<rest>.+))?"
)
_WRITE_PATH = re.compile(rf"/api/models/{_ID}/(?P<action>preupload|commit)/main")
_FILE_PATH = re.compile(
    rf"/(?P<kind>datasets/)?{_ID}/resolve/(?P<revision>[^/]+)/(?P<file_name>.+)"
)


@dataclass(frozen=True)
class Repository:
    """What the hub holds under one id; every revision in `revisions` is the same commit.

    gated: the status with which requests without `token` are refused; 0 if none are.
    n_breaks: how many transfers of weights and rows break: the first in the middle, the others
        before they begin.
    """

    folder: Path
    gated: int = 0
    token: str = "none"
    n_breaks: int = 0
    revisions: tuple[str, ...] = ("main",)
    is_private: bool = False

    @property
    def commit(self) -> str:
        """40 digits that follow from the folder's name."""
        return hashlib.sha1(self.folder.name.encode()).hexdigest()

    def list_files(self) -> dict[str, Path]:
        """Every file by its path in the repository."""
        files: dict[str, Path] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                files[path.relative_to(self.folder).as_posix()] = path
        return files

    def list_tree(self) -> list[dict[str, Any]]:
        """Files and folders as the hub lists them."""
        folder_names: set[str] = set()
        files: list[dict[str, Any]] = []
        for name, path in self.list_files().items():
            folder_names.update(str(parent) for parent in Path(name).parents)
            size = path.stat().st_size
            files.append({"type": "file", "path": name, "oid": hash_file(path), "size": size})
        folders: list[dict[str, Any]] = []
        for name in sorted(folder_names - {"."}):
            folders.append({"type": "directory", "path": name, "oid": self.commit, "size": 0})
        return folders + files


def hash_file(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


class Request(NamedTuple):
    """One request; `byte_range` is "" where the whole file is asked for."""

    method: str
    path: str
    byte_range: str


@dataclass
class Hub:
    """Repositories by kind ("models", "datasets") and id, and what was asked of them.

    n_transfers: how many transfers of weights and rows began, by folder.
    uploads: a folder for repositories that clients create, as those with `UPLOAD_TOKEN` may.
    """

    repositories: dict[tuple[str, str], Repository]
    requests: list[Request] = field(default_factory=list)
    n_transfers: Counter[Path] = field(default_factory=Counter)
    address: str = ""
    uploads: Path | None = None

    def downloaded_ranges(self, path_part: str) -> list[str]:
        """The ranges ("" for a whole file) of downloads whose path holds `path_part`."""
        ranges: list[str] = []
        for request in self.requests:
            is_download = request.method == "GET" and "/resolve/" in request.path
            if is_download and path_part in request.path:
                ranges.append(request.byte_range)
        return ranges


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address`, served by a thread."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        n_body_bytes = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(n_body_bytes)
        path = unquote(urlsplit(self.path).path)
        byte_range = self.headers.get("Range") or ""
        self.hub.requests.append(Request(self.command, path, byte_range))

        if self.command == "POST" and self.hub.uploads is not None:
            return self._accept(path, body)
        match = _API_PATH.fullmatch(path) or _FILE_PATH.fullmatch(path)
        if match is None:
            return self._refuse(404, "EntryNotFound")
        address = match.groupdict()
        kind = (address["kind"] or "models").strip("/")
        repository = self.hub.repositories.get((kind, address["id"]))
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        if repository.gated and self.headers.get("Authorization") != f"Bearer {repository.token}":
            return self._refuse(repository.gated, "GatedRepo")
        location = address.get("revision") or address.get("rest") or "main"
        revision, _, subfolder = location.partition("/")
        if revision not in (*repository.revisions, repository.commit):
            return self._refuse(404, "RevisionNotFound")

        if "file_name" in address:
            return self._send_file(repository, address["file_name"], byte_range)
        if address["query"] == "paths-info":
            return self._send_json(self._select_paths(repository, body))
        if address["query"] == "tree":
            return self._send_json(self._list_folder(repository, subfolder))
        return self._send_json(self._describe(repository, address["id"]))

    def _accept(self, path: str, body: bytes) -> None:
        """Create a repository, or take the files of one."""
        if self.headers.get("Authorization") != f"Bearer {UPLOAD_TOKEN}":
            return self._refuse(403, "Forbidden")
        if path == "/api/validate-yaml":
            return self._send_json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        match = _WRITE_PATH.fullmatch(path)
        repository = self.hub.repositories.get(("models", match["id"])) if match else None
        if match is None or repository is None:
            return self._refuse(404, "RepoNotFound")
        if match["action"] == "preupload":
            names = [entry["path"] for entry in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            return self._send_json({"files": modes})
        for line in body.splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                file = repository.folder / operation["value"]["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(operation["value"]["content"]))
        commit_url = f"{self.hub.address}/{match['id']}/commit/{repository.commit}"
        return self._send_json({"commitUrl": commit_url, "commitOid": repository.commit})

    def _create(self, request: dict[str, Any]) -> None:
        repository_id = f"{request['organization']}/{request['name']}"
        assert self.hub.uploads is not None
        folder = self.hub.uploads / repository_id
        folder.mkdir(parents=True)
        self.hub.repositories["models", repository_id] = Repository(
            folder, is_private=request["visibility"] == "private"
        )
        return self._send_json({"url": f"{self.hub.address}/{repository_id}"})

    def _select_paths(self, repository: Repository, body: bytes) -> list[dict[str, Any]]:
        is_json = body.startswith(b"{")
        request = json.loads(body) if is_json else parse_qs(body.decode())
        return [entry for entry in repository.list_tree() if entry["path"] in request["paths"]]

    def _list_folder(self, repository: Repository, folder: str) -> list[dict[str, Any]]:
        is_recursive = "recursive=true" in self.path.lower()
        entries: list[dict[str, Any]] = []
        for entry in repository.list_tree():
            name = entry["path"]
            if folder and not name.startswith(f"{folder}/"):
                continue
            is_nested = "/" in name[len(folder) :].strip("/")
            if is_recursive or not is_nested:
                entries.append(entry)
        return entries

    def _describe(self, repository: Repository, repository_id: str) -> dict[str, Any]:
        return {
            "id": repository_id,
            "sha": repository.commit,
            "siblings": [{"rfilename": name} for name in repository.list_files()],
            "private": repository.is_private,
            "tags": [],
        }

    def _send_file(self, repository: Repository, name: str, byte_range: str) -> None:
        path = repository.list_files().get(name)
        if path is None:
            return self._refuse(404, "EntryNotFound")
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hash_file(path)}"',
            "X-Repo-Commit": repository.commit,
            "Accept-Ranges": "bytes",
        }
        status = 200
        data = content
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", byte_range)
        if span:
            status = 206
            first = int(span[1])
            last = int(span[2]) if span[2] else len(content) - 1
            data = content[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{len(content)}"
        if self.command == "GET" and path.suffix in (".safetensors", ".jsonl"):
            self.hub.n_transfers[repository.folder] += 1
            number = self.hub.n_transfers[repository.folder]
            if 1 < number <= repository.n_breaks:
                self.close_connection = True
                return None
            if number <= repository.n_breaks:
                return self._send(status, headers, data, n_sent=len(data) // 2)
        return self._send(status, headers, data)

    def _send_json(self, value: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")

    def _send(
        self, status: int, headers: dict[str, str], data: bytes, n_sent: int | None = None
    ) -> None:
        """An answer, of which only the first `n_sent` bytes go out before the connection closes."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:n_sent])
        self.close_connection = n_sent is not None
