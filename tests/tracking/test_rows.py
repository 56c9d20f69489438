"""What a tracker is told of a run, as plain values."""

from __future__ import annotations

import json

from gasweep.tracking.rows import run_summary
from tests.results.examples import make_result, make_spec


def test_the_summary_has_what_was_sent_by_group_collective_and_dtype() -> None:
    summary = run_summary(make_spec("a"), make_result("a"), state="reached")
    assert summary["throughput"]["communication"] == {
        "data": {
            "all_reduce_float32": {"calls": 1, "num_bytes": 10},
            "control_all_reduce_float32": {"calls": 1, "num_bytes": 1},
        }
    }
    json.dumps(summary)
