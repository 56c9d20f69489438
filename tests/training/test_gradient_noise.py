"""`GradientNoiseScale` in one process: against per-group reference gradients, and every way to misuse it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gasweep.analysis.noise_scale import (
    DUPLICATES,
    NOT_FINITE,
    TOO_FEW_GROUPS,
    NoiseMeasurement,
    NotMeasured,
    measure_groups,
)
from gasweep.errors import MeasurementError, RefusedError
from gasweep.training.gradient_noise import GradientNoiseScale
from gasweep.training.gradient_noise_ranks import IN_PIECES


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def groups_of(*sizes: int, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in sizes
    ]


def mean_loss(model, group):
    return functional.cross_entropy(model(group[0]), group[1])


def gradient(model, group, loss=mean_loss):
    """The flat fp64 gradient of a copy of the model: no hook of the measured one fires."""
    other = copy.deepcopy(model)
    other.zero_grad()
    loss(other, group).backward()
    zero = torch.zeros(1)
    return torch.cat([(zero if p.grad is None else p.grad).double().flatten() for p in other.parameters()])


def reference(model, groups, *, loss=mean_loss, weights=None, dataset_size=None) -> NoiseMeasurement:
    sizes = [len(y) for _, y in groups]
    each = torch.stack([gradient(model, group, loss) for group in groups])
    share = torch.tensor([float(n) for n in (weights or sizes)], dtype=torch.float64)
    mean = share @ each / share.sum()
    result = measure_groups(
        each.square().sum(dim=1).tolist(),
        counts=sizes,
        weights=weights,
        mean_sq_norm=float(mean @ mean),
        dataset_size=dataset_size,
    )
    assert isinstance(result, NoiseMeasurement)
    return result


def same(found, expected: NoiseMeasurement, rel: float = 1e-5) -> None:
    assert isinstance(found, NoiseMeasurement), found
    assert found.grad_noise_trace == pytest.approx(expected.grad_noise_trace, rel=rel)
    assert found.grad_sq_norm == pytest.approx(
        expected.grad_sq_norm, rel=rel, abs=rel * expected.grad_noise_trace
    )
    assert (found.num_groups, found.num_examples) == (expected.num_groups, expected.num_examples)


def run(noise, model, groups, *, scale: float = 1.0, **kwargs):
    """nanoGPT's inner loop: mean losses over G, accumulated."""
    model.zero_grad()
    for group in groups:
        (scale * mean_loss(model, group) / len(groups)).backward()
    if scale != 1.0:
        for parameter in model.parameters():
            parameter.grad /= scale
    return noise.step(loss_scale=scale, **kwargs)


def test_c02_own_gradients_not_the_accumulated_buffer():
    model = nn.Linear(1, 1, bias=False)
    noise = GradientNoiseScale(model, micro_batch_size=1, every=1)
    for x in (1.0, 3.0):
        (model(torch.tensor([[x]])).sum() / 2).backward()
    found = noise.step()
    assert isinstance(found, NoiseMeasurement)
    assert (found.grad_sq_norm, found.grad_noise_trace) == pytest.approx((3.0, 2.0))
    assert noise.estimate().ratio_of_means == pytest.approx(2.0 / 3.0)


def test_c02_one_group_is_not_measurable():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    assert run(noise, model, groups_of(4)) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert "not measurable" in str(noise.estimate().noise_scale.reason)


def test_equal_groups_match_the_reference_over_steps():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1, dataset_size=1000)
    for step in range(3):
        groups = groups_of(8, 8, 8, seed=step)
        same(run(noise, model, groups, loss=0.5), reference(model, groups, dataset_size=1000))
    assert [m.optimizer_step for m in noise.steps()] == [0, 1, 2]


def test_measuring_changes_no_bit_of_the_gradient():
    plain, measured = small_model(), small_model()
    noise = GradientNoiseScale(measured, micro_batch_size=8, every=1)
    run(noise, measured, groups_of(8, 8, 8))
    for group in groups_of(8, 8, 8):
        (mean_loss(plain, group) / 3).backward()
    for one, two in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def test_loss_scaling_is_undone():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    groups = groups_of(8, 8)
    same(run(noise, model, groups, scale=65536.0), reference(model, groups))


