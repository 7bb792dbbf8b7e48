"""What a check of modules cannot see: a loss by hand in which records meet passes Opacus, and does not pass here."""

from copy import deepcopy

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor
from torch.nn import functional

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.privacy.record_independence import BatchCouplingError, check_independence
from fdgsec.runtime.random_streams import stream


class Centered:
    """Cross-entropy of logits from which the batch's mean logits were taken off."""

    couples_records = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        logits = model(batch.images)
        return functional.cross_entropy(logits - logits.mean(0), batch.labels, reduction="none")


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_a_coupled_loss_passes_opacus_and_does_not_pass_here():
    rng = stream(0, "world", "coupled")
    model = build_classifier("tiny", 3, norm="group", rng=rng)
    labels = torch.arange(8) % 3
    given = Batch(images=torch.rand(8, 3, 32, 32, generator=rng), labels=labels, records=torch.arange(8))

    errors = ModuleValidator.validate(model, strict=True)
    twin = deepcopy(model)
    private = GradSampleModule(twin, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8
    )
    Centered()(given, twin).sum().backward()
    optimizer.step()

    assert errors == []
    assert not torch.equal(twin.head.weight, model.head.weight)  # it stepped, none the wiser
    with pytest.raises(BatchCouplingError):
        check_independence(Centered(), model, given, stream(0, "attack", "check"), method="mine")
