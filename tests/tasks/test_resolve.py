"""From the task section of a config to a task: every kind of wrong input gets one clear line."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from gasweep.errors import ConfigError, TaskError
from gasweep.tasks import FashionMnist, TextLm
from gasweep.tasks.coerce import coerce
from gasweep.tasks.resolve import check_arguments, resolve_task
from tests.tasks.test_check_task import Good

USER_MODULE = """
from dataclasses import dataclass
from gasweep.tasks import Task, Digits

@dataclass(kw_only=True)
class MyTask(Digits):
    width: int
    name: str = "mine"

class Unfinished(Task):
    pass
"""


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A folder that is the current directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != ""])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def message(section):
    with pytest.raises((ConfigError, TaskError)) as raised:
        resolve_task(section)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_shipped_task():
    section = {"_target_": "gasweep.tasks.FashionMnist", "hidden": 12}
    assert resolve_task(section) == FashionMnist(hidden=12)


def test_the_module_path_of_a_shipped_task():
    assert resolve_task({"_target_": "gasweep.tasks.text_lm.TextLm"}) == TextLm()


def test_the_section_is_left_as_it_was():
    section = {"_target_": "gasweep.tasks.TextLm", "dropout": "1e-1"}
    resolve_task(section)
    assert section == {"_target_": "gasweep.tasks.TextLm", "dropout": "1e-1"}


def test_a_users_own_module_in_the_current_directory(user_folder):
    (user_folder / "my_tasks_a.py").write_text(USER_MODULE)
    task = resolve_task({"_target_": "my_tasks_a.MyTask", "width": "3", "hidden": 5})
    assert (task.width, task.hidden, task.name) == (3, 5, "mine")


def test_a_users_own_package(user_folder):
    (user_folder / "my_pkg_b").mkdir()
    (user_folder / "my_pkg_b" / "__init__.py").write_text("from .tasks import MyTask\n")
    (user_folder / "my_pkg_b" / "tasks.py").write_text(USER_MODULE)
    assert resolve_task({"_target_": "my_pkg_b.MyTask", "width": 1}).width == 1
    assert resolve_task({"_target_": "my_pkg_b.tasks.MyTask", "width": 1}).width == 1


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, "task._target_ is missing"),
        ({"hidden": 3}, "task._target_ is missing"),
        ({"_target_": 7}, "task._target_=7 must be a dotted name"),
        ({"_target_": "a b.C"}, "task._target_='a b.C' must be a dotted name"),
        ({"_target_": "FashionMnist"}, "names no module; .*did you mean 'gasweep.tasks.FashionMnist'?"),
        ({"_target_": "gasweep.tasks.FashionMinst"}, "has no 'FashionMinst'; did you mean 'FashionMnist'?"),
        ({"_target_": "gasweep.task.TextLm"}, "no module 'gasweep.task' .*mean 'gasweep.tasks.TextLm'?"),
        ({"_target_": "nowhere_to_be_found.T"}, "no module 'nowhere_to_be_found' on the path or in "),
        ({"_target_": "json.JSONDecoder"}, "'json.JSONDecoder' is no Task"),
        ({"_target_": "json.dumps"}, "'json.dumps' is no Task"),
        ({"_target_": "json.JSONDecode"}, "has no 'JSONDecode'; json defines no Task"),
        ({"_target_": "gasweep.tasks.Task"}, "does not define build_model, eval_batches"),
        (
            {"_target_": "gasweep.tasks.FashionMnist", "hiden": 64},
            "task.hiden=64 is no argument of FashionMnist; did you mean 'hidden'?",
        ),
        ({"_target_": "gasweep.tasks.FashionMnist", "hidden": 0}, "hidden=0 must be a whole number >= 1"),
        ({"_target_": "gasweep.tasks.TextLm", "width": 10, "heads": 4}, "width=10 .*multiple of heads=4"),
        ({"_target_": "gasweep.tasks.TextLm", "dropout": 1.0}, "dropout=1.0 must be .* <= 0.99"),
        ({"_target_": "gasweep.tasks.NoisyQuadratic", "noise": "pink"}, "additive, multiplicative"),
    ],
)
def test_wrong_sections(section, expected):
    with pytest.raises((ConfigError, TaskError), match=expected):
        resolve_task(section)
    message(section)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_dependency\n", "needs 'no_such_dependency', which is not installed"),
        ("x = 1\nraise ValueError('first\\nsecond')\n", "raised ValueError: first second .*broken_.*py:2"),
        ("def f(:\n", "raised SyntaxError"),
        ("import sys\nsys.exit(3)\n", "raised SystemExit: 3"),
        ("from gasweep.tasks import Nothing\n", "raised ImportError"),
    ],
)
def test_a_module_that_fails_to_import(user_folder, source, expected, request):
    name = f"broken_{abs(hash(request.node.name))}"
    (user_folder / f"{name}.py").write_text(source)
    section = {"_target_": f"{name}.MyTask"}
    with pytest.raises(ConfigError, match=expected):
        resolve_task(section)
    message(section)


def test_a_missing_argument(user_folder):
    (user_folder / "my_tasks_c.py").write_text(USER_MODULE)
    assert "task.width is missing: MyTask needs it (a whole number)" in message(
        {"_target_": "my_tasks_c.MyTask"}
    )
    assert "does not define" in message({"_target_": "my_tasks_c.Unfinished"})


class HandWritten(Good):
    def __init__(self, *, rate: float, tag: str = "a") -> None:
        self.rate, self.tag = rate, tag


class OpenEnded(Good):
    def __init__(self, **options: Any) -> None:
        self.options = options


class Refusing(Good):
    def __init__(self) -> None:
        raise KeyError("vocabulary")


def test_a_task_that_is_no_dataclass():
    assert check_arguments(HandWritten, {"rate": "1e-3"}) == {"rate": 0.001}
    with pytest.raises(ConfigError, match=r"task\.rat=1 is no argument of HandWritten"):
        check_arguments(HandWritten, {"rat": 1})
    assert check_arguments(OpenEnded, {"anything": [1]}) == {"anything": [1]}


def test_an_error_inside_the_constructor_is_one_line():
    assert "cannot be built: KeyError: 'vocabulary'" in message({"_target_": f"{__name__}.Refusing"})


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e-3", float, 0.001),
        ("1e3", float, 1000.0),
        (3, float, 3.0),
        ("4", int, 4),
        (None, int | None, None),
        ("1e-3", float | None, 0.001),
        ("4", int | float, 4),
        (2.5, int | float, 2.5),
        ("a", str | int, "a"),
        (True, bool, True),
        ([1, "2"], list[int], [1, 2]),
        ([1, 2], tuple[int, float], (1, 2.0)),
        ((1, 2, 3), tuple[int, ...], (1, 2, 3)),
        ({"a": "1e1"}, dict[str, float], {"a": 10.0}),
        ("mean", Literal["mean", "sum"], "mean"),
        (object, Any, object),
    ],
)
def test_c17_numbers_are_coerced_through_the_declared_type(value, hint, expected):
    result = coerce(value, hint, field="task.x")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        ("abc", float, "a number"),
        (True, float, "a number"),
        (None, float, "a number"),
        ("nan", float, "a finite number"),
        (float("inf"), float, "a finite number"),
        (2.0, int, "a whole number"),
        ("4.0", int, "a whole number"),
        (True, int, "a whole number"),
        (None, int, "a whole number"),
        (2.5, int | None, "a whole number or null"),
        (1, bool, "true or false"),
        ("no", bool, "true or false"),
        (1, str, "text; put it in quotes"),
        (False, str, "text; put it in quotes"),
        (3, list[int], "a list"),
        ([1, 2.0], list[int], "a whole number"),
        ([1], tuple[int, int], "a list of 2 values"),
        ([1], dict[str, int], "a mapping"),
        ("max", Literal["mean", "sum"], "one of 'mean', 'sum'"),
        (1, Literal[True, "sum"], "one of True, 'sum'"),
    ],
)
def test_c17_ill_typed_values_are_refused_by_name(value, hint, wanted):
    with pytest.raises(ConfigError) as raised:
        coerce(value, hint, field="task.x")
    text = str(raised.value)
    assert text.startswith("task.x")
    assert text.endswith(f"must be {wanted}")


def test_resolving_a_shipped_task_loads_neither_torch_nor_ray():
    program = (
        "import sys\n"
        "from gasweep.tasks.resolve import resolve_task\n"
        "for name in ('Digits', 'FashionMnist', 'NoisyQuadratic', 'TextLm'):\n"
        "    resolve_task({'_target_': f'gasweep.tasks.{name}'}).metrics()\n"
        "print(sorted({'torch', 'ray', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@dataclass(kw_only=True)
class ForwardReference(Good):
    other: "NotImportedHere" = None  # noqa: F821
    size: int = 1


def test_unresolvable_annotations_leave_values_unchecked():
    assert check_arguments(ForwardReference, {"size": 2}) == {"size": 2}
