"""The Task contract, over every shipped task."""

import pickle
import random

import numpy as np
import pytest
import torch

from gasweep.tasks import SHIPPED_TASKS, check_task
from gasweep.tasks.base import SummedLoss, num_examples
from tests.tasks.shipped import INSTANCES

pytestmark = pytest.mark.filterwarnings("ignore:.*joblib.*:UserWarning")
INDICES = np.array([3, 11, 7, 3, 20, 1, 15], dtype=np.int64)


@pytest.fixture(params=INSTANCES, scope="module")
def task(request):
    return INSTANCES[request.param]


@pytest.fixture(scope="module")
def data(task):
    return task.train_data(root=None)


@pytest.fixture
def model(task):
    torch.manual_seed(0)
    return task.build_model().double()


def double(batch):
    if isinstance(batch, tuple):
        return tuple(double(part) for part in batch)
    return batch.double() if batch.is_floating_point() else batch


def tensors(batch):
    return list(batch) if isinstance(batch, tuple) else [batch]


def loss_and_gradient(task, model, batch):
    """(total, num_items, gradient of the total as one vector)."""
    model.zero_grad(set_to_none=True)
    result = task.loss(model, double(batch))
    assert isinstance(result, SummedLoss)
    result.total.backward()
    return result.total.item(), result.num_items, torch.cat([p.grad.flatten() for p in model.parameters()])


def test_every_shipped_task_is_covered():
    assert {type(task).__name__ for task in INSTANCES.values()} == set(SHIPPED_TASKS)


def test_check_task_finds_nothing(task):
    assert check_task(task) == []


def test_batch_depends_on_indices_alone(task, data):
    first = data.batch(INDICES)
    np.random.seed(1)
    torch.manual_seed(1)
    again = task.train_data(root=None).batch(INDICES.copy())
    for left, right in zip(tensors(first), tensors(again), strict=True):
        assert torch.equal(left, right)
    for position, index in enumerate(INDICES):
        row = data.batch(np.array([index]))
        for whole, single in zip(tensors(first), tensors(row), strict=True):
            assert torch.equal(whole[position], single[0])


def test_a_batch_is_the_callers_to_change(data):
    for tensor in tensors(data.batch(INDICES)):
        tensor.zero_()
    assert any(bool((tensor != 0).any()) for tensor in tensors(data.batch(INDICES)))


def test_sum_of_parts_equals_whole(task, data, model):
    total, items, gradient = loss_and_gradient(task, model, data.batch(INDICES))
    parts = [loss_and_gradient(task, model, data.batch(INDICES[a:b])) for a, b in ((0, 1), (1, 4), (4, 7))]
    assert sum(part[1] for part in parts) == items
    assert sum(part[0] for part in parts) == pytest.approx(total, rel=1e-12, abs=1e-12)
    gap = (sum(part[2] for part in parts) - gradient).abs().max()
    assert gap <= 1e-12 * max(part[2].abs().max() for part in parts)


def test_empty_group_has_no_items_and_a_zero_gradient(task, data, model):
    batch = data.batch(INDICES[:0])
    assert num_examples(batch) == 0
    total, items, gradient = loss_and_gradient(task, model, batch)
    assert (total, items) == (0.0, 0)
    assert bool((gradient == 0).all())


def test_count_items_is_what_the_loss_counts(task, data, model):
    for indices in (INDICES, INDICES[:1], INDICES[:0]):
        batch = data.batch(indices)
        assert task.count_items(batch) == task.loss(model, double(batch)).num_items


def test_group_losses_sum_to_the_loss(task, data, model):
    batch = double(data.batch(INDICES))
    losses = task.group_losses(model, batch)
    assert list(losses.shape) == [len(INDICES)]
    assert losses.sum().item() == pytest.approx(task.loss(model, batch).total.item(), rel=1e-12, abs=1e-12)


def test_group_losses_are_those_of_the_examples_alone(task, data, model):
    together = task.group_losses(model, double(data.batch(INDICES)))
    for position in range(len(INDICES)):
        alone = task.group_losses(model, double(data.batch(INDICES[position : position + 1])))
        assert alone.item() == pytest.approx(together[position].item(), rel=1e-12, abs=1e-13)


def test_evaluation_is_fixed_and_limited(task, model):
    model.eval()
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        batches = task.eval_batches(root=None, batch_size=16, max_examples=40)
        with torch.no_grad():
            runs.append([task.eval_sums(model, double(batch)) for batch in batches])
    assert runs[0] == runs[1]
    assert sum(num_examples(batch) for batch in batches) <= 40
    assert max(num_examples(batch) for batch in batches) <= 16


def test_evaluation_does_not_depend_on_its_batch_size(task, model):
    model.eval()
    means = []
    for batch_size in (7, 40):
        batches = task.eval_batches(root=None, batch_size=batch_size, max_examples=40)
        with torch.no_grad():
            sums = [task.eval_sums(model, double(batch))["eval_loss"] for batch in batches]
        means.append(sum(total for total, _ in sums) / sum(count for _, count in sums))
    assert means[0] == pytest.approx(means[1], rel=1e-12)


def test_metrics_are_what_eval_sums_returns(task, model):
    batch = task.eval_batches(root=None, batch_size=4, max_examples=4)[0]
    assert "eval_loss" in task.metrics()
    with torch.no_grad():
        assert set(task.eval_sums(model.eval(), double(batch))) == set(task.metrics())


def test_num_tokens(task, data):
    batch = data.batch(INDICES)
    expected = len(INDICES) * task.context if hasattr(task, "context") else None
    assert task.num_tokens(batch) == expected


def test_initial_parameters_depend_on_the_torch_seed_alone(task):
    states = []
    for other_seed in (1, 2):
        np.random.seed(other_seed)
        random.seed(other_seed)
        torch.manual_seed(5)
        states.append(task.build_model().state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        assert value.dtype == torch.float32
        assert value.device.type == "cpu"


def test_pickles(task):
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    assert torch.equal(
        tensors(copy.train_data(root=None).batch(INDICES))[0],
        tensors(task.train_data(root=None).batch(INDICES))[0],
    )


def test_training_data_pickle(data):
    copy = pickle.loads(pickle.dumps(data))
    assert len(copy) == len(data)
    assert torch.equal(tensors(copy.batch(INDICES))[0], tensors(data.batch(INDICES))[0])


def test_half_precision_forward(task, data):
    """Under autocast, and with parameters in bfloat16, the loss is finite."""
    torch.manual_seed(0)
    model = task.build_model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = task.loss(model, data.batch(INDICES)).total
    assert bool(torch.isfinite(under_autocast))
    assert bool(torch.isfinite(task.loss(model.bfloat16(), data.batch(INDICES)).total))


def test_flops_per_example(task, model):
    flops = task.flops_per_example(model)
    assert flops is None or flops > 0


def test_units_to_shard_are_submodules(task, model):
    units = task.parallelize(model)
    inside = {id(module) for module in model.modules()}
    assert units is None or all(id(unit) in inside for unit in units)
