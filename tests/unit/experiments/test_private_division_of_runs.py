"""Which runs divide their clients' images by name alone, and that the choice of rows follows."""

from dataclasses import replace

import pytest
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import defense_of
from fdgsec.experiments.setup.run_inputs import division_of, with_validation
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedccrl import FedCCRL
from fdgsec.methods.feddg import FedDG
from fdgsec.runtime.random_streams import stream


@pytest.mark.parametrize(
    ("written", "division"),
    [
        ([], "stratified"),
        (["style-noise:p=0.1"], "stratified"),
        (["private-styles:epsilon=8"], "names"),
        (["dp-sgd:epsilon=8"], "names"),
        (["private-scores:epsilon=4"], "names"),
        (["private-styles:epsilon=8,neighbors=add-remove"], "independent"),
    ],
)
def test_a_mechanism_on_records_decides(written: list[str], division: str):
    assert division_of([defense_of(each) for each in written]) == division


@pytest.mark.parametrize("method", [CCST(style="single"), FedCCRL(upload_ratio=0.3), FedDG(share_of_images=0.3)])
def test_rows_of_other_images_stay_where_one_image_gets_another_class(method: Method):
    data = shapes(image_size=16, per_domain=70).of_domain(0)
    data = replace(data, ids=tuple(f"photo/{number:03}.png" for number in range(len(data))))
    labels = data.labels.clone()
    labels[5] = (labels[5] + 1) % len(data.class_names)

    assert rows(method, data) == rows(method, replace(data, labels=labels))


def rows(method: Method, data: DomainDataset) -> list[str]:
    client = with_validation(Client(name="client:0", data=data), seed=0, division="names")
    clock = Clock(round=0, rounds=1, participants=("client:0", "client:1"))
    _, state = method.share(client, model=None, state={}, clock=clock, rng=stream(0, "world", "share"))
    assert len(state[SHARED_ROWS]) > 1
    return [client.data.ids[int(place)] for place in torch.as_tensor(state[SHARED_ROWS])]
