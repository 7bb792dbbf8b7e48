"""The attention highlighter: what its scores are, that inference looks at no other image, and how large it is."""

import pytest
import torch
from torch import Tensor, nn

from fdgsec.nn.networks.attention import (
    HighlightedClassifier,
    Highlighter,
    add_highlighter,
    attention_scores,
    class_partners,
    map_channels,
    mixed_queries,
)
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def network(backbone: str = "tiny", *, cosine: bool = True, bias: bool = False) -> HighlightedClassifier:
    rng = stream(0, "world", "network")
    return add_highlighter(build_classifier(backbone, 5, rng=rng), cosine=cosine, bias=bias, rng=rng)


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=stream(0, "world", "images"))


@pytest.mark.parametrize("cosine", [True, False])
def test_scores_sum_to_one_over_the_places_of_an_image(cosine: bool):
    scores = attention_scores(network(cosine=cosine), images())

    assert scores.shape == (6, 4, 4)
    assert torch.allclose(scores.sum((1, 2)), torch.ones(6), atol=1e-6)
    assert float(scores.std()) > 0


@pytest.mark.parametrize("cosine", [True, False])
def test_without_queries_scores_are_uniform_and_both_halves_of_the_heads_input_coincide(cosine: bool):
    made = network(cosine=cosine).eval()
    made.highlighter.get_submodule("query").load_state_dict({"weight": torch.zeros(30, 96, 1, 1)})

    with torch.no_grad():
        pooled, attended = made.features(images()).chunk(2, 1)

    assert torch.allclose(attention_scores(made, images()), torch.full((6, 4, 4), 1 / 16))
    assert torch.allclose(pooled, attended, atol=1e-6)


def test_cosine_scores_are_close_to_uniform():
    scores = attention_scores(network(cosine=True), images()).flatten(1)

    assert float((scores.amax(1) / scores.amin(1)).max()) <= float(torch.tensor(2.0).exp()) + 1e-5  # logits in [-1, 1]


def test_inference_is_deterministic_and_looks_at_no_other_image():
    made, given = network().eval(), images()
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    with torch.no_grad():
        whole, again = made(given), made(given)
        shuffled, alone, longer = made(given[order]), made(given[:1]), made(torch.cat([given, 1 - given]))

    assert torch.equal(whole, again)
    assert torch.allclose(shuffled, whole[order], atol=1e-5)
    assert torch.allclose(alone, whole[:1], atol=1e-5)
    assert torch.allclose(longer[:6], whole, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "partners"),
    [
        ([0, 0, 0], [1, 2, 0]),
        ([2, 0, 2, 1, 2, 0], [2, 5, 4, 3, 0, 1]),
        ([7], [0]),
        ([3, 1, 2], [0, 1, 2]),
    ],
)
def test_the_partner_is_the_next_of_the_class_and_the_first_follows_the_last(labels: list[int], partners: list[int]):
    assert class_partners(torch.tensor(labels)).tolist() == partners


def test_queries_are_mixed_half_and_half_or_one_of_the_two_is_taken():
    queries, partners = torch.tensor([[2.0], [4.0], [8.0]]), torch.tensor([1, 2, 0])

    assert mixed_queries(queries, partners).flatten().tolist() == [3.0, 6.0, 5.0]
    assert mixed_queries(queries, partners, similarity="cross").flatten().tolist() == [4.0, 8.0, 2.0]
    assert mixed_queries(queries, partners, similarity="self").flatten().tolist() == [2.0, 4.0, 8.0]


def test_a_resnet18_grows_by_what_the_paper_counts():
    rng = stream(0, "world", "network")
    plain = build_classifier("resnet18", 7, rng=rng)
    before = sum(p.numel() for p in plain.parameters())

    def added(*, bias: bool, unused: bool) -> int:
        made = add_highlighter(plain, bias=bias, unused=unused, rng=rng)
        return sum(p.numel() for p in made.parameters()) - before

    assert before == 11_180_103  # appendix E.2
    assert added(bias=True, unused=True) == 49_756  # section 4.1 and remark 3: 0.44%
    assert added(bias=False, unused=False) == 2 * 512 * 30 + 7 * 512


def test_a_neck_with_a_layer_of_its_own_leaves_the_attention_feature_as_wide_as_the_maps():
    made = network("mobilenet_v3_large").eval()

    with torch.no_grad():
        features = made.features(images(2))

    assert map_channels(made) == 960
    assert features.shape == (2, 1280 + 960)


def test_the_networks_parameters_come_from_the_generator_alone():
    first, second = network(bias=True).state_dict(), network(bias=True).state_dict()

    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("backbone", "spread", "bias"), [("squeezenet1_0", 0.01, 0.0), ("tiny", (2 * 96 * 3) ** -0.5, None)]
)
def test_the_wider_head_follows_the_law_of_the_backbones_own(backbone: str, spread: float, bias: float | None):
    plain = build_classifier(backbone, 7, rng=stream(0, "world", "network"))

    head = add_highlighter(plain, rng=stream(0, "world", "head")).head

    assert float(plain.head.weight.detach().std()) == pytest.approx(spread * (2**0.5 if bias is None else 1), rel=0.1)
    assert float(head.weight.detach().std()) == pytest.approx(spread, rel=0.1)  # five standard errors of 1,344
    assert bias is None or head.bias.tolist() == [bias] * 7


def test_printed_scores_of_maps_like_a_pretrained_resnets_leave_the_softmax_a_gradient():
    rng = stream(0, "world", "maps")
    shift, noise = torch.randn(8, 512, 1, 1, generator=rng), torch.randn(8, 512, 7, 7, generator=rng)
    maps = 1.6 * (shift + noise).relu()  # their means are about 0.9
    made = Highlighter(512, embedding=30, cosine=False, bias=False, unused=False, rng=stream(0, "world", "layers"))

    scores = made.scores(maps, made.queries(maps)).detach().flatten(1)

    assert 2 / 49 < float(scores.amax(1).mean()) < 0.6


def test_unused_parameters_change_no_prediction():
    made = network(bias=True).eval()
    rng = stream(0, "world", "network")
    spare = add_highlighter(build_classifier("tiny", 5, rng=rng), bias=True, unused=True, rng=rng).eval()
    spare.load_state_dict(made.state_dict(), strict=False)

    with torch.no_grad():
        assert torch.equal(made(images()), spare(images()))


def test_score_maps_of_a_plain_classifier_are_refused():
    plain = build_classifier("tiny", 5, rng=stream(0, "world", "network"))

    with pytest.raises(UsageError, match="need a network with a highlighter"):
        attention_scores(plain, images())


def test_the_highlighter_works_without_batch_norm():
    rng = stream(0, "world", "network")
    made = add_highlighter(build_classifier("tiny", 5, norm="group", rng=rng), rng=rng)

    made(images()).sum().backward()

    assert not [m for m in made.modules() if isinstance(m, nn.BatchNorm2d)]
    assert made.highlighter.get_submodule("query").get_parameter("weight").grad is not None
