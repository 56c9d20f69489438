"""From the `task:` section of a config to a Task: import `_target_`, check the arguments, build it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, get_type_hints

from gasweep.errors import ConfigError, GasweepError, TaskError, nearest
from gasweep.tasks import SHIPPED_TASKS
from gasweep.tasks.base import Task
from gasweep.tasks.coerce import coerce, describe

SHIPPED_TARGETS = tuple(f"gasweep.tasks.{name}" for name in SHIPPED_TASKS)


def resolve_task(section: Mapping[str, Any]) -> Task:
    """The task that a config's `task:` section describes.

    `_target_` is `package.module.Class`, imported with the current directory on the path, so that a user's
    own file next to the config works. Every other key is an argument of the class, coerced through its
    annotated type.

    Raises ConfigError, one line, for a missing or misspelt target, a module that fails to import, a class
    that is no Task, and an unknown, missing or ill-typed argument; TaskError when the task refuses its
    arguments.
    """
    target = section.get("_target_")
    if target is None:
        raise ConfigError(
            "task._target_ is missing: name the class of the task, "
            f"one of {', '.join(SHIPPED_TARGETS)} or your own"
        )
    task_class = import_task_class(target)
    arguments = check_arguments(task_class, {k: v for k, v in section.items() if k != "_target_"})
    try:
        return task_class(**arguments)
    except GasweepError:
        raise
    except Exception as error:
        raise TaskError(f"task._target_={target!r} cannot be built: {_one_line(error)}") from error


def import_task_class(target: object) -> type[Task]:
    """The Task subclass at `target`. Raises ConfigError naming what is wrong and the nearest valid name."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(f"task._target_={target!r} must be a dotted name such as {SHIPPED_TARGETS[1]!r}")
    module_name, _, class_name = target.rpartition(".")
    if not module_name:
        raise ConfigError(
            f"task._target_={target!r} names no module; write package.module.Class; "
            f"{nearest(f'gasweep.tasks.{target}', SHIPPED_TARGETS)}"
        )
    module = _import_module(module_name, target)
    found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(
            f"task._target_={target!r}: module {module_name!r} has no {class_name!r}; "
            f"{_suggest(class_name, _task_names(module), module_name)}"
        )
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigError(
            f"task._target_={target!r} is no Task; derive it from gasweep.tasks.Task (see docs/tasks.md)"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"task._target_={target!r} does not define {missing} (see docs/tasks.md)")
    return found


def check_arguments(task_class: type[Task], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` coerced to the types that `task_class` declares. Raises ConfigError naming `task.<key>`."""
    parameters = dict(inspect.signature(task_class).parameters)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    hints = _hints(task_class)
    checked = {}
    for key, value in arguments.items():
        if key not in named and not open_ended:
            raise ConfigError(
                f"task.{key}={value!r} is no argument of {task_class.__name__}; {_nearest_key(key, named)}"
            )
        checked[key] = coerce(value, hints.get(key, Any), field=f"task.{key}")
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in checked:
            wanted = describe(hints.get(name, Any))
            raise ConfigError(f"task.{name} is missing: {task_class.__name__} needs it ({wanted})")
    return checked


def _nearest_key(key: str, named: Iterable[str]) -> str:
    names = list(named)
    return nearest(key, names) if names else "it takes none"


def _hints(task_class: type[Task]) -> dict[str, Any]:
    """Argument name -> type, from the fields of a dataclass and the annotations of __init__."""
    hints: dict[str, Any] = {}
    for owner in (task_class, task_class.__init__):
        # A name that cannot be resolved leaves the types unknown, which checks nothing and refuses nothing.
        with contextlib.suppress(NameError, TypeError, AttributeError):
            hints |= get_type_hints(owner)
    return hints


def _import_module(module_name: str, target: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise ConfigError(
                f"task._target_={target!r}: no module {missing!r} on the path or in {here}; "
                f"{_suggest(target, SHIPPED_TARGETS, 'gasweep.tasks')}"
            ) from error
        raise ConfigError(
            f"task._target_={target!r}: importing {module_name} needs {missing!r}, which is not installed"
        ) from error
    except GasweepError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"task._target_={target!r}: importing {module_name} raised {_one_line(error)}{_where(error)}"
        ) from error


def _task_names(module: ModuleType) -> list[str]:
    if module.__name__ == "gasweep.tasks":
        return list(SHIPPED_TASKS)
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Task) and not inspect.isabstract(value)
    ]


def _suggest(name: str, valid: Iterable[str], place: str) -> str:
    names = list(valid)
    return nearest(name, names) if names else f"{place} defines no Task"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where(error: BaseException) -> str:
    """Where in the user's file an import failed."""
    if isinstance(error, SyntaxError):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}:{last.lineno})"
