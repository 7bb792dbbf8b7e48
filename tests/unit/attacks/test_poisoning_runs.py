"""Paired runs of real methods: the same seed with and without a forgery, and what each method's rule makes of it."""

from dataclasses import replace

import pytest
import torch

from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.defenses.guards import Guards
from fdgsec.experiments.setup.run_inputs import with_validation
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ModelState, StyleBank
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.forged_artifacts import Flawed, Heavy, Honest, Judging, Scaled, ScaledUpdate
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import Client, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign, allocation
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag import FedDAG
from fdgsec.methods.fisc import FISC
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.answers import Harm
from fdgsec.threats.attack import Case, Question, Truth
from fdgsec.threats.paired_runs import picked

PLAN = TrainingPlan(batch_size=16, learning_rate=0.05, crop=None, flip=0.0)
STYLE = "StyleStatistics"


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=16, per_domain=42), rng=stream(0, "world", "roles"))


def initial(method: Method, seed: int) -> GlobalModel:
    rng = stream(seed, "world", "initialisation")
    network = method.remodel(build_classifier("tiny", 7, rng=rng), rng)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    return GlobalModel(blueprint=blueprint, state=ModelState(state=state))


def challenger_of(roles: Roles, method: Method, *, rounds: int = 1, adversary: str = "client") -> Challenger:
    clients = [
        with_validation(Client(name=f"client:{n}", data=roles.federation.of_domain(n)), seed=0) for n in range(3)
    ]
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES[adversary], encoder="mini",
        seed=0, defense_stack=DefenseStack(usual=Guards()), rounds=rounds, initial=lambda seed: initial(method, seed),
        unseen=roles.held_out.of_domain(3),
    )  # fmt: skip


def asked(challenger: Challenger, *malicious_clients: MaliciousClient, seeds: int = 1) -> list[tuple[Case, Harm]]:
    return _harms(
        challenger.cases(
            Question(kind="hostile", count=seeds, rounds=challenger.rounds, malicious_clients=malicious_clients)
        )
    )


def _harms(pairs: list[tuple[Case, Truth]]) -> list[tuple[Case, Harm]]:
    found = [(case, truth.harm) for case, truth in pairs]
    return [(case, harm) for case, harm in found if harm is not None]


@pytest.mark.medium
def test_every_forgery_of_a_seed_stands_beside_the_same_honest_run(roles: Roles):
    challenger = challenger_of(roles, FedAvg(plan=PLAN))

    found = asked(challenger, ScaledUpdate(factor=10.0), ScaledUpdate(factor=-1.0), seeds=2)

    assert [case.slice["forgery"] for case, _ in found] == ["update x10", "update x-1"] * 2
    (first, second, third, fourth) = [harm.honest for _, harm in found]
    assert first == second
    assert third == fourth
    assert first.transcript_sha256 != third.transcript_sha256
    assert set(first.accuracy) == {"unseen domain", "source domains"}
    assert all(harm.displacement["global model"] > 0 for _, harm in found)


@pytest.mark.medium
def test_equal_seeds_give_equal_outcomes_and_the_honest_forgery_is_asked_once(roles: Roles):
    malicious_clients = (Honest(), ScaledUpdate(factor=-1.0))

    one = asked(challenger_of(roles, FedAvg(plan=PLAN)), *malicious_clients, seeds=2)
    other = asked(challenger_of(roles, FedAvg(plan=PLAN)), *malicious_clients, seeds=2)

    assert [harm for _, harm in one] == [harm for _, harm in other]
    assert [case.slice["forgery"] for case, _ in one] == ["honest", "update x-1", "update x-1"]
    assert one[0][1].none


def test_the_displacement_of_one_scaled_update_is_that_of_the_mean(roles: Roles):
    challenger = challenger_of(roles, FedAvg(plan=PLAN, weights="uniform"))

    (once, nine) = [harm for _, harm in asked(challenger, ScaledUpdate(factor=2.0), ScaledUpdate(factor=10.0))]

    # (honest + (f - 1) u / 3): nine times as far from f = 10 as from f = 2
    assert nine.displacement["global model"] == pytest.approx(9 * once.displacement["global model"], rel=1e-3)


@pytest.mark.medium
def test_a_refused_forgery_is_asked_once_and_named_and_a_heavy_one_takes_everything(roles: Roles):
    flaw = Flawed(kind="ModelState", flaw="nan")

    found = asked(challenger_of(roles, FedAvg(plan=PLAN)), flaw, Heavy(weight=1e8), seeds=2)

    assert [case.slice["forgery"] for case, _ in found] == ["nan", "weight 1e+08", "weight 1e+08"]
    assert found[0][1].hostile.refused
    assert found[1][1].hostile.numbers["forger_weight"] == pytest.approx(1.0, abs=1e-5)


def test_where_clients_count_alike_nobody_is_heard_who_claims_to_weigh_more(roles: Roles):
    ((_, harm),) = asked(challenger_of(roles, FedAvg(plan=PLAN, weights="uniform")), Heavy(weight=1e8))

    assert harm.displacement["global model"] == 0
    assert harm.hostile.numbers["forger_weight"] == pytest.approx(1 / 3)


