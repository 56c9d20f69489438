"""Every layout of one effective batch trains to the same bits: parameters, losses, evaluations."""

import dataclasses
import itertools
import math

import pytest
import torch

from gasweep.errors import RefusedError
from gasweep.training import ProcessContext
from gasweep.training.build import build_trainer
from tests.training.ranks import run_on_ranks
from tests.training.toys import toy_spec, train_toy

B = 26  # with grains of 4 the last grain holds 2
TOYS = "tests.training.toys"
OWN = "tests.training.bitwise.tasks"


def spec_of(b, n, *, target=f"{TOYS}.ToyRegression", arguments=None, total=B, **sections):
    grains_per_rank = math.ceil(math.ceil(total / 4) / n)
    spec = toy_spec(
        layout=(b, n, math.ceil(grains_per_rank * 4 / b)),
        effective_batch_size=total,
        **{
            "determinism": "bitwise",
            "grain": 4,
            "optimizer": {"name": "adamw", "weight_decay": 0.01, "max_grad_norm": 0.05},
            "evaluation": {"every_optimizer_steps": 3, "batch_size": 20},
            **sections,
        },
    )
    spec.config.task = {"_target_": target, **(arguments or {})}
    return spec


def trained(b, n, **options):
    """(result, steps, evaluations) of rank 0."""
    spec = spec_of(b, n, **options)
    return train_toy(spec=spec) if n == 1 else run_on_ranks(n, train_toy, spec=spec)[0]


def bits(outcome):
    """What must not depend on the layout."""
    result, steps, evaluations = outcome
    return (
        result.parameter_sha256,
        tuple(record.loss for record in steps),
        tuple(record.grad_norm for record in steps),
        tuple(tuple(sorted(record.metrics.items())) for record in evaluations),
    )


SEVERAL_RANKS = [
    (b, n, strategy) for (b, n), strategy in itertools.product([(4, 2), (16, 2), (4, 4)], ["ddp", "fsdp"])
]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (f"{TOYS}.ToyRegression", {"dropout": 0.3}),
        (f"{TOYS}.ToyTokens", {"mean": True}),
        (f"{OWN}.Spikes", {}),
        (f"{OWN}.Padded", {}),
        (f"{OWN}.UnusedHead", {}),
    ],
)
def test_layouts_and_strategies_give_the_same_bits(target, arguments):
    reference = bits(trained(28, 1, target=target, arguments=arguments))
    for b in (4, 8):
        assert bits(trained(b, 1, target=target, arguments=arguments)) == reference, b
    for b, n, strategy in SEVERAL_RANKS:
        found = bits(trained(b, n, target=target, arguments=arguments, strategy=strategy))
        assert found == reference, (b, n, strategy)


@pytest.mark.multiprocess
@pytest.mark.parametrize("precision", ["fp64", "bf16", "fp16"])
def test_every_precision_gives_the_same_bits(precision):
    arguments = {"dtype": "float64"} if precision == "fp64" else {"dropout": 0.3}
    reference = bits(trained(28, 1, arguments=arguments, precision=precision))
    for b, n, strategy in [(4, 1, "ddp"), (8, 2, "ddp"), (4, 2, "fsdp")]:
        found = bits(trained(b, n, arguments=arguments, precision=precision, strategy=strategy))
        assert found == reference, (b, n, strategy)


@pytest.mark.multiprocess
def test_low_precision_parameters_keep_float32_main_gradients_and_the_same_bits():
    arguments = {"dtype": "bfloat16"}
    reference = bits(trained(28, 1, arguments=arguments))
    for b, n in [(4, 1), (8, 2)]:
        assert bits(trained(b, n, arguments=arguments)) == reference, (b, n)


@pytest.mark.multiprocess
def test_activation_checkpointing_and_resharding_change_no_bit():
    options = {"checkpoint": {"every_s": None}, "arguments": {"dropout": 0.3}}
    reference = bits(trained(8, 2, strategy="fsdp", **options))
    for choice in (
        {"reshard_after_forward": False, "reshard_after_backward": False},
        {"activation_checkpointing": True},
        {"bucket_cap_mb": 0.0005},
    ):
        found = bits(trained(8, 2, strategy="fsdp", strategy_options=choice, **options))
        assert found == reference, choice


def test_bits_depend_on_the_seed_the_batch_and_the_grain():
    reference = bits(trained(28, 1, arguments={"dropout": 0.3}))
    others = [
        trained(28, 1, arguments={"dropout": 0.3}, seed=1),
        trained(28, 1, arguments={"dropout": 0.3}, total=28),
        trained(28, 1, arguments={"dropout": 0.3}, grain=2),
    ]
    assert all(bits(other) != reference for other in others)


def test_fast_mode_of_the_same_layouts_has_other_bits():
    outcomes = [bits(trained(b, 1, determinism="fast")) for b in (4, 28)]
    assert outcomes[0] != outcomes[1]


def test_bitwise_training_is_fast_training_to_rounding():
    one = trained(28, 1, optimizer={"name": "sgd", "max_grad_norm": None})
    two = trained(28, 1, optimizer={"name": "sgd", "max_grad_norm": None}, determinism="fast")
    assert [r.loss for r in one[1]] == pytest.approx([r.loss for r in two[1]], rel=1e-5)


