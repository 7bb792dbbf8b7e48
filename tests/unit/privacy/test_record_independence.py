"""Records that meet in a training loss are found, and named; records that do not are left in peace."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.styles.feature_styles import greedy_seeds, mixed_styles, oversampled_rows
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.losses import supervised_contrastive
from fdgsec.nn.training.training_loop import CrossEntropy, Objective, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.record_independence import BatchCouplingError, check_independence
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.random_streams import stream

LABELS = (0, 1, 2, 0, 1, 2, 0, 1)
Loss = Callable[[Batch, Classifier, torch.Generator], Tensor]


def drawn(name: str, number: int = 0) -> torch.Generator:
    return stream(number, "world", "test", name)


def batch() -> Batch:
    labels = torch.tensor(LABELS)
    images = torch.rand(8, 3, 32, 32, generator=drawn("images"))
    return Batch(images=images, labels=labels, records=torch.arange(8))


def network(norm: str = "group") -> Classifier:
    made = build_classifier("tiny", 3, norm="batch" if norm == "batch" else "group", rng=drawn("network"))
    return made.train()


@dataclass(frozen=True, eq=False)
class Made:
    """An objective out of a function of the batch, the network and a generator of its own."""

    loss: Loss
    rng: torch.Generator = field(default_factory=lambda: drawn("objective"))
    couples_records: bool = False  # what it says of itself is not asked

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        return self.loss(batch, model, self.rng)


def entropy(logits: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(logits, batch.labels, reduction="none")


def centered(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    features = model.features(batch.images)
    return entropy(model.head(features - features.mean(0)), batch)


def centered_without_gradient(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    features = model.features(batch.images)
    return entropy(model.head(features - features.mean(0).detach()), batch)


def shifted_by_a_number_of_the_batch(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    plain = entropy(model(batch.images), batch)
    return plain + 0.01 * plain.mean().detach()


def steered_by_neighbors(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    plain = entropy(model(batch.images), batch)
    return plain + plain.roll(1).detach() * (plain - plain.detach())


def pulling_neighbors(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    plain = entropy(model(batch.images), batch)
    return plain + (plain - plain.detach()).roll(1)


def mixed(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    order = torch.randperm(len(batch.labels), generator=rng)
    return entropy(model((batch.images + batch.images[order]) / 2), batch)


def mixed_maps(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    maps = model.maps(batch.images, between={"stage1": lambda given: mixed_styles(given, rng, alpha=0.5)})
    return entropy(model.head(model.neck(maps)), batch)


def contrasted(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    features = model.features(batch.images)
    pull = supervised_contrastive(features, batch.labels, temperature=0.1)
    return entropy(model.head(features), batch) + 0.1 * pull


def spared_by_seeds(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    features = model.features(batch.images)
    kept = greedy_seeds(features.detach(), 4, rng)
    noisy = features + 0.1
    noisy = noisy.index_copy(0, kept, features[kept])
    return entropy(model.head(noisy), batch)


def weighed_by_draws_of_labels(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    rows = oversampled_rows(batch.labels, 4, rng, balanced=True)
    return entropy(model(batch.images), batch) * (1 + torch.bincount(rows, minlength=len(batch.labels)))


def divided_by_the_batch(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    return entropy(model(batch.images), batch) / len(batch.labels)


def divided_by_the_batch_under_noise(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    noise = 0.01 * torch.rand(batch.images.shape, generator=rng)
    return entropy(model(batch.images + noise), batch) / len(batch.labels)


def with_a_neighbor(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    return entropy(model(batch.images), batch) + batch.labels[1] * 0  # there is no second record in a batch of one


def without_meaning_alone(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    count = torch.tensor(float(len(batch.labels)))
    return entropy(model(batch.images), batch) * count / (count - 1)  # infinite for a record alone


COUPLED = [
    centered, centered_without_gradient, shifted_by_a_number_of_the_batch, steered_by_neighbors, pulling_neighbors,
    mixed, mixed_maps, contrasted, spared_by_seeds, weighed_by_draws_of_labels, divided_by_the_batch,
    divided_by_the_batch_under_noise, with_a_neighbor, without_meaning_alone,
]  # fmt: skip


def check(objective: Objective, model: Classifier | None = None, *, seed: int = 0) -> None:
    check_independence(objective, model or network(), batch(), drawn("check", seed), method="mine")


@pytest.mark.parametrize("loss", COUPLED, ids=lambda loss: loss.__name__)
@pytest.mark.medium
def test_records_that_meet_are_found(loss: Loss):
    with pytest.raises(BatchCouplingError) as found:
        check(Made(loss))

    assert isinstance(found.value, FdgsecError)
    assert (found.value.method, found.value.exit_code) == ("mine", 2)


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_hundredth_of_the_batchs_mean_loss_is_found_in_every_check(seed: int):  # changes losses by 1.4e-4 at least
    with pytest.raises(BatchCouplingError, match="the loss of record"):
        check(Made(shifted_by_a_number_of_the_batch), seed=seed)


def test_batch_norm_couples_while_it_trains_and_not_at_its_statistics():
    model = network("batch")

    with pytest.raises(BatchCouplingError, match="the loss of record"):
        check(CrossEntropy(), model)
    prepare_training(model, TrainingPlan(freeze_norm=True))
    check(CrossEntropy(), model)


def twice(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    return (entropy(model(batch.images), batch) + entropy(model(batch.images.flip(3)), batch)) / 2


def disturbed(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    coins = torch.rand(len(batch.labels), 1, 1, 1, generator=rng) < 0.5
    noise = torch.randn(batch.images.shape, generator=rng)
    return entropy(model(torch.where(coins, batch.images + noise, batch.images)), batch)


def dropped(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    return entropy(model.head(functional.dropout(model.features(batch.images), 0.5)), batch)


def weighed_by_class(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    return entropy(model(batch.images), batch) * torch.tensor([1.0, 2.0, 3.0])[batch.labels]


@pytest.mark.parametrize("loss", [twice, disturbed, dropped, weighed_by_class], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.medium
def test_records_that_do_not_meet_are_left_in_peace(loss: Loss, seed: int):
    check(Made(loss), seed=seed)


def confident(scale: float) -> tuple[Classifier, Batch]:
    """A linear network of thousands of inputs, whose logits are so large that they differ by rounding in a
    batch and alone; it gives each record its own label."""
    head = nn.Linear(3 * 32 * 32, 3)
    with torch.no_grad():
        rng = drawn("head")  # what all classes share decides nothing, and is rounded with the rest
        head.weight.copy_(
            scale * torch.randn(1, 3 * 32 * 32, generator=rng) + torch.randn(3, 3 * 32 * 32, generator=rng) / 10
        )
        head.bias.zero_()
    model = Classifier(backbone="tiny", norm="group", body=nn.Identity(), neck=nn.Flatten(), head=head)
    given = batch()
    return model, replace(given, labels=model(given.images).argmax(1))


@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
def test_rounding_is_no_coupling(scale: float):
    model, given = confident(scale)
    for seed in range(12):
        check_independence(CrossEntropy(), model, given, drawn("check", seed), method="fedavg")


@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("loss", [divided_by_the_batch, divided_by_the_batch_under_noise])
def test_records_that_meet_are_found_beside_rounding(loss: Loss, scale: float):
    model, given = confident(scale)
    labels = (given.labels + 1) % 3
    with pytest.raises(BatchCouplingError, match="in a batch of 8"):
        check_independence(Made(loss), model, replace(given, labels=labels), drawn("check"), method="fedavg")


def third_looks_at_seventh(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    losses = entropy(model(batch.images), batch)
    if len(losses) < 8:
        return losses
    return losses.index_add(0, torch.tensor([3]), 0.5 * batch.images[7].mean().unsqueeze(0))


def third_follows_seventh(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    losses = entropy(model(batch.images), batch)
    if len(losses) < 8:
        return losses
    extra = batch.images[7].mean() * (losses[3] - losses[3].detach())
    return losses.index_add(0, torch.tensor([3]), extra.unsqueeze(0))


def third_hears_the_seventh_label(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
    losses = entropy(model(batch.images), batch)
    return losses if len(losses) < 8 else losses.index_add(0, torch.tensor([3]), batch.labels[7:].float())


def test_a_dependence_on_labels_alone_is_named():
    with pytest.raises(BatchCouplingError, match=r"loss of record 3 changed by [12] when record 7 was replaced"):
        check(Made(third_hears_the_seventh_label))


def test_the_message_names_both_records_and_what_to_do():
    with pytest.raises(BatchCouplingError) as found:
        check(Made(third_looks_at_seventh))

    message = str(found.value)
    assert "mine couples the records of a batch: the loss of record 3 changed by 0." in message
    assert "when record 7 was replaced" in message
    assert "use mine-dp where there is one, or dp-fedavg" in message
    assert "\n" not in message


def test_a_dependence_of_gradients_alone_is_named_too():
    with pytest.raises(
        BatchCouplingError, match=r"gradient of record 3's loss changed by .*% .* record 7 was replaced"
    ):
        check(Made(third_follows_seventh))


def test_a_variant_of_single_records_is_not_told_to_use_itself():
    assert "mine-dp-dp" not in str(BatchCouplingError("it does", "mine-dp"))


def test_another_number_of_losses_than_records_is_refused():
    def both(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
        return entropy(model(batch.images), batch).repeat(2)

    with pytest.raises(BatchCouplingError, match=r"gives \(16,\) losses for 8 records"):
        check(Made(both))


@dataclass(eq=False)
class Remembering:
    """Weighs a loss by the mean of the batch before."""

    mean: float = 1.0
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        losses = self.mean * entropy(model(batch.images), batch)
        self.mean = float(batch.images.mean())
        return losses


def test_records_that_meet_in_the_objectives_memory_are_found():
    with pytest.raises(BatchCouplingError, match="batch before it"):
        check(Remembering())


def test_draws_that_cannot_be_replayed_are_refused():
    hidden = drawn("hidden")

    def noisy(batch: Batch, model: Classifier, rng: torch.Generator) -> Tensor:
        return entropy(model(batch.images), batch) + torch.rand(8, generator=hidden)

    with pytest.raises(BatchCouplingError, match="same batch, weights and draws"):
        check(Made(noisy))


def test_coupling_is_seen_where_features_of_zero_hide_it():
    model = network()
    for parameter in model.body.get_submodule("stage4.1").parameters():  # ReLU(0 x + 0) passes no gradient either
        nn.init.zeros_(parameter)

    with pytest.raises(BatchCouplingError):
        check(Made(centered), model)


def test_checking_changes_neither_network_nor_objective_nor_the_global_stream():
    model, objective = network(), Made(disturbed)
    weights, coins, stream_before = deepcopy(model.state_dict()), objective.rng.get_state(), torch.get_rng_state()

    check(objective, model)

    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert torch.equal(objective.rng.get_state(), coins)
    assert torch.equal(torch.get_rng_state(), stream_before)


def test_a_single_record_is_no_batch():
    one = Batch(images=torch.zeros(1, 3, 32, 32), labels=torch.zeros(1, dtype=torch.int64), records=torch.arange(1))

    with pytest.raises(UsageError, match="two or more"):
        check_independence(CrossEntropy(), network(), one, drawn("check"), method="mine")
