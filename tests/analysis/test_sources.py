"""Anyone's file: declared units, mapped names, and every bad row named with file, line and reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gasweep.analysis.sources import SourceOptions, read_source
from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.study import fit_study
from gasweep.errors import SourceError


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(
    tmp_path: Path, text: str | bytes, name: str = "runs.csv", **options: object
) -> list[tuple[object, ...]]:
    source = read_source(write(tmp_path / name, text), SourceOptions(**options))  # type: ignore[arg-type]
    return [
        (run.batch_size, run.learning_rate, run.seed, run.steps, run.last_step, run.state)
        for run in source.runs
    ]


def refused(tmp_path: Path, text: str | bytes, match: str, name: str = "runs.csv", **options: object) -> None:
    with pytest.raises(SourceError, match=match) as error:
        table(tmp_path, text, name, **options)
    assert "\n" not in str(error.value)


def test_plain_table(tmp_path: Path) -> None:
    rows = table(
        tmp_path, "batch_size,steps,learning_rate,seed,reached\n8,100,1e-1,0,true\n8,200,.1,1,false\n"
    )
    assert rows == [(8, 0.1, 0, 100, None, "reached"), (8, 0.1, 1, None, 200, "censored")]


def test_bom_crlf_blank_lines_comments_spaces_and_quotes(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf# from a paper\r\n Batch , Steps\r\n\r\n "8", 100\r\n16, 60 \r\n,\r\n'
    assert [row[:1] + row[3:4] for row in table(tmp_path, text)] == [(8, 100), (16, 60)]


def test_utf16_is_read(tmp_path: Path) -> None:
    assert len(table(tmp_path, "batch,steps\n8,100\n".encode("utf-16"))) == 1


@pytest.mark.parametrize(
    ("header", "cell", "options", "expected"),
    [
        ("steps", "100", {}, 100.0),
        ("examples", "800", {}, 100.0),
        ("samples", "800", {}, 100.0),
        ("epochs", "4", {"examples_per_epoch": 200.0}, 100.0),
        ("tokens", "1638400", {"tokens_per_example": 2048.0}, 100.0),
        ("n", "800", {"columns": {"progress": "n"}, "progress_unit": "examples"}, 100.0),
    ],
)
def test_units_of_progress(
    tmp_path: Path, header: str, cell: str, options: dict[str, object], expected: float
) -> None:
    assert table(tmp_path, f"batch,{header}\n8,{cell}\n", **options)[0][3] == pytest.approx(expected)


def test_batch_in_tokens_is_turned_into_examples_where_the_factor_is_known(tmp_path: Path) -> None:
    text = "batch,tokens\n16384,1638400\n"
    assert table(tmp_path, text, batch_unit="tokens", tokens_per_example=2048.0)[0][:1] == (8.0,)
    assert table(tmp_path, text, batch_unit="tokens")[0][:1] == (16384.0,)
    source = read_source(tmp_path / "runs.csv", SourceOptions(batch_unit="tokens"))
    assert (source.unit, source.runs[0].steps) == ("tokens", 100.0)


def test_units_are_declared_never_guessed(tmp_path: Path) -> None:
    refused(tmp_path, "batch,epochs\n8,4\n", "examples_per_epoch: needed")
    refused(tmp_path, "batch,tokens\n8,4\n", "tokens_per_example: needed")
    refused(tmp_path, "batch,n\n8,4\n", "progress_unit: column 'n' may count", columns={"progress": "n"})
    refused(tmp_path, "batch,steps,examples\n8,4,32\n", "both 'steps' and 'examples' could be progress")
    refused(tmp_path, "batch,n\n8,4\n", "no column for steps, examples, tokens, epochs among")


def test_columns_are_mapped(tmp_path: Path) -> None:
    text = "bsz,iters,eta,rng\n8,100,0.1,7\n"
    columns = {"batch_size": "bsz", "progress": "iters", "learning_rate": "eta", "seed": "rng"}
    assert table(tmp_path, text, columns=columns, progress_unit="steps") == [
        (8, 0.1, 7, 100, None, "reached")
    ]
    refused(tmp_path, text, "columns: no column 'bs'; did you mean 'bsz'", columns={"batch_size": "bs"})
    refused(
        tmp_path,
        text,
        "columns: 'batchsize' is not a name of ours; did you mean 'batch_size'",
        columns={"batchsize": "bsz"},
    )
    refused(tmp_path, "batch,bs,steps\n8,8,100\n", "both 'batch' and 'bs' could be batch_size")


@pytest.mark.parametrize("word", ["true", "TRUE", "Yes", "y", "1", "1.0", "t", "reached", "Hit"])
def test_spellings_of_reached(tmp_path: Path, word: str) -> None:
    assert table(tmp_path, f"batch,steps,reached\n8,100,{word}\n")[0][3:] == (100, None, "reached")


@pytest.mark.parametrize("word", ["false", "False", "no", "N", "0", "not_reached", "censored", "Not reached"])
def test_spellings_of_not_reached(tmp_path: Path, word: str) -> None:
    assert table(tmp_path, f"batch,steps,reached\n8,100,{word}\n")[0][3:] == (None, 100, "censored")


def test_states_of_a_tracker(tmp_path: Path) -> None:
    text = "batch,steps,state\n8,100,finished\n8,,diverged\n8,50,crashed\n8,60,running\n8,70,censored\n"
    source = read_source(write(tmp_path / "runs.csv", text))
    assert [run.state for run in source.runs] == ["reached", "diverged", "censored"]
    assert [note.split(":")[0] for note in source.notes] == ["runs.csv 2 rows, lines 4, 5"]


def test_finished_run_that_did_not_reach(tmp_path: Path) -> None:
    assert table(tmp_path, "batch,steps,state,reached\n8,100,finished,false\n")[0][3:] == (
        None,
        100,
        "censored",
    )


def test_censored_rows_without_their_end_take_the_declared_one(tmp_path: Path) -> None:
    text = "batch,steps,reached\n8,nan,false\n8,,false\n"
    assert [row[4] for row in table(tmp_path, text, last_progress=500.0)] == [500.0, 500.0]
    refused(tmp_path, text, r"runs\.csv line 2: steps: 'nan' is not a finite number")
    refused(
        tmp_path, "batch,steps,reached\n8,,false\n", "line 2: steps: empty for a run that was not reached"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("-8,100", "batch: '-8' must be positive"),
        ("0,100", "batch: '0' must be positive"),
        (",100", "batch: an empty cell is not a number"),
        ("eight,100", "batch: 'eight' is not a number"),
        ("8,", "steps: empty; a run that did not reach the target needs reached=false"),
        (
            "8,nan",
            "steps: 'nan' is not a finite number; for a run that did not reach the target set reached=false",
        ),
        ("8,inf", "steps: 'inf' is not a finite number"),
        ("8,-5", "steps: '-5' must be positive"),
        ("8,1_000", "steps: '1_000' is not a number"),
        ("8,0x10", "steps: '0x10' is not a number"),
        ('8,"1,000"', "steps: '1,000' is not a number"),
        ("8,100,9", "3 cells under 2 columns"),
    ],
)
def test_bad_row_is_named_with_file_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    refused(tmp_path, f"batch,steps\n16,60\n{row}\n", rf"runs\.csv line 3: {re.escape(reason)}")


def test_number_of_further_bad_rows_is_said(tmp_path: Path) -> None:
    refused(tmp_path, "batch,steps\nx,1\n8,1\ny,2\nz,3\n", r"line 2: .* \(2 more bad rows\)")


def test_unknown_ending_and_contradiction(tmp_path: Path) -> None:
    refused(tmp_path, "batch,steps,reached\n8,100,maybe\n", "line 2: reached: 'maybe' is unknown; use true")
    refused(
        tmp_path, "batch,steps,state,reached\n8,100,reached,no\n", "line 2: reached: 'no' contradicts state"
    )


def test_learning_rate_missing_in_one_row(tmp_path: Path) -> None:
    refused(tmp_path, "batch,steps,lr\n8,100,0.1\n8,100,\n", "line 3: lr: an empty cell is not a number")


def test_many_rows_of_one_kind_make_one_note(tmp_path: Path) -> None:
    repeated = "8,100,0,reached\n" * 1000
    text = f"batch,steps,seed,state\n{repeated}8,,1,failed\n8,,2,running\n"
    source = read_source(write(tmp_path / "runs.csv", text))
    assert len(source.runs) == 1
    assert source.notes == (
        "runs.csv 2 rows, lines 1002, 1003: the run did not finish; it says nothing and is left out",
        "runs.csv 999 rows, lines 3, 4, 5 and 996 more: repeats an earlier row; counted once",
    )


def test_rows_that_differ_in_their_evaluation_interval_alone_contradict(tmp_path: Path) -> None:
    rows = "batch,steps,low,high,seed\n8,100,90,110,0\n8,100,50,110,0\n"
    refused(tmp_path, rows, "line 3: the same batch size, learning rate and seed as line 2")


def test_duplicate_rows(tmp_path: Path) -> None:
    source = read_source(write(tmp_path / "runs.csv", "batch,steps,seed\n8,100,0\n8,100,0.0\n8,90,1\n"))
    assert len(source.runs) == 2
    assert source.notes == ("runs.csv line 3: repeats an earlier row; counted once",)
    refused(
        tmp_path,
        "batch,steps,seed\n8,100,0\n8,90,0\n",
        "line 3: the same batch size, learning rate and seed as line 2",
    )
    assert len(table(tmp_path, "batch,steps\n8,100\n8,100\n")) == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("batch,steps\n", "holds no rows"),
        ("batch;steps\n8;100\n", "declare the delimiter"),
        ("batch,steps,steps\n8,1,2\n", "column 'steps' appears twice"),
        (b"batch,steps\n8,\xff100\n", "line 2: not UTF-8"),
        ('batch,steps\n8,"100\n', "line "),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, text: str | bytes, match: str) -> None:
    refused(tmp_path, text, match)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        read_source(tmp_path / "none.csv")
    with pytest.raises(SourceError, match="is a directory"):
        read_source(tmp_path)


@pytest.mark.parametrize("delimiter", ["", "::", "\n", '"'])
def test_a_delimiter_is_one_character(delimiter: str) -> None:
    with pytest.raises(SourceError, match="must be one character"):
        SourceOptions(delimiter=delimiter)


@pytest.mark.parametrize(
    ("options", "name", "match"),
    [
        (
            {"run_pattern": "x"},
            "runs.csv",
            "run_pattern: has no use in a file of kind 'table', only in wandb",
        ),
        (
            {"metric": "loss", "last_progress": 5.0},
            "runs.csv",
            "last_progress: has no use in a file of kind 'c",
        ),
        ({"delimiter": ";"}, "x.json", "delimiter: has no use in a file of kind 'mlperf'"),
    ],
)
def test_an_option_without_use_is_named(
    tmp_path: Path, options: dict[str, object], name: str, match: str
) -> None:
    refused(tmp_path, "batch,steps\n8,100\n", re.escape(match), name, **options)


def test_delimiters(tmp_path: Path) -> None:
    assert len(table(tmp_path, "batch;steps\n8;100\n", delimiter=";")) == 1
    assert len(table(tmp_path, "batch\tsteps\n8\t100\n", name="runs.tsv")) == 1


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"batch_size": 8, "steps": 100}, {"batch_size": "16", "steps": 60.5, "extra": [1]}]
    text = "\n\n".join(json.dumps(line) for line in lines)
    assert [row[3] for row in table(tmp_path, text, name="runs.jsonl")] == [100, 60.5]


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "line 2: not JSON"),
        ("[8, 100]", "line 2: holds a list, not an object"),
        ('{"batch_size": true, "steps": 1}', "line 2: batch_size: True is not a number"),
        ('{"batch_size": 8, "steps": NaN}', "line 2: steps: nan is not a finite number"),
        ('{"batch_size": 8}', "line 2: steps: empty"),
        ('{"batch_size": {"a": 1}, "steps": 1}', "line 2: batch_size: {'a': 1} is not a number"),
        ('{"batch_size": 8, "batch_size": 16, "steps": 1}', "line 2: key 'batch_size' is given twice"),
        ("[" * 100_000, "line 2: JSON nested too deeply"),
        (f'{{"batch_size": 8, "steps": {"9" * 5000}}}', "line 2: a whole number of thousands of digits"),
        (f'{{"batch_size": 8, "steps": {"9" * 400}}}', "line 2: steps: 9999"),
        ('{"batch_size": 8, "steps": 1e309}', "line 2: steps: inf is not a finite number"),
    ],
)
def test_bad_json_line_is_named(tmp_path: Path, line: str, match: str) -> None:
    refused(tmp_path, f'{{"batch_size": 8, "steps": 100}}\n{line}\n', re.escape(match), name="runs.jsonl")


def test_where_and_target_columns(tmp_path: Path) -> None:
    text = "model,batch,steps,target\na,8,100,3.4\na,8,150,3.2\nb,8,90,3.4\n"
    source = read_source(write(tmp_path / "runs.csv", text), SourceOptions(where={"model": "a"}))
    assert [(run.target, run.steps) for run in source.runs] == [("3.4", 100), ("3.2", 150)]
    assert [target.target for target in fit_study(source.runs).targets] == ["3.4", "3.2"]
    refused(tmp_path, text, "no row matches", where={"model": "c"})
    refused(tmp_path, text, "where: no column 'modle'; did you mean 'model'", where={"modle": "a"})


def test_evaluation_interval_from_columns_and_from_a_declared_spacing(tmp_path: Path) -> None:
    source = read_source(write(tmp_path / "a.csv", "batch,examples,low,high\n8,800,720,880\n"))
    assert (source.runs[0].steps, source.runs[0].low, source.runs[0].high) == (100, 90, 110)
    spaced = read_source(
        write(tmp_path / "b.csv", "batch,examples\n8,800\n"), SourceOptions(evaluation_spacing=80.0)
    )
    assert (spaced.runs[0].steps, spaced.runs[0].low, spaced.runs[0].high) == (None, 90, 100)
    refused(tmp_path, "batch,steps,low,high\n8,100,110,120\n", "line 2: steps: 100 must lie in the interval")


def test_options_are_checked() -> None:
    with pytest.raises(SourceError, match="kind: 'tabel' is unknown; did you mean 'table'"):
        SourceOptions(kind="tabel")
    with pytest.raises(SourceError, match=r"examples_per_epoch: -1\.0 must be a positive number"):
        SourceOptions(examples_per_epoch=-1.0)


def test_curves(tmp_path: Path) -> None:
    text = (
        "batch_size,lr,seed,step,eval_loss\n8,0.1,0,10,2.0\n8,0.1,0,15,\n8,0.1,1,10,2.0\n8,0.1,0,20,0.5\n"
        "8,0.1,1,20,nan\n8,0.1,0,10,3.0\n"
    )
    source = read_source(write(tmp_path / "curves.csv", text), SourceOptions(metric="eval_loss"))
    assert source.has_curves
    assert [(run.seed, run.points, run.state) for run in source.runs] == [
        (0, [(10, 3.0), (20, 0.5)], "censored"),
        (1, [(10, 2.0), (20, None)], "diverged"),
    ]
    report = fit_study(source.runs, [TargetRule(metric="eval_loss", value=1.0)]).targets[0]
    assert report.batches[0].trials[0].num_diverged == 1


def test_curves_in_examples_told_apart_by_run_names(tmp_path: Path) -> None:
    rows = [
        {"run": name, "batch": 8, "examples": 8 * step, "loss": 2.0 - step / 10}
        for name in ("a", "b")
        for step in (0, 5, 10)
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    source = read_source(write(tmp_path / "c.jsonl", text), SourceOptions(metric="loss"))
    assert [(run.seed, [step for step, _ in run.points or ()]) for run in source.runs] == [
        ("a", [0, 5, 10]),
        ("b", [0, 5, 10]),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("batch,step,los\n8,1,2\n", "metric: no column 'loss'; did you mean 'los'"),
        ("batch,step,loss\n8,1,2\n8,2,x\n", "line 3: loss: 'x' is not a number"),
        ("batch,step,loss\n8,-1,2\n", "line 2: step: -1 must not be negative"),
        ("run,batch,step,loss\na,8,1,2\na,16,2,1\n", "line 3: batch: 16 differs within run a"),
    ],
)
def test_bad_curves(tmp_path: Path, text: str, match: str) -> None:
    refused(tmp_path, text, match, metric="loss")


def test_mlperf_entries(tmp_path: Path) -> None:
    content = {
        "x_ref_8": {"Benchmark": "x", "BS": 8, "samples to converge": [800, 880]},
        "x_ref_16": {"Benchmark": "x", "BS": 16, "samples to converge": [960]},
        "x_ref_16_other": {"Benchmark": "x", "BS": 16, "samples to converge": [1120.0]},
    }
    source = read_source(write(tmp_path / "x.json", json.dumps(content)))
    assert [run.steps for run in source.runs] == [100, 110, 60, 70]
    report = fit_study(source.runs).targets[0]
    assert report.batches[1].choice.winner is not None
    assert report.batches[1].choice.winner.variant == "x_ref_16"


CURVE = "batch_size,run,step,loss\n"


@pytest.mark.parametrize(
    ("rows", "points", "lost"),
    [
        ([(10, 3), (20, 2), (30, 1), (15, 2.5), (25, 1.5), (35, 0.5)], [10, 15, 25, 35], 2),
        ([(10, 3), (20, 2), (30, 1), (40, 0.9), (40, 0.8), (50, 0.7)], [10, 20, 30, 40, 50], 1),
        ([(30, 1), (10, 3), (20, 2), (15, 2.5)], [10, 15, 20, 30], 0),
        ([(10, 3), (20, 2), (30, 1)], [10, 20, 30], 0),
    ],
)
def test_a_resumed_run_keeps_what_its_last_attempts_logged(
    tmp_path: Path, rows: list[tuple[float, float]], points: list[float], lost: int
) -> None:
    text = CURVE + "".join(f"8,a,{step},{loss}\n" for step, loss in rows)
    source = read_source(write(tmp_path / "c.csv", text), SourceOptions(metric="loss"))
    assert [step for step, _ in source.runs[0].points] == points
    assert (f"{lost} evaluations from there on" in " ".join(source.notes)) == (lost > 0)


def mlperf(**entry: object) -> str:
    return json.dumps({"x_ref": {"Benchmark": "x", **entry}})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            mlperf(**{"BS": 8, "Epochs to converge": [3]}),
            "entry 'x_ref': progress_unit: 'Epochs to converge' holds",
        ),
        (
            mlperf(**{"BS": 8, "samples to converge": [3, -1]}),
            "'samples to converge' seed 1: -1 must be positive",
        ),
        (mlperf(**{"BS": 8, "samples to converge": [3, None]}), "seed 1: an empty cell is not a number"),
        (mlperf(**{"BS": 8, "samples to converge": []}), "holds no list of seeds"),
        (mlperf(**{"BS": "x", "samples to converge": [3]}), "entry 'x_ref': BS: 'x' is not a number"),
        (mlperf(**{"samples to converge": [3]}), "needs the keys 'BS'"),
        ('{"x_ref": 3}', "entry 'x_ref': holds a int, not an object"),
        ("[]", "holds no object"),
        ('{"x": ', "line 1: not JSON"),
    ],
)
def test_bad_mlperf_files(tmp_path: Path, text: str, match: str) -> None:
    refused(tmp_path, text, match, name="x.json")


def test_mlperf_units_and_spacing_are_declared(tmp_path: Path) -> None:
    text = mlperf(**{"BS": 8, "Epochs to converge": [4, 5]})
    assert table(tmp_path, text, "x.json", progress_unit="epochs", examples_per_epoch=200.0)[0][3] == 100
    options = SourceOptions(progress_unit="examples", evaluation_spacing=2.0)
    run = read_source(tmp_path / "x.json", options).runs[0]
    assert (run.steps, run.low, run.high) == (None, 0.25, 0.5)


CHART = (
    '"Step","B8-lr0.1-s0 - eval_loss","B8-lr0.1-s0 - eval_loss__MIN","B8-lr0.1-s0 - eval_loss__MAX",'
    '"B16-lr0.1-s1 - eval_loss","notes - eval_loss"\n"1","2.0","2.0","2.0","1.5",""\n'
    '"2","0.5","0.5","0.5","",""\n'
)
PATTERN = r"B(?P<batch_size>\d+)-lr(?P<learning_rate>[\d.]+)-s(?P<seed>\d+)"


def test_wandb_chart(tmp_path: Path) -> None:
    options = SourceOptions(kind="wandb", run_pattern=PATTERN, progress_unit="steps")
    source = read_source(write(tmp_path / "chart.csv", CHART), options)
    assert [(run.batch_size, run.learning_rate, run.seed, run.points) for run in source.runs] == [
        (8, 0.1, 0, [(1, 2.0), (2, 0.5)]),
        (16, 0.1, 1, [(1, 1.5)]),
    ]
    assert source.notes == ("chart.csv: run 'notes': no match of run_pattern; left out",)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"run_pattern": PATTERN}, "progress_unit: declare what the first column counts"),
        ({"progress_unit": "steps"}, "run_pattern: needs a group named batch_size"),
        ({"progress_unit": "steps", "run_pattern": "("}, "run_pattern: not a regular expression"),
        (
            {"progress_unit": "steps", "run_pattern": r"(?P<batch_size>\d+)(?P<lr>x)"},
            "group 'lr' is not one of",
        ),
        ({"progress_unit": "steps", "run_pattern": r"Z(?P<batch_size>\d+)"}, "matches no run"),
    ],
)
def test_bad_wandb_charts(tmp_path: Path, options: dict[str, str], match: str) -> None:
    refused(tmp_path, CHART, re.escape(match) if "(" not in match else match, kind="wandb", **options)


def test_curves_read_as_a_table_say_so(tmp_path: Path) -> None:
    rows = "".join(f"{batch},0,{step},2.0\n" for batch in (8, 16) for step in (0, 10, 20, 30))
    refused(
        tmp_path, "batch_size,seed,step,loss\n" + rows, "look like curves.*--metric COLUMN --target VALUE"
    )


LONG = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("batch_size,step,loss", ["8", "8", "8"]),
        ("batch_size,seed,step,loss", ["8,", "8,", "8,"]),
    ],
)
@pytest.mark.parametrize("num_rows", [3, 10])
def test_seeds_that_nothing_tells_apart_are_not_one_run(
    tmp_path: Path, header: str, cells: list[str], num_rows: int
) -> None:
    rows = [
        f"{cell},{10 * step},{4.0 - 0.1 * step * k}\n"
        for k, cell in enumerate(cells, 1)
        for step in range(num_rows)
    ]
    refused(tmp_path, f"{header}\n{''.join(rows)}", r"map seed=COLUMN or run=COLUMN", metric="loss")


@pytest.mark.parametrize("seeds", [(LONG, LONG + 1, LONG + 2), ("1_1", "11", "1.5"), ("a", "b", "c")])
def test_every_seed_is_itself(tmp_path: Path, seeds: tuple[object, ...]) -> None:
    rows = "".join(f"8,{seed},{step},{4 - step}\n" for seed in seeds for step in (1, 2, 3))
    source = read_source(
        write(tmp_path / "c.csv", f"batch_size,seed,step,loss\n{rows}"), SourceOptions(metric="loss")
    )
    assert len(source.runs) == 3
    text = "batch_size,seed,steps\n" + "".join(f"8,{seed},{100 + i}\n" for i, seed in enumerate(seeds))
    assert len(table(tmp_path, text)) == 3


def test_a_rate_that_changes_within_a_run_is_no_runs_rate(tmp_path: Path) -> None:
    rows = "".join(f"8,a,{0.1 * step},{step},2.0\n" for step in (1, 2, 3))
    refused(
        tmp_path,
        f"batch_size,run,learning_rate,step,loss\n{rows}",
        "line 3: learning_rate: 0.2 differs from 0.1 within run a; map learning_rate",
        metric="loss",
    )


def test_mlperf_entries_keep_their_own_unit_and_benchmark(tmp_path: Path) -> None:
    samples = mlperf(**{"BS": 8, "samples to converge": [16000, 17000]})
    declared = {"progress_unit": "epochs", "examples_per_epoch": 100.0}
    refused(tmp_path, samples, "'samples to converge' counts examples, not epochs", "x.json", **declared)
    entry = {"BS": 8, "samples to converge": [16000, 17000]}
    text = json.dumps({"a": {"Benchmark": "bert", **entry}, "b": {"Benchmark": "gpt3", **entry}})
    refused(tmp_path, text, "several benchmarks .bert, gpt3.", "y.json")


def test_json_lines_end_where_json_says(tmp_path: Path) -> None:
    lines = [
        {"batch_size": 8, "steps": 100, "ok": True, "note": "a\u2028b"},
        {"batch_size": 8, "steps": 90, "ok": None},
    ]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    source = read_source(write(tmp_path / "r.jsonl", text), SourceOptions(where={"ok": "true"}))
    assert [run.steps for run in source.runs] == [100]
