"""Shadow clients on real methods: means are told from other releases, and the truth of shares reaches the judge alone."""

import pytest
import torch

from fdgsec.attacks.attribute_inference.properties import PropertyInference
from fdgsec.attacks.attribute_inference.shadow_clients import ShadowClients, center_statistics
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fediir import FedIIR
from fdgsec.methods.fisc import FISC
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.styles.channel_statistics import recentered
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.attack import Question, TargetFacts
from fdgsec.threats.judging.judge import Judge


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=126)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def challenger_of(roles: Roles, method: Method, model: GlobalModel | None = None) -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["server"], encoder="mini",
        seed=0, model=model,
    )  # fmt: skip


def knowledge(data: DomainDataset, challenger: Challenger) -> Knowledge:
    known = challenger.roles.auxiliary
    return Knowledge(
        statistics=lambda dataset: statistics("mini", dataset), encoder="mini", class_names=data.class_names,
        domain_names=data.domain_names, auxiliary=known.subset(known.domains < 3), unseen=None, own=None,
        simulate=challenger.simulated,
    )  # fmt: skip


def shadows(data: DomainDataset, challenger: Challenger) -> ShadowClients:
    return ShadowClients.of(knowledge(data, challenger), concentration=0.3, pooled=100, simulated=8)


@pytest.mark.parametrize(("method", "mean"), [(CCST(), True), (CCST(style="single"), True), (FISC(), False)])
def test_a_release_is_tried_out_for_being_a_mean(data: DomainDataset, roles: Roles, method: Method, mean: bool):
    assert shadows(data, challenger_of(roles, method)).releases_are_means(stream(0, "attack")) is mean


def test_about_is_linear_and_leaves_nothing_of_the_center():
    rng = stream(0, "attack")
    records = torch.randn(9, 6, generator=rng, dtype=torch.float64)
    center = torch.randn(6, generator=rng, dtype=torch.float64)

    placed = center_statistics(records, center, PooledStyles())

    assert torch.allclose(center_statistics(records.mean(0), center, PooledStyles()), placed.mean(0))
    assert torch.allclose(center_statistics(center, center, PooledStyles()), torch.zeros(6).double())
    assert torch.allclose(placed[:, 3:] + recentered(center, center[:3])[3:], recentered(records, center[:3])[:, 3:])


def test_every_home_is_placed_about_the_mean_of_its_classes(data: DomainDataset, roles: Roles):
    same, other, all_ = shadows(data, challenger_of(roles, CCST())).pools(data.domain_names[1])

    assert [pool.name for pool in (same, other, all_)] == ["same domain", "other domains", "all domains"]
    assert [pool.client_groups() for pool in (same, other, all_)] == [[1], [0, 2], [1]]
    assert same.count == 7
    assert set(same.groups.tolist()) == {1}
    assert set(other.groups.tolist()) == {0, 2}
    assert other.center is None
    assert same.center is not None
    assert all_.center is not None
    assert torch.equal(same.center, all_.center)
    for pool, group in ((same, 1), (other, 0), (other, 2), (all_, 0), (all_, 1)):
        mine = pool.groups == group
        means = [pool.records[mine & (pool.kinds == kind)].mean(0) for kind in range(7)]
        largest = float(pool.records.abs().max())
        assert float(torch.stack(means).mean(0).abs().max()) < 1e-9 * largest


@pytest.mark.parametrize("domain", [None, "unheard of"])
def test_a_domain_without_images_is_read_by_all_others(data: DomainDataset, roles: Roles, domain: str | None):
    (pool,) = shadows(data, challenger_of(roles, CCST())).pools(domain)

    assert (pool.name, pool.center, pool.client_groups()) == ("other domains", None, [0, 1, 2])


def test_a_client_of_several_domains_is_read_by_all_of_them(data: DomainDataset, roles: Roles):
    (pool,) = shadows(data, challenger_of(roles, CCST())).pools("mixed")

    assert (pool.name, pool.count, len(torch.unique(pool.groups))) == ("all domains", len(data.domain_names), 1)
    assert torch.equal(pool.kinds, pool.images.domains)


@pytest.mark.parametrize("method", [CCST(), CCST(style="single"), FISC()], ids=["pooled", "rows", "clustered"])
@pytest.mark.medium
def test_skewed_clients_of_real_methods_are_answered_and_judged(data: DomainDataset, roles: Roles, method: Method):
    challenger = challenger_of(roles, method)
    attack = PropertyInference(clients=10, sizes=(20,), shadows=200, simulated=24)
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=88, classes=7, profile="quick",
        knows=frozenset(ADVERSARIES["server"].knows),
    )  # fmt: skip
    pairs = [pair for question in attack.plan(facts) for pair in challenger.cases(question)]
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]

    answers = attack.run(cases, knowledge(data, challenger), stream(0, "attack"))
    rows = Judge(bootstrap_repeats=50).measure(answers, cases, truths, stream(0, "world", "judge"))

    ways = sorted({(str(row.slice["domain"]), str(row.slice["learned_on"])) for row in rows})
    assert ways == sorted(
        [
            ("mixed", "all domains"),
            *((d, way) for d in data.domain_names[:3] for way in ("same domain", "other domains", "all domains")),
        ]
    )
    mixed = [row for row in rows if row.slice["domain"] == "mixed" and row.name == "mae"]
    assert all(row.value is not None for row in rows)
    if method != CCST(style="single"):  # whose single row of a client says little of the rest
        assert [row.leaks for row in mixed] == [True]  # domains are what styles are of


def test_the_runs_own_clients_come_with_their_shares(roles: Roles):
    ((case, truth), *_) = challenger_of(roles, CCST()).cases(Question(kind="released"))

    held = roles.federation.of_domain(0)
    assert case.victim == "client:0"
    assert truth.proportions is not None
    assert truth.domain_shares is not None
    assert truth.proportions.tolist() == pytest.approx([float((held.labels == k).double().mean()) for k in range(7)])
    assert truth.domain_shares.tolist() == [1, 0, 0, 0]


def test_head_gradients_of_a_real_method_give_the_shares_away(data: DomainDataset, roles: Roles):
    network = build_classifier("tiny", 7, norm="batch", pretrained=False, rng=stream(0, "world"))
    state = ModelState(state={name: value.detach().clone() for name, value in network.state_dict().items()})
    blueprint = Blueprint(backbone="tiny", classes=7)
    challenger = challenger_of(roles, FedIIR(), GlobalModel(blueprint=blueprint, state=state))
    pairs = challenger.cases(Question(kind="mixtures", count=8, records=20, scheme="labels"))
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]

    answers = PropertyInference().run(cases, knowledge(data, challenger), stream(0, "attack"))
    rows = Judge(bootstrap_repeats=50).measure(answers, cases, truths, stream(0, "world", "judge"))

    learned = [row for row in rows if row.slice["reading"] == "auxiliary gradients"]
    assert {row.name for row in learned} == {"mae", "auc"}
    for row in learned:
        assert row.value is not None
        assert row.leaks
        assert row.value < 0.02 if row.name == "mae" else row.value > 0.95
