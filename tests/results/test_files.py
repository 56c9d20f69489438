"""Whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gasweep.errors import SourceError
from gasweep.results.files import read_result, write_json, write_result, write_text
from tests.results.examples import make_eval, make_result


def test_a_result_survives_its_file_exactly(tmp_path: Path) -> None:
    result = make_result("a", evaluations=[make_eval(3, loss=0.1 + 0.2)])
    write_result(tmp_path / "runs" / "a" / "result.json", result)
    assert repr(read_result(tmp_path / "runs" / "a" / "result.json")) == repr(result)


def test_an_absent_result_is_none_and_a_broken_one_names_its_file(tmp_path: Path) -> None:
    assert read_result(tmp_path / "result.json") is None
    for text in ('{"run_id": "a"', '{"run_id": "a"}', "[]", '{"throughput": null, "new_field": 1}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(SourceError, match=r"result\.json is not a result this gasweep can read"):
            read_result(tmp_path / "result.json")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    write_text(tmp_path / "x.json", "old")
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "x.json", float("nan"))
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "x.json", "\ud800")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text() == "old"


def test_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_text(tmp_path / "x", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
