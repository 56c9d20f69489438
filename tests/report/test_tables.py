"""Plain-text tables: what a terminal shows of a study."""

from gasweep.analysis.study import StudyRun
from gasweep.report.tables import collapse_lines, estimate_lines, steps_table
from tests.report import examples


def test_collapse_says_points_runs_probes_and_what_is_infeasible() -> None:
    lines = collapse_lines(num_points=216, num_runs=84, num_probes=18, num_infeasible=12)
    assert lines == [
        "216 grid points collapse to 84 convergence runs and 18 throughput probes",
        "12 of the grid points are infeasible here and are left out",
    ]
    assert len(collapse_lines(num_points=1, num_runs=1, num_probes=0)) == 1


def test_steps_table_has_a_row_per_batch_size_with_the_winning_rate() -> None:
    lines = steps_table(examples.study_dict())
    assert lines[0] == "target eval_loss <= 0.5"
    assert len(lines) == 2 + len(examples.BATCHES)
    assert lines[2].split()[0] == "8"
    assert lines[2].split()[-3:] == ["0.1", "3/3", "bracketed"]


def test_a_target_met_at_the_first_evaluation_is_a_bound() -> None:
    bounds = ((8, 10.0, 20.0), (16, 10.0, 12.0), (32, 0.0, 10.0))
    runs = [StudyRun(batch_size=b, learning_rate=0.1, seed=0, low=low, high=high) for b, low, high in bounds]
    rows = [line.split() for line in steps_table(examples.study_dict(runs))[2:]]
    assert rows[2][:5] == ["32", "≤", "10", "≤", "320"]
    assert "≤" not in rows[0] + rows[1]


def test_columns_line_up() -> None:
    lines = steps_table(examples.edge_study())
    ends = {line.index("/3") for line in lines if "/3" in line}
    assert len(ends) == 1


def test_censored_batch_sizes_show_their_bound() -> None:
    """C04: a run that missed its target is at least so long; it is neither dropped nor set to the budget."""
    rows = steps_table(examples.censored_study())[2:]
    assert rows[0].split()[:5] == ["8", "≥", "100", "≥", "800"]
    assert "0/1" in rows[0].split()


def test_edge_of_grid_is_said_in_the_table_and_among_the_flags() -> None:
    """C06: a winner at the edge of its grid is marked, with the rate to try next."""
    study = examples.edge_study()
    target = study["targets"][0]
    assert f"edge; {target['observations'][-1]['reason']}" in steps_table(study)[-1]
    (flag,) = [flag for flag in target["flags"] if "edge" in flag]
    assert "0.9" in flag
    assert f"  ! {flag}" in estimate_lines(study)


def test_estimates_have_intervals_bounds_or_reasons() -> None:
    text = "\n".join(estimate_lines(examples.one_sided_study()))
    assert "B_crit (examples)              ≥ " in text
    assert "S_min (optimizer steps)        ≤ " in text
    assert "steps still fall in proportion to the batch size" in text
    assert "noise scale (examples)         unknown (not measured)" in text


def test_what_batch_sizes_count_is_said_everywhere() -> None:
    study = examples.two_target_study()
    text = "\n".join(steps_table(study, unit="tokens") + estimate_lines(study, unit="tokens"))
    assert "examples" not in text
    for name in ("B_crit (tokens)", "E_min (tokens)", "B at 20 % overhead (tokens)"):
        assert name in text


def test_several_targets_are_separate_tables() -> None:
    lines = steps_table(examples.two_target_study())
    assert [line for line in lines if line.startswith("target")] == [
        "target eval_loss <= 0.5",
        "target eval_loss <= 0.45",
    ]
    assert steps_table({"targets": []}) == []