def repeated_steps(spec, num_steps=8):
    trainer = build_trainer(spec, process=ProcessContext())
    for step in range(num_steps):
        plan = trainer.planner.plan(
            optimizer_step=step,
            contributions=step * B,
            effective_batch_size=B,
            micro_batch_size=spec.layout.micro_batch_size,
        )
        trainer.step.run(plan, learning_rate=0.0)
    return trainer.accumulator.repeated_steps


def test_steps_are_repeated_at_the_start_and_when_gradients_jump_and_only_then():
    assert repeated_steps(spec_of(4, 1)) == 1
    spiky = [
        repeated_steps(spec_of(b, 1, target=f"{OWN}.Spikes", arguments={"spike": 2.0**20})) for b in (4, 28)
    ]
    assert spiky[0] == spiky[1] > 2


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_integer_sums_are_exchanged_once_per_step_and_metered(strategy):
    result, steps, _ = trained(4, 2, total=32, strategy=strategy)
    collective = "all_reduce" if strategy == "ddp" else "reduce_scatter"
    assert result.throughput.collectives_per_optimizer_step[collective] == 1
    num_parameters = 5 * 8 + 8 + 8 * 2 + 2
    exchanged = (2 if strategy == "ddp" else 1) * 8 * num_parameters // 2
    assert all(record.bytes_saved == 3 * exchanged for record in steps[1:])
    assert result.extra["repeated_steps"] == 1
    assert result.extra["grain"] == 4


def test_a_non_finite_gradient_ends_the_run_in_the_same_way_everywhere():
    outcomes = [trained(b, 1, target=f"{OWN}.Explodes", max_optimizer_steps=40)[0] for b in (4, 28)]
    assert [outcome.state.value for outcome in outcomes] == ["diverged", "diverged"]
    assert outcomes[0].optimizer_steps == outcomes[1].optimizer_steps
    assert outcomes[0].reason == outcomes[1].reason


def test_an_unused_parameter_keeps_no_gradient_and_is_not_decayed():
    spec = spec_of(4, 1, target=f"{OWN}.UnusedHead")
    trainer = build_trainer(spec, process=ProcessContext())
    before = trainer.parts.module.unused.weight.detach().clone()
    plan = trainer.planner.plan(optimizer_step=0, contributions=0, effective_batch_size=B, micro_batch_size=4)
    trainer.step.run(plan, learning_rate=0.1)
    gradients = {name: tensor.grad for name, tensor in trainer.parts.parameters}
    assert gradients["unused.weight"] is None
    assert gradients["used.weight"] is not None
    assert torch.equal(trainer.parts.module.unused.weight, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": {"batch_norm": True}}, r"1 \(BatchNorm1d\) computes statistics over the examples"),
        ({"target": f"{OWN}.SparseEmbedding"}, "0 asks for sparse gradients"),
        ({"target": "tests.training.verify_tasks.MutatesBuffer"}, "forward changes the buffer 1.calls"),
        ({"target": f"{OWN}.Reentrant"}, "parameter . gets its gradient in pieces"),
        ({"strategy_options": {"sync_every_micro_step": True}}, "sync_every_micro_step=true would add"),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_what_cannot_be_promised_is_refused_with_the_reason(options, message):
    with pytest.raises(RefusedError, match=message):
        train_toy(spec=spec_of(4, 1, **options))


def test_c58_batch_norm_sees_the_micro_batch_and_is_refused():
    norm = torch.nn.BatchNorm1d(1, eps=1e-5)
    whole = norm(torch.tensor([[0.0], [2.0], [4.0], [6.0]])).detach()
    half = torch.nn.BatchNorm1d(1)(torch.tensor([[0.0], [2.0]])).detach()
    assert float(whole[0]) == pytest.approx(-1.3416, abs=1e-4)
    assert float(half[0]) == pytest.approx(-1.0, abs=1e-4)
    with pytest.raises(RefusedError, match="use GroupNorm or LayerNorm"):
        train_toy(spec=spec_of(4, 1, arguments={"batch_norm": True}))


@pytest.mark.multiprocess
def test_c59_masks_differ_between_positions_and_not_between_ranks():
    """Dropout is keyed by position: two ranks draw what one process would draw for the same examples."""
    one = trained(8, 1, arguments={"dropout": 0.5})
    two = trained(8, 2, arguments={"dropout": 0.5})
    again = trained(8, 2, arguments={"dropout": 0.5})
    assert bits(one) == bits(two) == bits(again)
    without = trained(8, 1, arguments={"dropout": 0.0})
    assert bits(without)[0] != bits(one)[0]


@pytest.mark.multiprocess
def test_ranks_of_unequal_share_join_every_collective_of_a_sharded_model():
    """B=12 on two ranks with grains of 4: rank 0 runs two grains, rank 1 one, and joins the second."""
    reference = bits(trained(12, 1, total=12))
    assert bits(trained(8, 2, total=12, strategy="fsdp")) == reference
    assert bits(trained(4, 2, total=12, strategy="fsdp")) == reference


def refused(rank, *, spec):
    with pytest.raises(RefusedError, match=r"1 \(BatchNorm1d\)"):
        train_toy(rank, spec=spec)
    return True


@pytest.mark.multiprocess
def test_a_refusal_reaches_every_rank():
    spec = spec_of(4, 2, arguments={"batch_norm": True})
    assert run_on_ranks(2, refused, spec=spec) == [True, True]


def test_a_micro_batch_that_cuts_grains_is_refused():
    with pytest.raises(RefusedError, match="micro_batch_size=6 is not a multiple of grain=4"):
        train_toy(spec=dataclasses.replace(spec_of(8, 1), layout=spec_of(6, 1).layout))
