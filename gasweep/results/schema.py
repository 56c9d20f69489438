"""The journal's tables. Times are seconds since the epoch; `run` is a run's row number."""

from __future__ import annotations

SCHEMA_VERSION = 1
APPLICATION_ID = 0x67617377  # "gasw": tells a journal from any other SQLite file

TABLES = """
CREATE TABLE sweep (
    sweep_id TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE config_versions (
    version INTEGER PRIMARY KEY,
    recorded_at REAL NOT NULL,
    config TEXT NOT NULL,
    environment TEXT NOT NULL
);
CREATE TABLE runs (
    run INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    config_version INTEGER NOT NULL,
    spec TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    updated_at REAL NOT NULL
);
CREATE TABLE transitions (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs,
    old_state TEXT NOT NULL,
    new_state TEXT NOT NULL,
    reason TEXT,
    at REAL NOT NULL
);
CREATE TABLE attempts (
    run INTEGER NOT NULL REFERENCES runs,
    number INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    cause TEXT,
    message TEXT,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE steps (
    run INTEGER NOT NULL REFERENCES runs,
    optimizer_step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    contributions INTEGER NOT NULL,
    loss REAL,
    learning_rate REAL NOT NULL,
    grad_norm REAL,
    seconds REAL,
    examples_per_s REAL,
    tokens_per_s REAL,
    bytes_on_wire INTEGER NOT NULL,
    bytes_saved INTEGER NOT NULL,
    extra TEXT,
    PRIMARY KEY (run, optimizer_step)
) WITHOUT ROWID;
CREATE TABLE evaluations (
    run INTEGER NOT NULL REFERENCES runs,
    optimizer_step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    contributions INTEGER NOT NULL,
    metrics TEXT NOT NULL,
    PRIMARY KEY (run, optimizer_step)
) WITHOUT ROWID;
CREATE TABLE results (
    run INTEGER PRIMARY KEY REFERENCES runs,
    recorded_at REAL NOT NULL,
    result TEXT NOT NULL
);
"""

STEP_COLUMNS = (
    "optimizer_step",
    "contributions",
    "loss",
    "learning_rate",
    "grad_norm",
    "seconds",
    "examples_per_s",
    "tokens_per_s",
    "bytes_on_wire",
    "bytes_saved",
)
