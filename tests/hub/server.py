"""A small hub on the loopback: what huggingface_hub and datasets ask the real one for models and data sets."""

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
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_ID = r"(?P<id>[^/]+/[^/]+)"
_API = re.compile(
    rf"/api/(?P<kind>models|datasets)/{_ID}(/(?P<what>revision|tree|paths-info)/(?P<rest>.+))?"
)
_FILE = re.compile(rf"/(?P<kind>datasets/)?{_ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass(frozen=True)
class Repository:
    """What the hub holds under one id; every revision in `revisions` is the same commit.

    gated: the status that whoever has another token than `token` is refused with.
    breaks: how many transfers of weights and rows break: the first in the middle, the others before it begins.
    """

    folder: Path
    gated: int = 0
    token: str = "none"
    breaks: int = 0
    revisions: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        """Of 40 digits, and of nothing but the folder's name."""
        return hashlib.sha1(self.folder.name.encode()).hexdigest()

    def files(self) -> dict[str, Path]:
        """Every file by its path in the repository."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path for path in found}

    def tree(self) -> list[dict[str, Any]]:
        """Files and folders as the hub lists them."""
        names = self.files()
        parents = {str(parent) for name in names for parent in Path(name).parents} - {"."}
        listed = [
            {"type": "directory", "path": name, "oid": self.commit, "size": 0}
            for name in sorted(parents)
        ]
        return listed + [
            {"type": "file", "path": name, "oid": etag(path), "size": path.stat().st_size}
            for name, path in names.items()
        ]


def etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@dataclass
class Hub:
    """Repositories by ("models" or "datasets", id), the requests so far, and how many transfers each folder began."""

    repositories: dict[tuple[str, str], Repository]
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    transfers: Counter[Path] = field(default_factory=Counter)
    address: str = ""

    def fetched(self, word: str) -> list[str]:
        """The ranges ("" for a whole file) of downloads whose path holds a word."""
        return [
            span
            for method, path, span in self.requests
            if method == "GET" and "/resolve/" in path and word in path
        ]


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address`, served by a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
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
        address, body = (
            urlsplit(self.path),
            self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        path = unquote(address.path)
        self.hub.requests.append((self.command, path, self.headers.get("Range") or ""))
        found = _API.fullmatch(path) or _FILE.fullmatch(path)
        if found is None:
            return self._refuse(404, "EntryNotFound")
        place = found.groupdict()
        kind = (place["kind"] or "models").strip("/")
        repository = self.hub.repositories.get((kind, place["id"]))
        if repository is None:
            return self._refuse(401, "RepoNotFound")
        if repository.gated and self.headers.get("Authorization") != f"Bearer {repository.token}":
            return self._refuse(repository.gated, "GatedRepo")
        known = (*repository.revisions, repository.commit)
        revision, _, below = (place.get("revision") or place.get("rest") or "main").partition("/")
        if revision not in known:
            return self._refuse(404, "RevisionNotFound")
        if "path" in place:
            return self._file(repository, place["path"])
        return self._json(self._answer(repository, place, below, body))

    def _answer(
        self, repository: Repository, place: dict[str, str], below: str, body: bytes
    ) -> Any:
        tree = repository.tree()
        if place["what"] == "paths-info":
            told = json.loads(body) if body.startswith(b"{") else parse_qs(body.decode())
            return [entry for entry in tree if entry["path"] in told["paths"]]
        if place["what"] == "tree":
            deep = "recursive=true" in self.path.lower()
            inside = [entry for entry in tree if not below or entry["path"].startswith(f"{below}/")]
            return [e for e in inside if deep or "/" not in e["path"][len(below) :].strip("/")]
        siblings = [{"rfilename": name} for name in repository.files()]
        return {
            "id": place["id"],
            "sha": repository.commit,
            "siblings": siblings,
            "private": False,
            "tags": [],
        }

    def _file(self, repository: Repository, name: str) -> None:
        if (path := repository.files().get(name)) is None:
            return self._refuse(404, "EntryNotFound")
        whole = path.read_bytes()
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first = int(span[1]) if span else 0
        last = int(span[2]) if span and span[2] else len(whole) - 1
        data = whole[first : last + 1]
        headers = {
            "ETag": f'"{etag(path)}"',
            "X-Repo-Commit": repository.commit,
            "Accept-Ranges": "bytes",
        }
        if span:
            headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{len(whole)}"
        if self.command == "GET" and path.suffix in (".safetensors", ".jsonl"):
            self.hub.transfers[repository.folder] += 1
            number = self.hub.transfers[repository.folder]
            if 1 < number <= repository.breaks:
                self.close_connection = True
                return None
            if number <= repository.breaks:
                return self._send(206 if span else 200, headers, data, len(data) // 2)
        return self._send(206 if span else 200, headers, data)

    def _json(self, value: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")

    def _send(
        self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None
    ) -> None:
        """An answer, of which only the first `sent` bytes go out before the connection closes."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])
        self.close_connection = sent is not None
