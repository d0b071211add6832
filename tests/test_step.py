"""The training step against a float64 loop with its own AdamW, in every way that a recipe can ask for it on a CPU."""

import itertools

import pytest
import torch
from model_helper import (
    CPU,
    TINY,
    lively_weights,
    random_batches,
    reference_logits,
    reference_loss,
    reference_training,
)

from speedlab.model import canonical_weights, draw_weights
from speedlab.training import parallel
from speedlab.training import step as module
from speedlab.training.distributed import Place
from speedlab.training.step import TrainingStep

VARIANTS = [
    {},
    {"layers": "native", "attention": "sdpa"},
    {"vocabulary": "padded", "qkv_projection": "merged", "attention": "sdpa_math"},
    {"output_head": "tied", "qkv_projection": "merged", "optimizer": "fused"},
    {"accumulation": 3, "optimizer": "foreach", "causal_mask": "on_the_fly"},
    {"optimizer": "for_loop", "weight_decay": 0.0, "learning_rate": 1e-3},
    {"feed_forward": "sigmoid", "loss": "compiled"},
    {"feed_forward": "fused", "residual": "fused", "loss": "in_place", "optimizer": "one_pass"},
    {"loss": "in_place", "accumulation": 2},
]


def trained(recipe, weights, batches, steps):
    """Losses over true ids, and the step itself, after `steps` calls."""
    step = TrainingStep(recipe, weights, CPU)
    step.true_losses = []
    stream = iter(batches)
    for _ in range(steps):
        step(stream)
    return torch.stack(step.true_losses).view(steps, -1).mean(dim=1).tolist(), step


