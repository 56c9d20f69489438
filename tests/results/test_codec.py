"""Records that a later version wrote can be read: what is not known is left out."""

from __future__ import annotations

from gasweep.results.codec import result_from_dict, to_json_dict
from tests.results.examples import make_result


def test_records_come_back_as_they_were() -> None:
    result = make_result("a")
    assert result_from_dict(to_json_dict(result)) == result


def test_keys_of_a_later_version_are_left_out() -> None:
    result = make_result("a")
    data = to_json_dict(result)
    parts = [data, data["throughput"], data["throughput"]["communication"][0], data["environment"]]
    for part in parts:
        part["of_a_later_version"] = 1
    assert result_from_dict(data) == result


def test_records_of_an_earlier_version_have_no_communication() -> None:
    data = to_json_dict(make_result("a"))
    del data["throughput"]["communication"]
    throughput = result_from_dict(data).throughput
    assert throughput is not None
    assert throughput.communication == []
