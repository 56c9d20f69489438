import json

import pytest

from gasweep.cli.main import main
from tests.results.planted import plant


@pytest.fixture
def sweep(tmp_path):
    return plant(tmp_path)


def test_costs_join_steps_with_measured_seconds(sweep, capsys):
    assert main(["fit", str(sweep), "--deadline", "1e9", "--json"]) == 0
    (setting,) = json.loads(capsys.readouterr().out)["costs"]
    (target,) = setting["targets"]
    for point in target["points"]:
        steps, seconds, wall = (
            point[name]["value"] for name in ("optimizer_steps", "seconds_per_optimizer_step", "wall_clock_s")
        )
        assert wall == pytest.approx(steps * seconds)
    assert target["cheapest_within_deadline"] is not None


def test_an_impossible_deadline_is_answered_with_a_reason(sweep, capsys):
    assert main(["fit", str(sweep), "--deadline", "1e-9"]) == 0
    assert "cheapest within" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_a_limit_must_be_positive(sweep, value, capsys):
    assert main(["fit", str(sweep), f"--deadline={value}"]) == 2
    assert "deadline" in capsys.readouterr().err


def test_a_file_has_no_costs(tmp_path, capsys):
    path = tmp_path / "steps.csv"
    path.write_text("batch_size,steps\n8,100\n16,60\n32,40\n")
    assert main(["fit", str(path), "--progress-unit", "steps", "--cost"]) == 2
    assert "sweep's directory alone" in capsys.readouterr().err
