"""The example of docs/tasks.md runs as it stands and keeps the contract."""

import re
from pathlib import Path

from gasweep.tasks import check_task
from gasweep.tasks.resolve import resolve_task

DOCS = Path(__file__).parent.parent.parent / "docs" / "tasks.md"


def test_the_example_keeps_the_contract(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    (tmp_path / "sine_of_the_docs.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = resolve_task({"_target_": "sine_of_the_docs.Sine", "width": 16})
    assert check_task(task) == []
