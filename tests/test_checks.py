"""The checks of the troubleshooting page, each on a model or loader that has the fault and on one that has not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from speedlab import checks
from speedlab.errors import NotAvailable


class Net(nn.Module):
    """Two layers, of which the second may be left out."""

    def __init__(self, *, use_both: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.use_both = nn.Linear(4, 4), nn.Linear(4, 4), use_both

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) if self.use_both else x


def backward_of(model: nn.Module, x: Tensor | None = None):
    return lambda: model(torch.ones(2, 4) if x is None else x).sum().backward()


def test_parameters_without_a_gradient_are_named() -> None:
    used, unused = Net(), Net(use_both=False)
    assert checks.unused_parameters(used, backward_of(used)) == []
    assert checks.unused_parameters(unused, backward_of(unused)) == ["second.weight", "second.bias"]
    unused.second.requires_grad_(False)  # frozen ones are not waited for
    assert checks.unused_parameters(unused, backward_of(unused)) == []


def test_gradients_that_were_there_come_back() -> None:
    model = Net()
    backward_of(model)()
    before = [p.grad for p in model.parameters()]
    checks.unused_parameters(model, backward_of(model))
    checks.parameters_ready_twice(model, backward_of(model))
    checks.first_nonfinite(model, backward_of(model))
    assert all(p.grad is grad for p, grad in zip(model.parameters(), before, strict=True))


def test_parameters_that_are_ready_twice_are_named() -> None:
    model = Net()

    def checkpointed(reentrant: bool):
        def run() -> None:
            x = torch.ones(2, 4, requires_grad=True)
            for _ in range(2):  # the same part twice, as in a model with shared layers
                x = checkpoint(model.first, x, use_reentrant=reentrant)
            model.second(x).sum().backward()

        return run

    assert checks.parameters_ready_twice(model, backward_of(model)) == []
    assert checks.parameters_ready_twice(model, checkpointed(False)) == []
    assert checks.parameters_ready_twice(model, checkpointed(True)) == ["first.weight", "first.bias"]


class Masked(nn.Module):
    def __init__(self, hidden_keys: int) -> None:
        super().__init__()
        self.scores, self.hidden_keys = nn.Linear(4, 4), hidden_keys
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        scores[:, : self.hidden_keys] = float("-inf")
        return self.softmax(scores).nan_to_num(5.0) if self.hidden_keys == 3 else self.softmax(scores)


def test_the_first_nan_is_found_where_it_is_made() -> None:
    sound, broken = Masked(1), Masked(4)
    assert checks.first_nonfinite(sound, backward_of(sound)) is None
    assert checks.first_nonfinite(broken, backward_of(broken)) == "softmax"


def test_a_gradient_that_is_infinite_is_found_where_the_outputs_are_fine() -> None:
    model = Net()
    steep = lambda: model(torch.ones(2, 4)).sub(model(torch.ones(2, 4))).abs().sqrt().sum().backward()  # noqa: E731
    assert checks.first_nonfinite(model, steep) == "gradient of first.weight"


def test_breaks_of_the_graph_are_told_with_their_reason() -> None:
    def plain(x: Tensor) -> Tensor:
        return (x * 2).relu()

    def branches(x: Tensor) -> Tensor:
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

    assert checks.graph_breaks(plain, torch.ones(3)) == []
    found = checks.graph_breaks(branches, torch.ones(3))
    assert len(found) == 1 and "\n" not in found[0]
    assert found[0].startswith("branches, line ") and "of test_checks.py: return x + 1 if x.sum() > 0" in found[0]


def test_each_new_shape_is_counted_until_the_compiler_makes_it_dynamic() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    same = [(torch.ones(4, 8),)] * 4
    other = [(torch.ones(4, 8),), (torch.ones(4, 9),), (torch.ones(4, 8, 2),)]
    assert checks.graphs_for_shapes(double, same) == 1
    assert checks.graphs_for_shapes(double, other) == 3


class Numbers(Dataset):
    """As many numbers as Python objects in a list, or as one tensor."""

    def __init__(self, *, as_list: bool, count: int = 400_000) -> None:
        self.values = [float(n) + 0.5 for n in range(count)] if as_list else torch.arange(count) + 0.5

    def __len__(self) -> int:
        return len(self.values)

    def __getitems__(self, indices: list[int]) -> list[float]:
        return [float(self.values[i]) for i in indices[:1]] + [0.0 for i in indices if self.values[i] is None]


def loader_of(*, as_list: bool, workers: int = 1, persistent: bool = True) -> DataLoader:
    return DataLoader(
        Numbers(as_list=as_list), batch_size=20_000, num_workers=workers, persistent_workers=persistent,
        collate_fn=len, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip


def test_workers_copy_the_objects_of_a_list_and_not_a_tensor() -> None:
    """Each worker touches every item once: the pages of 400,000 floats (about 10 MB) against none."""
    listed = checks.worker_growth_bytes(loader_of(as_list=True), epochs=1)[0]
    packed = checks.worker_growth_bytes(loader_of(as_list=False), epochs=1)[0]
    assert listed - packed > 6_000_000


def test_a_loader_without_workers_that_stay_is_refused() -> None:
    with pytest.raises(NotAvailable, match="persistent_workers=True"):
        checks.worker_growth_bytes(loader_of(as_list=False, workers=0, persistent=False))
