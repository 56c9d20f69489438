"""Weights & Biases: the one file that imports it, and only when a sweep asks for it."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gasweep.config.schema import WandbConfig
from gasweep.errors import MissingDependencyError
from gasweep.tracking.mirror import RemoteRun, Warn
from gasweep.tracking.mirrored import add_mirrored_run
from gasweep.tracking.record_log import records
from gasweep.tracking.rows import Row

INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 30.0

_SERVICE = "WANDB_SERVICE"  # how a process finds W&B's own process that it, or its parent, started

_WANTED_SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "save_code": False,
    # The driver's own machine: its load says nothing about the workers', and sampling it costs threads.
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "init_timeout": INIT_TIMEOUT_S,
    "finish_timeout": FINISH_TIMEOUT_S,
    "finish_timeout_raises": True,
}


class WandbRun:
    """One open W&B run; optimizer steps are both W&B's own step and the axis of every plot."""

    def __init__(self, client: WandbClient, run_id: str, description: dict[str, Any]) -> None:
        self._client = client
        self._run_id = run_id
        self._id = remote_id = client.remote_id(run_id)
        self._description = description
        self._open()
        self.last_step = client.last_step(self._run, remote_id)

    def log(self, row: Row, *, optimizer_step: int) -> None:
        self._live().log(row, step=optimizer_step)

    def finish(self, summary: dict[str, Any], *, succeeded: bool) -> None:
        run = self._live()
        try:
            run.summary.update(summary)
        finally:
            self._client.finish(run, exit_code=0 if succeeded else 1)
        if succeeded:
            self._client.remember(self._run_id)

    def _open(self) -> None:
        self._run = self._client.init(self._id, **self._description)
        self._generation = self._client.generation
        self._run.define_metric("optimizer_step", hidden=True)
        self._run.define_metric("*", step_metric="optimizer_step")

    def _live(self) -> Any:
        if self._generation != self._client.generation:
            self._open()
        return self._run


