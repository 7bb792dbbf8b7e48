"""Which runs divide their clients' images by name alone, and that the choice of rows follows."""

from dataclasses import replace

import pytest
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.experiments import train
from fdgsec.experiments.attack_run.read_finished_run import check_division
from fdgsec.experiments.run_config import RunConfig, defense_of
from fdgsec.experiments.setup.run_inputs import clients_of, division_of, method_of, with_validation
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedccrl import FedCCRL
from fdgsec.methods.feddg import FedDG
from fdgsec.runtime.errors import DataError
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


@pytest.mark.parametrize(
    "scheme", [{"partition": "single-domain", "clients": 6}, {"partition": "lambda", "heterogeneity": 0.5}]
)
def test_an_image_of_another_class_takes_no_other_from_its_client(scheme: dict[str, object]):
    """The classes' folders decided the order in which images are dealt out."""
    data = shapes(image_size=16, per_domain=42).subset(torch.arange(126))
    config = RunConfig(method="fedavg", defenses=(defense_of("private-styles:epsilon=8"),), **scheme)  # type: ignore[arg-type]
    order = torch.cat([torch.arange(1, 42), torch.tensor([0]), torch.arange(42, 126)])  # its file is in the last folder
    named = replace(data, ids=tuple(f"{d}/{number:03}.png" for number, d in enumerate(data.domains.tolist())))

    before, after = (clients_of(each, config) for each in (named, named.subset(order)))

    assert [set(client.data.ids) for client in before] == [set(client.data.ids) for client in after]


@pytest.mark.parametrize("told", [{}, {"division": "stratified"}])
def test_a_run_that_was_divided_otherwise_is_not_attacked_as_if_it_were_not(told: dict[str, str]):
    """11 of 12 "non-members" of a run of the version before had been trained on."""
    config = RunConfig(method="fedavg", defenses=(defense_of("dp-sgd:epsilon=8"),))

    with pytest.raises(DataError, match="train it again"):
        check_division({"dataset": told}, config)
    check_division({"dataset": {"division": "names"}}, config)
    check_division({"dataset": {}}, replace(config, defenses=()))


def test_the_encoder_below_cross_evaluation_belongs_to_what_decides_a_run():
    plain, above = (
        RunConfig(method="ccst", encoder="pixels"),
        RunConfig(method="cross-evaluation", options={"base": "ccst"}, encoder="pixels"),
    )

    assert [train._encoders(method_of(config)) for config in (plain, above)] == [{"pixels"}, {"pixels"}]
