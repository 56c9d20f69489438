import pytest

from gasweep import errors


def test_the_tree_drawn_in_the_docstring_is_the_tree():
    drawn = errors.__doc__ or ""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    for cls in classes:
        assert f"{cls.__name__}" in drawn, cls
    assert issubclass(errors.BatchError, ValueError)


@pytest.mark.parametrize(
    ("cls", "code"), [(errors.ConfigError, 2), (errors.RefusedError, 2), (errors.WorkerLostError, 1)]
)
def test_exit_codes(cls, code):
    assert cls.exit_code == code


def test_nearest():
    assert errors.nearest("gird", ["grid", "task"]) == "did you mean 'grid'?"
    assert errors.nearest("zzz", ["grid", "task"]) == "valid names: grid, task"
