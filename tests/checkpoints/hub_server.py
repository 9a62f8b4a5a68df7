"""A small Hub on loopback: enough of its HTTP interface for the real huggingface-hub client to load and to upload."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MAIN = "1" * 40


@dataclass
class Repo:
    """One repository: files by commit, and names of commits."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {MAIN: {}})
    refs: dict[str, str] = field(default_factory=lambda: {"main": MAIN})
    gated: bool = False
    tags: list[str] = field(default_factory=list)
    downloads: int = 0

    def commit_of(self, revision: str) -> str | None:
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None


class Hub:
    """What the server serves, what went wrong on purpose, and what was asked of it."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.cut: set[str] = set()  # files whose download breaks off half-way
        self.lost: set[str] = set()  # files that are listed and not delivered
        self.broken = False  # answers 500 to everything
        self.requests: list[str] = []
        self.url = ""

    def add(self, name: str, files: dict[str, bytes], **options: Any) -> Repo:
        self.repos[name] = Repo(commits={MAIN: dict(files)}, **options)
        return self.repos[name]


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve ``hub`` at ``hub.url`` for the length of the block."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _get(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.broken:
            return self._refuse(500, None)
        if path == "/api/models":
            return self._list(set(parse_qs(urlsplit(self.path).query).get("filter", [])))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        if match is None:
            return self._refuse(404, None)
        repo = self.hub.repos.get(match[1])
        if repo is None:
            return self._refuse(401, "RepoNotFound")
        commit = repo.commit_of((api[3] if api else match[2]) or "main")
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        if api:
            return self._info(match[1], repo, commit, kind=api[2])
        if repo.gated and self.headers.get("authorization") != "Bearer hf_allowed":
            return self._refuse(403, "GatedRepo")
        return self._file(repo, commit, match[3])

    def _list(self, wanted: set[str]) -> None:
        found = {name: repo for name, repo in self.hub.repos.items() if wanted <= set(repo.tags)}
        self._json([{"id": name, "tags": repo.tags, "downloads": repo.downloads} for name, repo in found.items()])

    def _info(self, name: str, repo: Repo, commit: str, kind: str | None) -> None:
        files = repo.commits[commit]
        if kind == "tree":
            return self._json([{"type": "file", "path": p, "size": len(d), "oid": "0" * 40} for p, d in files.items()])
        siblings = [{"rfilename": path} for path in files]
        self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": [], "private": False})

    def _file(self, repo: Repo, commit: str, path: str) -> None:
        data = repo.commits[commit].get(path)
        if data is None or path in self.hub.lost:
            return self._refuse(404, "EntryNotFound", commit)
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("range", "")) or ["", "0"])[1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if path in self.hub.cut:
            self.wfile.write(data[start : max(start, len(data) // 2)])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.headers.get("authorization") != "Bearer hf_allowed":
            return self._refuse(401, None)
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            name = json.loads(body)
            full = f"{name.get('organization') or 'owner'}/{name['name']}"
            if full in self.hub.repos:
                return self._json({"url": f"{self.hub.url}/{full}"}, 409)
            self.hub.add(full, {".gitattributes": b""})
            return self._json({"url": f"{self.hub.url}/{full}"})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(branch|preupload|commit)/(.+)", path)
        if match is None:
            return self._refuse(404, None)
        return self._write(self.hub.repos[match[1]], match[1], match[2], match[3], body)

    def _write(self, repo: Repo, name: str, what: str, revision: str, body: bytes) -> None:
        if what == "branch":
            repo.refs.setdefault(revision, repo.refs["main"])
            return self._json({})
        if what == "preupload":
            paths = [part["path"] for part in json.loads(body)["files"]]
            return self._json({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})
        files = dict(repo.commits[repo.refs[revision]])
        for line in body.decode().splitlines():
            step = json.loads(line)
            if step["key"] == "file":
                files[step["value"]["path"]] = base64.b64decode(step["value"]["content"])
            if step["key"] == "deletedFile":
                del files[step["value"]["path"]]
        commit = hashlib.sha1(body).hexdigest()
        repo.commits[commit] = files
        repo.refs[revision] = commit
        url = f"{self.hub.url}/{name}/commit/{commit}"
        return self._json({"commitOid": commit, "commitUrl": url, "success": True})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str | None, commit: str | None = None) -> None:
        headers = {"X-Error-Message": code or "refused on purpose"}
        if code:
            headers["X-Error-Code"] = code
        if commit:
            headers["X-Repo-Commit"] = commit
        self._send(status, b"{}", headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