def test_unequal_groups_of_a_mean_of_means():
    model = small_model()
    noise = GradientNoiseScale(model, every=1)
    groups = groups_of(8, 8, 3)
    for group in groups:
        with noise.group(num_examples=len(group[1])):
            (mean_loss(model, group) / 3).backward()
    same(noise.step(), reference(model, groups, weights=[1, 1, 1]))


def test_unequal_groups_of_a_summed_loss_with_an_empty_one():
    model = small_model()
    noise = GradientNoiseScale(model, every=1, loss_reduction="sum")
    groups = groups_of(8, 8, 3)
    for group in [*groups, (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))]:
        with noise.group(num_examples=len(group[1])):
            (functional.cross_entropy(model(group[0]), group[1], reduction="sum") / 19).backward()
    same(noise.step(loss_divisor=19), reference(model, groups))


def test_a_group_of_examples_without_items_is_none():
    model = small_model()
    noise = GradientNoiseScale(model, loss_reduction="sum", every=1)
    for sizes in ((4, 0), (4, 3, 0)):
        model.zero_grad()
        groups = groups_of(4, 4, 4)[: len(sizes)]
        for group, items in zip(groups, sizes, strict=True):
            with noise.group(num_examples=4, num_items=items):
                (mean_loss(model, group) * items / sum(sizes)).backward()
        found = noise.step(loss_divisor=float(sum(sizes)))
        if len(sizes) == 2:
            assert found == NotMeasured(reason=TOO_FEW_GROUPS)
        else:
            same(found, reference(model, groups[:2], weights=[4, 3]))


def test_a_short_window_divided_by_g_is_still_measured_in_its_own_mean():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    groups = groups_of(8, 8)
    for group in groups:
        (mean_loss(model, group) / 4).backward()
    same(noise.step(loss_divisor=4), reference(model, groups))


@pytest.mark.parametrize(
    ("mistake", "ratio"),
    [("clipped", "0.0"), ("summed", "1.0"), ("still scaled", "1024"), ("not zeroed", "times what")],
)
def test_a_wrong_final_gradient_is_named(mistake, ratio):
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    if mistake == "not zeroed":
        noise.close()
        mean_loss(model, groups_of(8, seed=9)[0]).backward()
        noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    scale = 1024.0 if mistake == "still scaled" else 1.0
    for group in groups_of(8, 8):
        (scale * mean_loss(model, group) / 2).backward()
    if mistake == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    if mistake == "summed":
        for parameter in model.parameters():
            parameter.grad *= 2
    with pytest.raises(
        MeasurementError, match="must be 1: measure after sync and unscale and before clipping"
    ):
        noise.step(loss_scale=scale)


def test_a_gradient_that_is_not_finite_leaves_the_step_out():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=2, every=1)
    groups = groups_of(2, 2)
    groups[1][0][0, 0] = math.nan
    assert run(noise, model, groups) == NotMeasured(reason=NOT_FINITE)
    good = groups_of(2, 2)
    assert isinstance(run(noise, model, good), NoiseMeasurement)
    assert noise.estimate().left_out == {NOT_FINITE: 1}


def test_a_step_can_be_left_out_with_a_reason():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=2, every=1)
    assert run(noise, model, groups_of(2, 2), leave_out=DUPLICATES) == NotMeasured(reason=DUPLICATES)
    assert noise.estimate().left_out == {DUPLICATES: 1}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def tied_loss(model, group):
    return functional.cross_entropy(model(group[0]).flatten(0, 1), group[1].flatten())


def test_a_shared_weight_counts_once_and_an_unused_one_not_at_all():
    torch.manual_seed(0)
    model = Tied()
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    groups = [(torch.randint(0, 11, (4, 5)), torch.randint(0, 11, (4, 5))) for _ in range(3)]
    for group in groups:
        (tied_loss(model, group) / 3).backward()
    same(noise.step(), reference(model, groups, loss=tied_loss))