def plain_pytorch_losses(recipe, weights, batches, steps):
    """An ordinary PyTorch loop in float32: the reference model, cross-entropy, torch's AdamW."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimizer = torch.optim.AdamW(leaves.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    losses = []
    for tokens, targets in itertools.islice(batches, steps):
        loss = torch.nn.functional.cross_entropy(
            reference_logits(leaves, recipe, tokens).flatten(0, 1), targets.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: leaf.detach() for name, leaf in leaves.items()}


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())) or "plain")
def test_losses_and_weights_after_three_steps_are_those_of_the_float64_loop(changes):
    recipe = TINY.but(**changes)
    weights = lively_weights(recipe)
    batches = random_batches(recipe, 3 * recipe.accumulation)
    # The padded ids take part in the softmax of the training loss, so the reference needs their zero rows too.
    rows = recipe.padded_vocab_size
    padded = {
        name: torch.cat([value, torch.zeros(rows - 61, 32)]) if value.shape[0] == 61 else value
        for name, value in weights.items()
    }
    losses, expected = reference_training(padded, recipe, iter(batches), steps=3)
    found, step = trained(recipe, weights, batches, steps=3)
    if rows == 61:
        assert found == pytest.approx(losses, abs=2e-5)
    for name, value in canonical_weights(step.model, recipe).items():
        exact = expected[name][: value.shape[0]]
        # An entry moves by one learning rate a step. Where a gradient nearly cancels, its sign is a matter of rounding.
        error = (value.double() - exact).abs()
        assert error.max() < recipe.learning_rate / 10, name
        assert error.mean() < recipe.learning_rate / 1_000, name


def test_a_plain_pytorch_loop_in_float32_gives_the_same():
    weights, batches = lively_weights(TINY), random_batches(TINY, 3)
    losses, expected = plain_pytorch_losses(TINY, weights, batches, 3)
    found, step = trained(TINY, weights, batches, 3)
    assert found == pytest.approx(losses, abs=1e-5)
    for name, value in canonical_weights(step.model, TINY).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=5e-6)


def test_four_micro_batches_are_one_batch_four_times_as_large():
    weights = lively_weights(TINY)
    small = random_batches(TINY.but(micro_batch=2), 8)
    large = [tuple(torch.cat(parts) for parts in zip(*small[i : i + 4], strict=True)) for i in (0, 4)]
    one_loss, one = trained(TINY.but(micro_batch=8), weights, large, 1)
    four_loss, four = trained(TINY.but(micro_batch=2, accumulation=4), weights, small, 1)
    assert four_loss == pytest.approx(one_loss, abs=1e-5)
    pairs = zip(one.model.parameters(), four.model.parameters(), strict=True)
    assert max((a.grad - b.grad).abs().max().item() for a, b in pairs) < 1e-5
    assert trained(TINY.but(micro_batch=2, accumulation=4), weights, small, 2)[0] == pytest.approx(
        trained(TINY.but(micro_batch=8), weights, large, 2)[0], abs=1e-5
    )


def test_the_returned_loss_is_the_mean_over_micro_batches_and_holds_no_graph():
    recipe = TINY.but(accumulation=2)
    weights = lively_weights(recipe)
    batches = random_batches(recipe, 2)
    loss = TrainingStep(recipe, weights, CPU)(iter(batches))
    exact = [reference_loss(reference_logits(weights, recipe, tokens), targets) for tokens, targets in batches]
    assert loss.item() == pytest.approx(sum(exact).item() / 2, abs=1e-5)
    assert loss.shape == () and not loss.requires_grad


def test_gradients_do_not_pile_up_from_step_to_step():
    weights, [batch] = lively_weights(TINY), random_batches(TINY, 1)
    step = TrainingStep(TINY.but(learning_rate=0.0), weights, CPU)
    norms = []
    for _ in range(3):
        step(iter([batch]))
        norms.append(sum(p.grad.norm() for p in step.model.parameters()).item())
    assert norms[1] == pytest.approx(norms[0], rel=1e-5) and norms[2] == pytest.approx(norms[0], rel=1e-5)


def test_a_step_takes_exactly_its_micro_batches():
    stream = iter(random_batches(TINY, 7))
    step = TrainingStep(TINY.but(accumulation=3), draw_weights(TINY), CPU)
    step(stream)
    step(stream)
    assert len(list(stream)) == 1


def test_the_same_step_twice_is_the_same_bit_for_bit():
    weights, batches = draw_weights(TINY), random_batches(TINY, 3)
    one, two = (trained(TINY, weights, batches, 3) for _ in range(2))
    assert one[0] == two[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1].model.parameters(), two[1].model.parameters(), strict=True))
    fly = trained(TINY.but(causal_mask="on_the_fly"), weights, batches, 3)
    assert fly[0] == one[0]  # the contract "identical" of the first chapter


def test_training_learns_what_can_be_learned():
    recipe = TINY.but(learning_rate=1e-2, layers="native", attention="sdpa")
    counting = torch.arange(17).repeat(3, 1) + torch.tensor([[0], [10], [20]])
    batch = (counting[:, :-1].contiguous(), counting[:, 1:].contiguous())
    losses, _ = trained(recipe, draw_weights(recipe), itertools.repeat(batch), 40)
    assert losses[0] == pytest.approx(4.1, abs=0.1) and losses[-1] < 0.1


def test_bfloat16_stores_everything_in_bfloat16_and_stays_near():
    weights, batches = lively_weights(TINY), random_batches(TINY, 3)
    exact, _ = trained(TINY, weights, batches, 3)
    losses, step = trained(TINY.but(precision="bfloat16"), weights, batches, 3)
    assert all(p.dtype == p.grad.dtype == torch.bfloat16 for p in step.model.parameters())
    moments = [state["exp_avg"].dtype for state in step.optimizer.state.values()]
    assert set(moments) == {torch.bfloat16} and step.scaler is None
    assert losses == pytest.approx(exact, abs=5e-2) and losses != exact


@pytest.mark.parametrize("precision", ["bfloat16_autocast", "float16_autocast"])
def test_autocast_keeps_float32_weights_and_stays_near(precision):
    weights, batches = lively_weights(TINY), random_batches(TINY, 3)
    exact, plain = trained(TINY, weights, batches, 3)
    losses, step = trained(TINY.but(precision=precision), weights, batches, 3)
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in step.model.parameters())
    assert losses == pytest.approx(exact, abs=5e-2) and losses != exact
    moved = [(a - b).abs().max() for a, b in zip(step.model.parameters(), plain.model.parameters(), strict=True)]
    assert max(moved) < 3 * 2 * TINY.learning_rate  # each step moves an entry by one learning rate at most


@pytest.mark.parametrize("optimizer", ["for_loop", "foreach", "fused"])
def test_steps_that_the_scaler_skips_are_counted_whichever_way_the_optimizer_is_told(optimizer):
    recipe = TINY.but(precision="float16_autocast", optimizer=optimizer)
    step, stream = TrainingStep(recipe, lively_weights(TINY), CPU), iter(random_batches(TINY, 6))
    assert step.skipped == 0
    for scale, skipped in ((2.0**40, 1), (2.0**40, 2), (2.0**10, 2), (2.0**10, 2), (2.0**40, 3)):
        step.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        step(stream)
        assert step.skipped == skipped
    assert TrainingStep(TINY, lively_weights(TINY), CPU).skipped is None


def test_the_gradient_scaler_of_float16_skips_a_step_that_overflows_and_recovers():
    weights, batches = lively_weights(TINY), random_batches(TINY, 3)
    step = TrainingStep(TINY.but(precision="float16_autocast"), weights, CPU)
    assert isinstance(step.scaler, torch.amp.GradScaler)
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    stream = iter(batches)
    before = [p.detach().clone() for p in step.model.parameters()]
    loss = step(stream)
    assert torch.isfinite(loss)
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    assert step.scaler.get_scale() == 2.0**39
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    step(stream)
    assert not any(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_the_matmul_precision_is_set_inside_a_step_and_put_back_after_it(precision):
    other = {"high": "highest", "highest": "high"}[precision]
    seen = []
    step = TrainingStep(TINY.but(matmul_precision=precision), draw_weights(TINY), CPU)
    step.model.register_forward_hook(lambda *args: seen.append(torch.get_float32_matmul_precision()))
    step.model.head.weight.register_hook(lambda gradient: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(other)
    try:
        step(iter(random_batches(TINY, 1)))
        assert seen == [precision, precision]
        assert torch.get_float32_matmul_precision() == other
        with pytest.raises(StopIteration):
            step(iter([]))
        assert torch.get_float32_matmul_precision() == other
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_model_is_compiled_with_static_shapes_in_the_mode_of_the_recipe(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    for mode in ("off", "default", "reduce-overhead", "max-autotune"):
        TrainingStep(TINY.but(compile=mode), draw_weights(TINY), CPU)
    assert [options["mode"] for options in asked] == [None, "reduce-overhead", "max-autotune"]
    assert all(options["dynamic"] is False for options in asked)


class Wrapped(torch.nn.Module):
    """In the place of DistributedDataParallel, which wants other processes."""

    def __init__(self, module, **options):
        super().__init__()
        self.module, self.options = module, options


@pytest.mark.parametrize("order", ["after_ddp", "before_ddp"])
def test_what_runs_in_several_processes_is_compiled_around_or_inside_ddp(monkeypatch, order):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or model)
    monkeypatch.setattr(parallel, "DistributedDataParallel", Wrapped)
    recipe = TINY.but(compile="default", compile_order=order, data_parallel=2)
    step = TrainingStep(recipe, draw_weights(TINY), CPU, parallelize=Place(device=CPU).parallelize)
    assert step.parallel.ddp.module is step.model
    assert compiled == [step.parallel.ddp if order == "after_ddp" else step.model]
    assert step.forward is step.parallel.ddp  # what the stand-in for torch.compile gives back


def test_the_fields_of_the_exchange_reach_ddp_and_its_own_bucket_size_is_left_to_it(monkeypatch):
    monkeypatch.setattr(parallel, "DistributedDataParallel", Wrapped)

    def options_of(**change):
        recipe = TINY.but(data_parallel=2, **change)
        step = TrainingStep(recipe, draw_weights(TINY), CPU, parallelize=Place(device=CPU).parallelize)
        return step.parallel.ddp.options

    plain = options_of()
    assert plain["bucket_cap_mb"] is None and not plain["gradient_as_bucket_view"] and not plain["static_graph"]
    asked = options_of(gradient_bucket_mb=100, bucket_view=True, static_graph=True)
    assert asked["bucket_cap_mb"] == 100 and asked["gradient_as_bucket_view"] and asked["static_graph"]


def test_the_compiler_is_told_not_to_cut_its_graph_only_inside_the_step(monkeypatch):
    import torch._dynamo

    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    monkeypatch.setattr(parallel, "DistributedDataParallel", Wrapped)
    recipe = TINY.but(compile="default", optimize_ddp=False, data_parallel=2)
    step = TrainingStep(recipe, draw_weights(TINY), CPU, parallelize=Place(device=CPU).parallelize)
    before = torch._dynamo.config.optimize_ddp
    with step.parallel.micro_step(True):
        assert torch._dynamo.config.optimize_ddp is False
    assert torch._dynamo.config.optimize_ddp == before is not False


def test_the_logits_die_before_the_backward_pass(monkeypatch):
    import weakref

    born, alive = [], []
    loss_of = module.token_loss

    def watched(logits, targets):
        born.append(weakref.ref(logits))
        loss = loss_of(logits, targets)
        loss.register_hook(lambda gradient: alive.append(born[-1]() is not None))
        return loss

    monkeypatch.setattr(module, "token_loss", watched)
    TrainingStep(TINY, draw_weights(TINY), CPU)(iter(random_batches(TINY, 1)))
    assert alive == [False]