@pytest.mark.medium
def test_who_lies_about_peers_weighs_what_the_lie_is_worth(roles: Roles):
    method = FedDAG(plan=PLAN, warm_up=1, generator="fcn16", beta=0.3)
    lie = Judging(peers=1e9, own=0.0)

    ((_, harm),) = asked(challenger_of(roles, method), lie)

    # eq. 6: the others' scores are 1 / (1e9 + small); the forger's is 1 / (two honest losses), about 1 / (2 log 7)
    own = 1 / (2 * torch.tensor(7.0).log())
    others = 2 * torch.tensor(1e-9) ** 0.3
    assert harm.hostile.numbers["forger_weight"] == pytest.approx(float(own**0.3 / (own**0.3 + others)), abs=0.003)
    assert harm.honest.numbers["forger_weight"] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize(
    "malicious_client",
    [Scaled(kind="GeneratorState", factor=0.0), Flawed(kind="Scores", flaw="negative"),
     Flawed(kind="GeneratorState", flaw="missing"), Judging(peers=0.0)],
    ids=lambda one: f"{one.kind} {one.name}",
)  # fmt: skip
@pytest.mark.medium
def test_forgeries_of_feddag_end_or_move_something(roles: Roles, malicious_client: MaliciousClient):
    method = FedDAG(plan=PLAN, warm_up=0, generator="fcn16")

    ((_, harm),) = asked(
        challenger_of(roles, method, rounds=2), malicious_client
    )  # a generator goes out again in the next round

    assert harm.hostile.ended or harm.displacement["global model"] > 0 or harm.hostile.numbers != harm.honest.numbers
    assert harm.hostile.refused == isinstance(malicious_client, Flawed)


def test_a_stablefdg_distribution_moves_what_its_one_receiver_gets(roles: Roles):
    method = StableFDG(plan=PLAN)

    ((_, harm),) = asked(challenger_of(roles, method), Scaled(kind="StyleDistribution", factor=100.0))

    assert not harm.hostile.ended
    assert harm.displacement["StyleDistribution"] > 1


def test_without_training_only_what_is_exchanged_is_compared(roles: Roles):
    challenger = challenger_of(roles, CCST(), rounds=0)

    ((_, harm),) = asked(challenger, Scaled(kind=STYLE, factor=10.0))

    assert harm.honest.accuracy == {}
    assert set(harm.displacement) == {"StyleBank"}


def test_an_adversary_that_is_no_client_has_nobody_to_forge(roles: Roles):
    challenger = challenger_of(roles, FISC(), rounds=0, adversary="server")
    crowd = Question(kind="breakdown", count=1, clients=3, records=4, hostile=(1,), malicious_clients=(Honest(),))

    assert asked(challenger, Honest()) == []
    assert challenger.cases(crowd) == []


def broken(
    roles: Roles, malicious_client: MaliciousClient, *, hostile: tuple[int, ...], clients: int = 9
) -> list[Harm]:
    question = Question(
        kind="breakdown", count=1, clients=clients, records=6, hostile=hostile, malicious_clients=(malicious_client,)
    )
    pairs = _harms(challenger_of(roles, FISC(), rounds=0).cases(question))
    assert [case.slice["hostile"] for case, _ in pairs] == list(hostile)
    return [harm for _, harm in pairs]


def test_a_crowd_moves_the_mean_by_its_share_and_the_median_hardly(roles: Roles):
    one, three = broken(roles, Scaled(kind=STYLE, factor=100.0), hostile=(1, 3))

    assert one.displacement["mean"] == pytest.approx(99 / 9, rel=0.2)  # styles are about equally long
    assert three.displacement["mean"] == pytest.approx(3 * 99 / 9, rel=0.2)
    assert three.displacement["median"] < 1
    assert three.displacement["trimmed-mean"] < 1


def test_one_client_in_every_domain_drags_the_median_over_clusters_like_the_mean(roles: Roles):
    (honest,) = broken(roles, Honest(), hostile=(3,))
    (three,) = broken(roles, Scaled(kind=STYLE, factor=100.0), hostile=(3,))

    assert set(honest.displacement.values()) == {0.0}
    assert three.displacement["InterpolationStyle"] > 10 * three.displacement["median"]


def test_too_few_images_give_no_crowd(roles: Roles):
    question = Question(kind="breakdown", count=1, clients=9, records=1000, hostile=(1,), malicious_clients=(Honest(),))

    assert challenger_of(roles, FISC(), rounds=0).cases(question) == []


def test_a_row_of_huge_variance_is_drawn_as_often_as_its_cluster_and_every_time_in_it():
    rng = stream(0, "world", "bank")
    mean, std = torch.randn(40, 3, generator=rng), 1 + torch.rand(40, 3, generator=rng)
    bank = StyleBank(mean=mean, std=std, owner=torch.arange(40) // 20)
    louder = replace(bank, std=torch.cat([std[:1] * 100, std[1:]]))
    row, method = torch.tensor([0]), FedAlign(clusters=7)

    before, after = (picked(method, one, row, stream(0, "attack")) for one in (bank, louder))

    # Algorithm 2: a cluster of one row gets floor(B / |P|) of the draws, and all of these are that row
    share = float(allocation(torch.tensor([1, 39]), 10_000)[0]) / 10_000
    assert after == {"picked_share": pytest.approx(share, abs=1e-3), "picked_in_cluster": 1.0}
    assert 0 < before["picked_in_cluster"] < 1


@pytest.mark.medium
def test_rows_that_a_client_scales_are_counted_in_the_pools_of_the_others(roles: Roles):
    method = FedAlign(plan=PLAN, upload_ratio=0.3)

    ((_, harm),) = asked(
        challenger_of(roles, method), Scaled(kind="ImageStyles", factor=100.0, entries=("std",), rows=1)
    )

    assert not harm.hostile.ended
    assert harm.hostile.numbers["picked_in_cluster"] == 1.0
    assert harm.honest.numbers["picked_in_cluster"] < 1.0
    assert harm.displacement["StyleBank"] > 1
