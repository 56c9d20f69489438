from __future__ import annotations

import random

from scheduling_specs import make_spec

from gasweep.config.run_spec import RunSpec
from gasweep.results.states import RunState
from gasweep.scheduling.scheduler import Company
from gasweep.scheduling.study import Study, company_of


def grid(batches: list[int], rates: list[float], seeds: list[int]) -> list[RunSpec]:
    return [
        make_spec(f"{b}-{rate}-{seed}", micro_batch_size=b, learning_rate=rate, seed=seed)
        for b in batches
        for rate in rates
        for seed in seeds
    ]


def asked(study: Study, limit: int | None = None) -> list[str]:
    return [spec.run_id for spec in study.ask(limit)]


def test_order_seeds_then_rates_from_the_middle_then_batches_from_the_ends() -> None:
    study = Study(runs=grid([8, 32, 128], [0.1, 0.3, 1.0], [0, 1]), probes=[])
    order = asked(study)
    assert order[:6] == ["8-0.3-0", "128-0.3-0", "32-0.3-0", "8-0.1-0", "128-0.1-0", "32-0.1-0"]
    assert all(run_id.endswith("-0") for run_id in order[:9])
    assert all(run_id.endswith("-1") for run_id in order[9:])


def test_a_first_round_over_every_batch_comes_before_any_second_seed() -> None:
    specs = grid([8, 16, 32, 64, 128], [0.1, 0.2, 0.4, 0.8], [0, 1, 2])
    first = Study(runs=specs, probes=[]).ask(5 * 4)
    assert {(s.effective_batch_size, s.learning_rate) for s in first} == {
        (s.effective_batch_size, s.learning_rate) for s in specs
    }


def test_probes_come_before_training_the_cheap_ones_first() -> None:
    probes = [make_spec(f"p{b}", kind="probe", micro_batch_size=b) for b in (64, 8)]
    assert asked(Study(runs=[make_spec("run")], probes=probes)) == ["p8", "p64", "run"]


def test_larger_world_size_first_at_the_same_rate() -> None:
    runs = [make_spec(f"n{n}", world_size=n, micro_batch_size=8 // n) for n in (1, 2, 4)]
    assert asked(Study(runs=runs, probes=[])) == ["n4", "n2", "n1"]


def test_the_order_does_not_depend_on_the_order_of_what_was_told() -> None:
    specs = grid([8, 32], [0.1, 0.3], [0, 1])
    study, other = Study(runs=specs, probes=[]), Study(runs=specs, probes=[])
    before = asked(study)
    shuffled = before.copy()
    random.Random(0).shuffle(shuffled)
    for run_id in shuffled:
        study.tell(run_id, RunState.RUNNING)
    assert study.num_waiting == 0
    assert asked(study) == []
    for run_id in reversed(shuffled):
        study.tell(run_id, RunState.WAITING)
        study.tell(run_id, RunState.WAITING)
    assert asked(study) == asked(other) == before
    assert asked(study, limit=3) == before[:3]


def test_a_finished_run_is_asked_for_no_more() -> None:
    study = Study(runs=grid([8], [0.1], [0, 1]), probes=[])
    study.tell("8-0.1-0", RunState.RUNNING)
    study.tell("8-0.1-0", RunState.REACHED)
    assert asked(study) == ["8-0.1-1"]


def test_probes_are_timed_alone_unless_workers_have_devices_of_their_own() -> None:
    probe, run = make_spec("p", kind="probe"), make_spec("r")
    assert company_of(probe, isolated_workers=False) is Company.ALONE
    assert company_of(probe, isolated_workers=True) is Company.ALIKE
    assert company_of(run, isolated_workers=False) is Company.ANY


def test_ten_thousand_runs_are_ordered_and_told_quickly() -> None:
    specs = grid(list(range(8, 108)), [0.1, 0.2, 0.4, 0.8, 1.6], list(range(20)))
    study = Study(runs=specs, probes=[])
    for spec in study.ask():
        study.tell(spec.run_id, RunState.RUNNING)
    assert study.num_waiting == 0