class WandbClient:
    """W&B runs of one sweep: files under `directory`/wandb, ids `<sweep_id>-<run_id>`, one group.

    Online without a usable key, or with a server that does not answer within INIT_TIMEOUT_S: one warning,
    and offline from then on (`wandb sync` uploads later). It never asks for a key.
    Raises MissingDependencyError when wandb is not installed.

    generation: counts restarts of W&B's own process; runs opened before one must be opened again.
    """

    def __init__(
        self, config: WandbConfig, *, directory: Path, sweep_name: str, sweep_id: str, warn: Warn
    ) -> None:
        self._config = config
        self._directory = directory
        self._sweep_id = sweep_id
        self._group = f"{sweep_name}-{sweep_id}"
        self._warn = warn
        self.generation = 0
        # Tables and media are staged in the user's home otherwise, and a later `wandb sync` needs them.
        os.environ.setdefault("WANDB_DATA_DIR", str((directory / "wandb").resolve()))
        self._wandb = _import_wandb()
        self._owns_service = _SERVICE not in os.environ
        self._wandb.setup(settings=self._settings())
        self._mode = config.mode
        if self._mode == "online" and not _has_key(self._wandb):
            self._go_offline("no W&B API key was found (`wandb login`)")

    @property
    def mode(self) -> str:
        return self._mode

    def open_run(self, *, run_id: str, name: str, job_type: str, config: dict[str, Any]) -> RemoteRun:
        description = {"name": name, "job_type": job_type, "config": config}
        return WandbRun(self, run_id, description)

    def remote_id(self, run_id: str) -> str:
        """Unique within the W&B project, where another sweep may hold the very same run."""
        return f"{self._sweep_id}-{run_id}"

    def remember(self, run_id: str) -> None:
        add_mirrored_run(self._directory, run_id)

    def log_summary(
        self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]
    ) -> None:
        """The sweep's own run: estimates as its summary, the table of runs, the plots."""
        wandb = self._wandb
        run = self.init(self.remote_id("summary"), name="summary", job_type="summary", config={})
        try:
            row: dict[str, Any] = {image.stem: wandb.Image(str(image)) for image in images}
            if table:
                columns = list(dict.fromkeys(key for entry in table for key in entry))
                data = [[entry.get(column) for column in columns] for entry in table]
                row["runs"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
            if row:
                run.log(row)
            run.summary.update(summary)
        finally:
            self.finish(run, exit_code=0)

    def finish(self, run: Any, *, exit_code: int) -> None:
        """Close a run; data that a silent server did not take in time stays on disk for `wandb sync`."""
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError:
            self._go_offline(f"the W&B server did not take a run's data within {FINISH_TIMEOUT_S:g} s")

    def close(self) -> None:
        """End W&B's own process, if this client started it: only then are all files complete."""
        if self._owns_service:
            self._wandb.teardown()

    def init(self, remote_id: str, *, name: str, job_type: str, config: dict[str, Any]) -> Any:
        """An open W&B run of that id, new or resumed."""
        arguments: dict[str, Any] = {
            "entity": self._config.entity,
            "project": self._config.project,
            "tags": self._config.tags,
            "dir": str(self._directory),
            "id": remote_id,
            "name": name,
            "group": self._group,
            "job_type": job_type,
            "config": config,
            "resume": "allow",
            # Without it a second run of this process would silently be the first one.
            "reinit": "create_new",
            "settings": self._settings(),
        }
        if self._mode == "online":
            try:
                return self._wandb.init(mode="online", **arguments)
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0]
                self._go_offline(f"W&B could not be reached ({type(error).__name__}: {first_line})")
                self._restart()
        return self._wandb.init(mode="offline", **arguments)

    def last_step(self, run: Any, remote_id: str) -> int:
        """The last optimizer step that the server, or offline the files of an earlier driver, hold."""
        if self._mode == "online":
            return int(run.step) - 1 if run.resumed else -1
        files = self._directory.glob(f"wandb/*run-*-{remote_id}/run-{remote_id}.wandb")
        return max((read_wandb_file(file).last_step for file in files), default=-1)

    def _restart(self) -> None:
        """End W&B's own process: after a failed init it holds the run's id as in use, for offline too."""
        with contextlib.suppress(Exception):
            self._wandb.teardown(exit_code=1)
        self.generation += 1

    def _settings(self) -> Any:
        known = self._wandb.Settings.model_fields
        wanted = {key: value for key, value in _WANTED_SETTINGS.items() if key in known}
        return self._wandb.Settings(**wanted)

    def _go_offline(self, reason: str) -> None:
        if self._mode != "offline":
            self._mode = "offline"
            self._warn(
                f"{reason}; W&B runs are written below {self._directory / 'wandb'} from now on: "
                f"`wandb sync` uploads them"
            )


@dataclass(kw_only=True)
class WandbFile:
    """What a `.wandb` file holds: rows in the order they were logged; `exit_code` None: unfinished."""

    run_id: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def last_step(self) -> int:
        return max((int(row["_step"]) for row in self.history if "_step" in row), default=-1)


def read_wandb_file(path: Path) -> WandbFile:
    """Read a `.wandb` file with W&B's own record types; a torn tail is left out.

    Raises SourceError when it is no such file, MissingDependencyError when wandb is not installed.
    """
    _import_wandb()
    from wandb.proto import wandb_internal_pb2

    content = WandbFile()
    for payload in records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            content.run_id, content.project, content.name = run.run_id, run.project, run.display_name
            content.group, content.job_type = run.run_group, run.job_type
            _update(content.config, run.config.update)
        elif kind == "config":
            _update(content.config, record.config.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            content.history.append(row)
        elif kind == "summary":
            _update(content.summary, record.summary.update)
        elif kind == "exit":
            content.exit_code = int(record.exit.exit_code)
    return content


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        path = list(item.nested_key) or [item.key]
        node = target
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = json.loads(item.value_json)


def _import_wandb() -> Any:
    if "wandb" not in sys.modules:
        # A service inherited from the parent process may still hold our run ids (of a killed driver).
        os.environ.pop(_SERVICE, None)
    try:
        import wandb
    except ImportError as error:
        raise MissingDependencyError(
            "tracking.wandb needs the package wandb, which is not installed; "
            "`pip install 'gasweep[wandb]'`, or set tracking.wandb=null"
        ) from error
    return wandb


def _has_key(wandb: Any) -> bool:
    """Whether a key is configured; asks neither the user nor the server."""
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return bool(getattr(getattr(wandb, "api", None), "api_key", None))
