"""StableFDG's attention half against slow transcriptions, in float64 loops, of section 3.2 of its paper."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.federation.method import Client
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.networks.attention import HighlightedClassifier, attention_scores, class_partners
from fdgsec.nn.training.batches import Batch
from tests.support.stablefdg_setting import drawn, learning, start, three_clients


@pytest.fixture(scope="module")
def client() -> Client:
    return three_clients()[0]


def attention(theta_q: Tensor, theta_k: Tensor, x_i: Tensor, x_j: Tensor, *, cosine: bool) -> Tensor:
    """Eq. (8): S = ((theta_q X_j + theta_q X_i) / 2)^T theta_k X_i, its mean over queries, softmax over keys; (HW,)."""
    q_i, q_j, k_i = theta_q @ x_i, theta_q @ x_j, theta_k @ x_i  # (d, HW)
    if cosine:  # as released: every place's query and key has length 1
        q_i, q_j, k_i = (v / v.norm(dim=0, keepdim=True) for v in (q_i, q_j, k_i))
    similarity = ((q_j + q_i) / 2).T @ k_i  # (HW of queries, HW of keys)
    scores = [
        sum(float(similarity[q, k]) for q in range(len(similarity))) / len(similarity) for k in range(len(similarity))
    ]
    total = sum(math.exp(score) for score in scores)
    return torch.tensor([math.exp(score) / total for score in scores], dtype=torch.float64)


def head_input(network: HighlightedClassifier, z: Tensor, partner: Tensor, *, cosine: bool) -> Tensor:
    """Eq. (7) and the concatenation: [GAP(z), A(z)] of one map (C, H, W) with the map of its partner."""
    weights = {name: network.highlighter.get_submodule(name).get_parameter("weight") for name in ("query", "key")}
    theta_q, theta_k = (weights[name].detach().double().flatten(1) for name in ("query", "key"))
    flat = z.double().flatten(1)
    scores = attention(theta_q, theta_k, flat, partner.double().flatten(1), cosine=cosine)
    attended = [sum(float(scores[p] * flat[c, p]) for p in range(flat.shape[1])) for c in range(len(flat))]
    return torch.cat([flat.mean(1), torch.tensor(attended, dtype=torch.float64)])


@pytest.mark.parametrize("cosine", [True, False])
def test_inference_is_equation_6_with_the_images_own_query(client: Client, cosine: bool):
    network = start(StableFDG(cosine=cosine)).module().eval()
    assert isinstance(network, HighlightedClassifier)
    images = as_float(client.data.pixels(torch.arange(3)))

    with torch.no_grad():
        last, logits = network.maps(images), network(images).double()
    scores = attention_scores(network, images).double()

    for i in range(3):
        joined = head_input(network, last[i], last[i], cosine=cosine)
        expected = network.head.weight.detach().double() @ joined + network.head.bias.detach().double()
        assert torch.allclose(logits[i], expected, rtol=0, atol=2e-5)
        found = (scores[i].flatten() * last[i].double().flatten(1)).sum(1)
        assert torch.allclose(found, joined[96:], rtol=0, atol=2e-5)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.medium
def test_training_by_attention_is_equations_7_and_8_with_a_partner_of_the_same_class(client: Client, cosine: bool):
    method = StableFDG(style=False, cosine=cosine)
    records = torch.tensor([0, 1, 7, 2, 8, 9])  # classes 0, 1, 0, 2, 1, 2
    labels, images = client.data.labels[records], as_float(client.data.pixels(records))
    objective, network = learning(method, client)
    twin = start(method).module().train()
    assert isinstance(twin, HighlightedClassifier)

    found = objective(Batch(images=images, labels=labels, records=records), network)

    last = twin.maps(images).detach()
    for i, j in enumerate([2, 4, 0, 5, 1, 3]):
        joined = head_input(twin, last[i], last[j], cosine=cosine)
        logits = twin.head.weight.detach().double() @ joined + twin.head.bias.detach().double()
        expected = -float(functional.log_softmax(logits, 0)[labels[i]])
        assert float(found.detach()[i]) == pytest.approx(expected, abs=2e-5)


def test_partners_are_others_of_the_class_whatever_the_labels():
    for number in range(30):
        labels = torch.randint(0, 6, (17,), generator=drawn("labels", number))

        partners = class_partners(labels)

        assert torch.equal(labels[partners], labels)
        for i, j in enumerate(partners.tolist()):
            others = [k for k in range(17) if labels[k] == labels[i] and k != i]
            later = [k for k in others if k > i]
            assert j == (i if not others else (later or others)[0])
