"""JiGen: its orders, its draws and its second head. The loss and the tiles are in tests/golden."""

import pytest
import torch

from fdgsec.federation.global_model import Blueprint
from fdgsec.methods.jigen import JiGen, JigsawClassifier, JigsawLoss, shuffle_tiles, tile_orders
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)


def network(method: JiGen) -> JigsawClassifier:
    made = Blueprint(backbone="tiny", classes=7, remodel=method.remodel).network(stream(0, "world", "t"))
    assert isinstance(made, JigsawClassifier)
    return made


def batch(count: int) -> Batch:
    images = torch.rand(count, 3, 32, 32, generator=stream(0, "world", "images"))
    return Batch(images=images, labels=torch.arange(count) % 7, records=torch.arange(count))


@pytest.mark.parametrize("count", [1, 30, 71])
def test_the_orders_are_distinct_permutations_with_the_right_one_first(count: int):
    orders = tile_orders(count)

    assert orders.shape == (count + 1, 9)
    assert orders[0].tolist() == list(range(9))
    assert all(sorted(order) == list(range(9)) for order in orders.tolist())


def test_any_two_orders_differ_in_eight_places_or_nine():
    orders = tile_orders(71)

    places = (orders.unsqueeze(0) != orders.unsqueeze(1)).sum(2)

    assert sorted(set(places.flatten().tolist())) == [0, 8, 9]
    assert int((places == 0).sum()) == 72  # each with itself alone


@pytest.mark.parametrize("count", [0, 72])
def test_more_orders_than_there_are_are_refused(count: int):
    with pytest.raises(UsageError, match=r"permutations in 1\.\.71"):
        JiGen(permutations=count)


def test_the_right_order_leaves_the_middle_of_an_image_bit_identical():
    images = torch.rand(2, 3, 32, 32, generator=stream(0, "world", "images"))

    made = shuffle_tiles(images, tile_orders(30)[[0, 0]])

    assert torch.equal(made, images[:, :, 1:31, 1:31])


def test_an_order_and_its_inverse_give_the_image_back():
    images, orders = torch.rand(30, 3, 9, 12, generator=stream(0, "world", "images")), tile_orders(30)[1:]

    again = shuffle_tiles(shuffle_tiles(images, orders), orders.argsort(1))

    assert torch.equal(again, images)


def test_an_image_too_small_to_cut_is_refused():
    with pytest.raises(ValueError, match="at least 3 px high and wide to be cut; got 2 x 9"):
        shuffle_tiles(torch.rand(1, 3, 2, 9), tile_orders(1)[:1])


def test_nine_tenths_of_the_images_stay_whole_and_the_rest_take_any_of_31_orders():
    step = JigsawLoss(tile_orders(30), 0.9, 0.7, "ordered", stream(0, "world", "draw"))

    drawn = step.draw_orders(20_000)

    whole = float((drawn == 0).float().mean())
    assert whole == pytest.approx(0.9 + 0.1 / 31, abs=5 * (0.9 * 0.1 / 20_000) ** 0.5)
    assert set(drawn.tolist()) == set(range(31))


@pytest.mark.parametrize(("class_loss", "moved"), [("ordered", False), ("all", True)])
def test_shuffled_images_teach_the_class_only_where_the_released_baseline_does(class_loss: str, moved: bool):
    orders = tile_orders(30)[1:]  # none of them is the right one, but the first counts as such
    kind = JiGen(class_loss="all" if class_loss == "all" else "ordered").class_loss
    generator = stream(0, "world", "draw")
    step, model = JigsawLoss(orders, 0.0, 0.7, kind, generator), network(JiGen(permutations=29))
    while bool((JigsawLoss(orders, 0.0, 0.7, kind, generator.clone_state()).draw_orders(4) == 0).any()):
        step.draw_orders(4)

    step(batch(4), model).mean().backward()

    gradient = model.head.weight.grad
    assert gradient is not None
    assert bool(gradient.abs().sum() > 0) == moved
    assert model.jigsaw.weight.grad is not None
    assert bool(model.jigsaw.weight.grad.abs().sum() > 0)


def test_the_class_is_predicted_from_the_whole_image_by_the_first_head():
    model = network(JiGen()).eval()
    plain = Blueprint(backbone="tiny", classes=7).network(stream(0, "world", "t")).eval()

    assert torch.equal(model(batch(3).images), plain(batch(3).images))


def test_another_network_is_not_trained():
    step = JigsawLoss(tile_orders(30), 0.9, 0.7, "ordered", stream(0, "world", "draw"))
    plain = Blueprint(backbone="tiny", classes=7).network(stream(0, "world", "t"))

    with pytest.raises(TypeError, match="trains a JigsawClassifier; got a Classifier"):
        step(batch(2), plain)


def test_both_heads_go_up_and_come_down_averaged_and_nothing_else_does():
    members, method = four_clients()[:2], JiGen(plan=PLAN)

    plain, recoded = (federated(method, members, recode=recode) for recode in (False, True))

    assert plain.transcript.sha256 == recoded.transcript.sha256
    size = sum(value.numel() * value.element_size() for value in network(method).state_dict().values())
    down = [("model", "server", f"client:{i}", "ModelState", size) for i in (0, 1)]
    up = [("update", f"client:{i}", "server", *a) for i in (0, 1) for a in (("ModelState", size), ("Scores", 24))]
    rows = [(r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in plain.transcript.rows]
    assert rows == 2 * (down + up)
    assert plain.model["jigsaw.weight"].shape == (31, 96)
    sent = [m.artifact.tensors() for m in plain.transcript.messages() if m.stage == "update" and m.round == 1]
    heads = [tensors["jigsaw.weight"].double() for tensors in sent if "jigsaw.weight" in tensors]
    weights = torch.tensor([float(len(client.data)) for client in members], dtype=torch.float64)
    expected = sum(w * head for w, head in zip(weights / weights.sum(), heads, strict=True))
    assert torch.allclose(plain.model["jigsaw.weight"].double(), torch.as_tensor(expected), atol=1e-7)
