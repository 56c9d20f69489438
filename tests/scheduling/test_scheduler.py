from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gasweep.scheduling.scheduler import BACKFILL_DEPTH, Company, Placement, Request, place


def request(run_id: str, world_size: int = 1, company: Company = Company.ANY) -> Request:
    return Request(run_id=run_id, world_size=world_size, company=company)


def placed(waiting: list[Request], *, free: int, **options: Any) -> Placement:
    arguments: dict[str, Any] = {"running": [], "passed": {}, "patience_workers": 4, **options}
    return place(waiting, free_workers=free, **arguments)


def test_first_in_first_out_while_workers_last() -> None:
    waiting = [request("a"), request("b", 2), request("c")]
    assert placed(waiting, free=3).start == ["a", "b"]


def test_a_run_that_fits_passes_one_that_does_not_and_is_counted() -> None:
    waiting = [request("big", 4), request("a"), request("b")]
    result = placed(waiting, free=2)
    assert result.start == ["a", "b"]
    assert result.passed == {"big": 2}


def test_nothing_passes_a_run_whose_patience_has_ended() -> None:
    waiting = [request("big", 4), request("a"), request("b")]
    assert placed(waiting, free=3, passed={"big": 4}).start == []
    assert placed(waiting, free=4, passed={"big": 4}).start == ["big"]


def test_patience_can_end_within_one_round() -> None:
    waiting = [request("big", 9), *(request(f"r{i}") for i in range(8))]
    result = placed(waiting, free=8, patience_workers=3)
    assert result.start == ["r0", "r1", "r2"]
    assert result.passed == {"big": 3}


def test_a_started_run_is_forgotten() -> None:
    assert placed([request("big", 2)], free=2, passed={"big": 3}).passed == {}


def test_a_run_that_wants_to_be_alone_starts_on_an_empty_cluster_only() -> None:
    alone = request("probe", 1, Company.ALONE)
    assert placed([alone, request("a")], free=4).start == ["probe"]
    assert placed([alone], free=4, running=[request("a")]).start == []
    assert placed([request("a")], free=4, running=[alone]).start == []


def test_alike_runs_share_with_each_other_alone() -> None:
    first, second = request("p", 1, Company.ALIKE), request("q", 1, Company.ALIKE)
    assert placed([first, second, request("a")], free=4).start == ["p", "q"]
    assert placed([request("a")], free=4, running=[first]).start == []
    assert placed([second], free=4, running=[first]).start == ["q"]


def test_backfill_looks_at_a_bounded_number_of_waiting_runs() -> None:
    waiting = [request(f"big{i}", 9) for i in range(BACKFILL_DEPTH)] + [request("small")]
    assert placed(waiting, free=8).start == []


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 3, 4, 8]), min_size=1, max_size=60),
    num_workers=st.integers(8, 12),
    patience=st.integers(1, 20),
    seed=st.integers(0, 10_000),
    alone=st.floats(0, 0.3),
)
def test_every_run_starts_and_none_is_passed_beyond_its_patience(
    sizes: list[int], num_workers: int, patience: int, seed: int, alone: float
) -> None:
    rng = random.Random(seed)
    waiting = [
        request(f"r{i}", size, Company.ALONE if rng.random() < alone else Company.ANY)
        for i, size in enumerate(sizes)
    ]
    running: list[Request] = []
    passed: dict[str, int] = {}
    most_passed = 0
    for _ in range(10 * len(sizes)):
        free = num_workers - sum(item.world_size for item in running)
        result = place(waiting, running=running, free_workers=free, passed=passed, patience_workers=patience)
        passed = result.passed
        most_passed = max([most_passed, *passed.values()])
        running += [item for item in waiting if item.run_id in result.start]
        waiting = [item for item in waiting if item.run_id not in result.start]
        assert sum(item.world_size for item in running) <= num_workers
        assert len(running) == 1 or all(item.company is Company.ANY for item in running)
        if not running:
            break
        running.pop(rng.randrange(len(running)))
    assert waiting == []
    assert most_passed < patience + max(sizes)
