"""The counting device of the tests: it computes what the CPU does, and counts what a GPU would copy, wait for, refuse."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fdgsec.runtime.random_streams import stream
from tests.support.counting_device import DEVICE, MixedDevicesError, counting_device


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=stream(0, "world", "numbers"))


def test_a_step_on_the_device_gives_the_numbers_of_the_cpu():
    def trained(device: torch.device) -> Tensor:
        layer = nn.Linear(3, 2)
        layer.load_state_dict({"weight": numbers(2, 3), "bias": numbers(2)})
        layer.to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            layer(numbers(4, 3).to(device)).square().mean().backward()
            optimizer.step()
        return layer.weight.detach().cpu()

    expected = trained(torch.device("cpu"))
    with counting_device():
        found = trained(DEVICE)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda x: torch.ones(3).to(x.device), "up"),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), "up"),
        (lambda x: x.new_tensor([1.0, 2.0]), "up"),
        (lambda x: x[torch.tensor([0, 1])], "up"),
        (lambda x: x[0].copy_(torch.ones(3)), "up"),
        (lambda x: x.cpu(), "down"),
        (lambda x: x.tolist(), "down"),
        (lambda x: torch.empty(4, 3).copy_(x), "down"),
        (lambda x: x[0, 0].item(), "read"),
        (lambda x: float(x.sum()), "read"),
        (lambda x: bool((x > 0).any()), "read"),
        (lambda x: torch.equal(x, x), "read"),
        (lambda x: x[x > 0], "read"),
        (lambda x: (x > 0).nonzero(), "read"),
        (lambda x: x.unique(), "read"),
    ],
)
def test_a_transfer_is_counted_by_its_kind(act: Callable[[Tensor], object], kind: str):
    with counting_device() as transfers:
        given = numbers(4, 3).to(DEVICE)
        transfers.seen.clear()
        act(given)
    assert [each[0] for each in transfers.seen] == [kind]
    assert transfers.seen[0][2].startswith("tests/unit/nn/test_counting_device.py:")


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x * 2 + torch.tensor(1.0),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x[x.argmax(0)],
        lambda x: x.masked_fill_(x > 0, 1.0),
        lambda x: torch.zeros(3, device=x.device),
        lambda x: x.split(1),
        lambda x: x.to(torch.float64).contiguous(),
    ],
)
def test_what_stays_on_the_device_is_not_counted(act: Callable[[Tensor], object]):
    with counting_device() as transfers:
        given = numbers(4, 3).to(DEVICE)
        transfers.seen.clear()
        act(given)
    assert transfers.seen == []


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.where(torch.ones(4, 3) > 0, x, 0.0),
        lambda x: torch.ones(4)[x.argmax(0)],
        lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
        lambda x: x.uniform_(generator=torch.Generator()),
    ],
)
def test_what_a_gpu_refuses_is_refused(act: Callable[[Tensor], object]):
    with counting_device(), pytest.raises(MixedDevicesError, match="host"):
        act(numbers(4, 3).to(DEVICE))