class Reentrant(nn.Module):
    """Both checkpointed segments use the same layer, so its gradient comes in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = x.detach().requires_grad_()
        x = checkpoint(self.layer, x, use_reentrant=True)
        return self.head(checkpoint(self.layer, torch.tanh(x), use_reentrant=True))


def test_reentrant_checkpointing_needs_explicit_groups():
    torch.manual_seed(0)
    model = Reentrant()
    del model.head
    model.forward = lambda x: checkpoint(model.layer, x.requires_grad_(), use_reentrant=True)
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    with pytest.raises(MeasurementError, match="use_reentrant=True"):
        mean_loss(model, groups_of(4)[0]).backward()
    noise.close()


def test_a_gradient_in_pieces_is_noticed_then_put_together():
    torch.manual_seed(0)
    model = Reentrant()
    noise = GradientNoiseScale(model, every=1)
    results = []
    for step in range(2):
        groups = groups_of(4, 4, seed=step)
        model.zero_grad()
        for group in groups:
            with noise.group(num_examples=4):
                (mean_loss(model, group) / 2).backward()
        results.append((noise.step(), reference(model, groups)))
    assert results[0][0] == NotMeasured(reason=IN_PIECES)
    same(*results[1])


def test_backward_twice_within_a_group_is_one_group():
    model = small_model()
    noise = GradientNoiseScale(model, every=1)
    for step in range(2):
        groups = groups_of(4, 4, seed=step)
        model.zero_grad()
        for x, y in groups:
            with noise.group(num_examples=4):
                for half in (slice(0, 2), slice(2, 4)):
                    (functional.cross_entropy(model(x[half]), y[half], reduction="sum") / 8).backward()
        found = noise.step()
    same(found, reference(model, groups))


def test_bf16_parameters_are_squared_in_fp32():
    model = small_model().bfloat16()
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    groups = [(x.bfloat16(), y) for x, y in groups_of(8, 8)]
    found = run(noise, model, groups)
    expected = reference(model, groups)
    assert isinstance(found, NoiseMeasurement)
    assert found.grad_noise_trace == pytest.approx(expected.grad_noise_trace, rel=2e-2)
    own = torch.stack([gradient(model, group) for group in groups]).square().sum()
    low = sum(float(torch.linalg.vector_norm(gradient(model, g).bfloat16())) ** 2 for g in groups)
    assert low != pytest.approx(float(own), rel=1e-4)


def test_parameter_groups_add_up_to_the_whole():
    model = small_model()
    noise = GradientNoiseScale(
        model, micro_batch_size=8, every=1, parameter_group=lambda name: name.split(".")[0]
    )
    whole = run(noise, model, groups_of(8, 8, 8))
    parts = [noise.steps(label=label)[0] for label in ("0", "2")]
    assert isinstance(whole, NoiseMeasurement)
    assert sum(p.grad_noise_trace for p in parts) == pytest.approx(whole.grad_noise_trace)
    assert sum(p.grad_sq_norm for p in parts) == pytest.approx(whole.grad_sq_norm)


def test_adams_metric_weighs_by_the_second_moments_before_the_step():
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1, optimizer=optimizer)
    for step in range(3):
        groups = groups_of(8, 8, 8, seed=step)
        run(noise, model, groups)
        if step:
            moments = torch.cat([optimizer.state[p]["exp_avg_sq"].flatten() for p in model.parameters()])
            weight = 1.0 / ((moments.double() / (1 - 0.999**step)).sqrt() + 1e-4)
            each = torch.stack([gradient(model, group) for group in groups])
            mean = each.mean(dim=0)
            expected = measure_groups(
                (each.square() @ weight).tolist(), counts=[8] * 3, mean_sq_norm=float(mean.square() @ weight)
            )
            assert isinstance(expected, NoiseMeasurement)
            same(noise.steps(metric="adam")[-1], expected)
        optimizer.step()
    assert len(noise.steps()) == 3
    assert len(noise.steps(metric="adam")) == 2
    assert noise.estimate(metric="adam").ratio_of_means != noise.estimate().ratio_of_means


def token_loss(model, group):
    tokens, targets = group
    return functional.cross_entropy(
        model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )


def test_token_weighted_losses_use_residuals():
    torch.manual_seed(3)
    model = Tied()
    noise = GradientNoiseScale(model, every=1, loss_reduction="sum", items_differ=True)
    groups = []
    for lengths in ([5, 1], [3, 2], [4, 4], [1]):
        targets = torch.randint(0, 11, (len(lengths), 5))
        for row, length in enumerate(lengths):
            targets[row, length:] = -100
        groups.append((torch.randint(0, 11, targets.shape), targets))
    items = torch.tensor([float((y >= 0).sum()) for _, y in groups], dtype=torch.float64)
    for (x, y), count in zip(groups, items.tolist(), strict=True):
        with noise.group(num_examples=len(y), num_items=count):
            (token_loss(model, (x, y)) / float(items.sum())).backward()
    found = noise.step(loss_divisor=float(items.sum()))
    each = torch.stack([gradient(model, group, token_loss) for group in groups])
    counts = torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=torch.float64)
    residuals = each - items[:, None] * (each.sum(dim=0) / items.sum())
    freedom = (items / counts * (1 - items / items.sum())).sum()
    variance = (residuals.square().sum(dim=1) / counts).sum() / freedom
    assert isinstance(found, NoiseMeasurement)
    assert found.grad_noise_trace == pytest.approx(float(variance / (items.sum() / 7)), rel=1e-4)


def test_nothing_is_hooked_between_measured_steps():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=4, every=3)
    hooked = []
    for step in range(7):
        hooked.append(noise.due)
        assert bool(model[0].weight._backward_hooks) is noise.due
        result = run(noise, model, groups_of(4, 4, seed=step))
        assert (result is not None) is (step % 3 == 0)
    assert hooked == [True, False, False, True, False, False, True]
    assert [m.optimizer_step for m in noise.steps()] == [0, 3, 6]


def test_without_a_given_spacing_one_is_found():
    model = small_model()
    noise = GradientNoiseScale(model, micro_batch_size=4, overhead_fraction=0.5)
    for step in range(32):
        run(noise, model, groups_of(4, 4, seed=step))
    assert noise.every is not None
    assert noise.every >= 1
    assert len(noise.steps()) >= 12


def test_a_compiled_model_is_measured():
    model = small_model()
    compiled = torch.compile(model, backend="aot_eager")
    noise = GradientNoiseScale(compiled, micro_batch_size=8, every=1)
    groups = groups_of(8, 8)
    for group in groups:
        (mean_loss(compiled, group) / 2).backward()
    same(noise.step(), reference(model, groups))


def test_arguments_that_do_not_fit_are_refused():
    model = small_model()
    with pytest.raises(ValueError, match="loss_reduction='max' must be"):
        GradientNoiseScale(model, loss_reduction="max")
    with pytest.raises(ValueError, match="items_differ=True needs loss_reduction='sum'"):
        GradientNoiseScale(model, items_differ=True)
    with pytest.raises(ValueError, match="every=0 must be a whole number"):
        GradientNoiseScale(model, every=0)
    with pytest.raises(ValueError, match="overhead_fraction=0 must be"):
        GradientNoiseScale(model, overhead_fraction=0)
    with pytest.raises(RefusedError, match="no trainable parameter"):
        GradientNoiseScale(nn.Identity())
    noise = GradientNoiseScale(model, every=1)
    with pytest.raises(MeasurementError, match="micro_batch_size=None: give the examples"):
        mean_loss(model, groups_of(4)[0]).backward()
    noise.close()
    summed = GradientNoiseScale(model, every=1, loss_reduction="sum", micro_batch_size=4)
    model.zero_grad()
    for group in groups_of(4, 4):
        mean_loss(model, group).backward()
    with pytest.raises(MeasurementError, match="loss_divisor=None"):
        summed.step()
    summed.close()
    by_tokens = GradientNoiseScale(model, every=1, loss_reduction="sum", items_differ=True)
    with pytest.raises(MeasurementError, match="num_items=None"), by_tokens.group(num_examples=2):
        pass
