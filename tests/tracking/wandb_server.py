"""Just enough of a W&B server for wandb's own client to upload runs to, and to resume them from."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class FakeWandbServer:
    """runs: run name -> the variables it was created with."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, list[str]] = {}
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [json.loads(line) for line in lines] for name, lines in self._lines.items()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def stream(self, run: str, body: dict[str, Any]) -> dict[str, Any]:
        history = body.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            lines = self._lines.setdefault(run, [])
            lines[history["offset"] :] = history["content"]
        return {"exitcode": None, "limits": {}}

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            self.runs.setdefault(variables["name"], {}).update(
                {key: value for key, value in variables.items() if value is not None}
            )
            project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "entity"}}
            bucket = {"id": "id", "name": variables["name"], "displayName": "", "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "id", "uploadHeaders": [], "files": []}}
        return {"model": None, "viewer": {"id": "v", "entity": "entity", "username": "u", "flags": "{}"}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeWandbServer

    def do_GET(self) -> None:
        self._reply({})

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/file_stream"):
            self._reply(self.owner.stream(self.path.split("/")[-2], json.loads(body)))
        elif self.path == "/graphql":
            asked = json.loads(body)
            self._reply({"data": self.owner.graphql(asked["query"], asked.get("variables") or {})})
        else:
            self._reply({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def _reply(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
