"""A Hugging Face Hub of the tests' own on the loopback address, with the answers of the real one.

As on the real one, large files are stored on another host, here the name localhost.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + 34 * "0"
LARGE = (".ckpt", ".pt", ".safetensors")


@dataclass
class Reply:
    status: int
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repository:
    """Files at one commit, which is also the branch main."""

    files: dict[str, bytes]
    commit: str = COMMIT
    error: Reply | None = None  # instead of any file


@dataclass
class Hub:
    """Repositories by name, and what has been asked of the server."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, host and path
    tokens: dict[str, str | None] = field(default_factory=dict)  # by host
    is_damaging: bool = False  # a bit of every large file that is downloaded
    announced_size: int | None = None  # of large files, instead of the true one
    url: str = ""

    def add(self, name: str, files: dict[str, bytes], commit: str = COMMIT) -> Repository:
        """Add a repository."""
        self.repositories[name] = Repository(files, commit)
        return self.repositories[name]

    def downloads(self) -> list[str]:
        """Return the names of the downloaded files, each as often as it was downloaded."""
        paths = [path for method, _, path in self.requests if method == "GET"]
        return [path.split("/", 5)[5] for path in paths if path.count("/") > 4]

    def reply(self, path: str) -> Reply:
        """Answer a request for ``/owner/name/resolve/revision/file``, or ``store`` for large files.

        As on the Hub, repositories that do not exist look like private ones.
        """
        owner, name, place, revision, file = [*path[1:].split("/", 4), "", "", "", ""][:5]
        repository = self.repositories.get(f"{owner}/{name}")
        if repository is None:
            return Reply(401, headers={"X-Error-Code": "RepoNotFound"})
        if repository.error is not None:
            return repository.error
        if revision not in ("main", repository.commit):
            return Reply(404, headers={"X-Error-Code": "RevisionNotFound"})
        origin = {"X-Repo-Commit": repository.commit}
        if file not in repository.files:
            return Reply(404, headers={"X-Error-Code": "EntryNotFound", **origin})
        content = repository.files[file]
        if place == "store":
            last = content[-1] ^ self.is_damaging
            return Reply(200, content[:-1] + bytes([last]))
        if not file.endswith(LARGE):
            blob = b"blob %d\0" % len(content) + content
            etag = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
            return Reply(200, content, {"ETag": f'"{etag}"', **origin})
        store = self.url.replace("127.0.0.1", "localhost")
        headers = {
            "Location": f"{store}/{owner}/{name}/store/{revision}/{file}",
            "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-Size": str(self.announced_size or len(content)),
        }
        return Reply(302, headers={**headers, **origin})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, host = self.server.hub, self.headers["Host"].partition(":")[0]
        path = unquote(urlsplit(self.path).path)  # proxies are asked for whole URLs
        hub.requests.append((self.command, host, path))
        hub.tokens[host] = self.headers["Authorization"]
        reply = hub.reply(path)
        self.send_response(reply.status)
        for key, value in {"Content-Length": str(len(reply.content)), **reply.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(reply.content)

    def log_message(self, *_: Any) -> None:
        """Do not print requests."""


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub without repositories until the context ends."""
    hub = Hub()
    with _Server(hub) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def use(hub: Hub, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Set the hub and the cache of this process, which huggingface_hub reads when imported."""
    constants = pytest.importorskip("huggingface_hub.constants")
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    for module in (constants, pytest.importorskip("huggingface_hub.file_download")):  # before 1.0
        patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
