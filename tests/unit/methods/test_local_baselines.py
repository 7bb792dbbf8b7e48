"""Methods that change a client's objective alone: FedProx, MixStyle, DSU, RSC. Their equations are in tests/golden."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.dsu import DSU, perturb_styles
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.fedprox import FedProx, Proximal
from fdgsec.methods.fedsr import FedSR
from fdgsec.methods.jigen import JiGen
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.methods.rsc import RSC, MapsChallenge, PooledChallenge
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.feature_styles import StageStyleObjective, instance_statistics
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)
PLACES = ("conv", "stem", "stage1", "stage2", "stage3", "stage4")
METHODS = {
    "fedprox": FedProx(plan=PLAN), "mixstyle": MixStyle(plan=PLAN), "dsu": DSU(plan=PLAN), "rsc": RSC(plan=PLAN),
    "rsc-maps": RSC(plan=PLAN, variant="maps"),
}  # fmt: skip


@cache
def two_clients() -> tuple[Client, ...]:
    return tuple(four_clients()[:2])


@cache
def plain(name: str) -> Outcome:
    return federated(METHODS[name], two_clients(), recode=False)


@pytest.fixture(scope="module")
def baseline() -> Outcome:
    return federated(FedAvg(plan=PLAN), two_clients(), recode=False)


def rng(name: str = "t") -> torch.Generator:
    return stream(0, "world", name)


def network() -> Classifier:
    return Blueprint(backbone="tiny", classes=7).network(rng("network")).train()


def global_model() -> GlobalModel:
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=7), state=ModelState(state=detached(network())))


def batch(count: int = 6) -> Batch:
    images = torch.rand(count, 3, 32, 32, generator=rng("images"))
    return Batch(images=images, labels=torch.arange(count) % 7, records=torch.arange(count))


def objective(method: FedAvg, *, round: int = 0, name: str = "objective") -> Objective:
    client, clock = two_clients()[0], Clock(round=round, rounds=50, participants=("client:0",))
    return method.objective(client, model=global_model(), inbox={}, state={}, clock=clock, rng=rng(name))


def messages(outcome: Outcome) -> list[tuple[int, str, str, str, str, int]]:
    return [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in outcome.transcript.rows]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.medium
def test_they_send_what_fedavg_sends_and_nothing_else(name: str, baseline: Outcome):
    outcome = plain(name)

    assert messages(outcome) == messages(baseline)
    assert not any(outcome.states.values())
    assert outcome.transcript.sha256 != baseline.transcript.sha256


@pytest.mark.parametrize("name", METHODS)
def test_a_run_through_bytes_is_the_plain_run(name: str):
    recoded = federated(METHODS[name], two_clients(), recode=True)

    assert plain(name).transcript.sha256 == recoded.transcript.sha256
    assert all(torch.equal(value, recoded.model[key]) for key, value in plain(name).model.items())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: FedProx(mu=-1.0), "mu >= 0"),
        (lambda: MixStyle(places=("stage1", "stage9")), "'stage9'; did you mean 'stage"),
        (lambda: MixStyle(probability=1.5), "probability in"),
        (lambda: MixStyle(alpha=0.0), "alpha > 0"),
        (lambda: DSU(places=("steam",)), "'steam'; did you mean 'stem'"),
        (lambda: DSU(factor=-1.0), "factor >= 0"),
        (lambda: MixStyle(local=DSU()), "mixstyle has its own local objective"),
        (lambda: DSU(local=MixStyle()), "dsu has its own local objective"),
        (lambda: RSC(features_dropped=1.0), "features_dropped and batch_dropped in"),
    ],
)
def test_options_out_of_range_are_refused(made: Callable[[], FedAvg], words: str):
    with pytest.raises(UsageError, match=words):
        made()


def test_fedprox_without_mu_is_fedavg_bit_for_bit(baseline: Outcome):
    outcome = federated(FedProx(plan=PLAN, mu=0.0), two_clients(), recode=False)

    assert outcome.transcript.sha256 == baseline.transcript.sha256


def test_a_larger_mu_holds_a_client_nearer_to_the_model_it_received():
    plan = TrainingPlan(batch_size=8, learning_rate=0.05, epochs=4)
    clock, start = Clock(round=0, rounds=1, participants=("client:0",)), global_model()

    def moved(mu: float) -> float:
        update, _ = FedProx(plan=plan, mu=mu).fit(
            two_clients()[0], model=start, inbox={}, state={}, clock=clock, rng=rng("fit")
        )
        sent = update.artifacts["model"].tensors()
        names = [name for name, _ in network().named_parameters()]
        return float(sum((sent[name] - start.state.state[name]).square().sum() for name in names)) ** 0.5

    assert moved(5.0) < 0.7 * moved(0.5) < 0.7 * moved(0.0)


def test_the_proximal_term_counts_parameters_and_not_running_statistics():
    anchor = global_model().state.state
    drifted = network()
    for name, value in drifted.named_buffers():
        if value.is_floating_point():
            value += 1.0
            assert name not in dict(drifted.named_parameters())
    plain = CrossEntropy()(batch(), drifted.eval())

    held = Proximal(CrossEntropy(), anchor, 10.0)(batch(), drifted)

    assert torch.equal(held, plain)


def test_the_released_fedprox_leaves_round_0_alone():
    assert objective(FedProx(released=True), round=0) == CrossEntropy()
    assert isinstance(objective(FedProx(released=True), round=1), Proximal)
    assert isinstance(objective(FedProx(), round=0), Proximal)


def test_fedprox_holds_another_methods_objective_too():
    held = objective(FedProx(local=DSU()))

    assert isinstance(held, Proximal)
    assert isinstance(held.inner, StageStyleObjective)
    assert held.couples_records


def changed_places(method: FedAvg) -> list[str]:
    """After which places the maps that go on are not those that the place gave, in one training step."""
    model, step = network(), objective(method)
    given: dict[str, Tensor] = {}
    found: list[str] = []
    followers = dict(zip(PLACES, ["stem.1", *PLACES[2:], "neck"], strict=True))
    for place, name in followers.items():

        def note(module: nn.Module, taken: object, made: Tensor, place: str = place) -> None:
            given[place] = made.clone()

        def compare(module: nn.Module, taken: tuple[Tensor], place: str = place) -> None:
            if not torch.equal(taken[0], given[place]):
                found.append(place)

        model.place(place).register_forward_hook(note)
        follower = model.neck if name == "neck" else model.body.get_submodule(name)
        follower.register_forward_pre_hook(compare)
    step(batch(), model)
    return found


def test_mixstyle_acts_after_the_first_three_stages_and_dsu_at_six_places():
    assert changed_places(MixStyle(probability=1.0)) == ["stage1", "stage2", "stage3"]
    assert changed_places(MixStyle(probability=1.0, places=("stage1", "stage2"))) == ["stage1", "stage2"]
    assert changed_places(DSU(probability=1.0)) == list(PLACES)


@pytest.mark.parametrize("method", [MixStyle(probability=0.0), DSU(probability=0.0)])
def test_what_never_acts_is_cross_entropy(method: FedAvg):
    assert torch.equal(objective(method)(batch(), network()), CrossEntropy()(batch(), network()))


@pytest.mark.parametrize("method", [MixStyle(places=("stage1",)), DSU(places=("stage1",))])
@pytest.mark.medium
def test_a_place_acts_on_about_half_of_the_batches(method: FedAvg):
    model, step = network().eval(), objective(method)
    plain = CrossEntropy()(batch(), model)

    acted = sum(not torch.equal(step(batch(), model), plain) for _ in range(200))

    assert 72 <= acted <= 128  # four standard deviations around 100


@pytest.mark.parametrize("name", METHODS)
def test_a_training_step_leaves_no_trace_in_how_the_network_predicts(name: str):
    model = network().eval()
    before = model(batch().images)

    objective(METHODS[name])(batch(), model)

    assert torch.equal(model(batch().images), before)


def test_dsu_without_noise_gives_the_maps_back_and_leaves_a_single_image_alone():
    maps = torch.randn(5, 4, 6, 6, generator=rng("maps"))

    assert torch.allclose(perturb_styles(maps, rng(), factor=0.0), maps, atol=1e-5)
    assert torch.equal(perturb_styles(maps[:1], rng()), maps[:1])


@pytest.mark.medium
def test_dsu_draws_styles_around_each_images_own_as_wide_as_the_batch_varies():
    maps = torch.randn(3, 2, 8, 8, generator=rng("maps")) * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1)
    own_mean, own_std = instance_statistics(maps)
    generator = rng("noise")

    drawn = [instance_statistics(perturb_styles(maps, generator))[0] for _ in range(3000)]

    means = torch.stack(drawn)
    assert torch.allclose(means.mean(0), own_mean, atol=5 * float(own_mean.std(0).max()) / 3000**0.5)
    assert torch.allclose(means.std(0), own_mean.std(0).expand_as(own_mean), rtol=0.07)  # 5 / sqrt(2 * 3000)
    assert own_std.shape == (3, 2, 1, 1)


def test_rsc_mutes_a_third_of_the_features_in_a_third_of_the_batch():
    model = network()
    features, labels = torch.rand(9, 96, generator=rng("features")), torch.arange(9) % 7

    mask = PooledChallenge(1 / 3, 1 / 3).mask(features, labels, model)

    assert sorted((mask == 0).sum(1).tolist()) == [0] * 6 + [32] * 3


def test_the_official_rsc_challenges_more_of_a_batch_every_ten_epochs():
    def share(number: int) -> float:
        made = objective(RSC(variant="maps"), round=number)
        assert isinstance(made, MapsChallenge)
        return made.share

    assert [share(number) for number in (0, 9, 10, 20, 49)] == pytest.approx([0.3, 0.3, 0.5, 0.7, 1.0])


@pytest.mark.parametrize(("positions", "cells"), [(True, 6), (False, 30)])
def test_the_official_rsc_drops_a_third_of_the_positions_or_a_little_less_of_the_channels(positions: bool, cells: int):
    model = network()
    maps, labels = torch.rand(10, 96, 4, 4, generator=rng("maps")), torch.arange(10) % 7

    mask = MapsChallenge(0.3, 1 / 3, rng()).mask(maps, labels, model, positions=positions)

    assert mask.shape == ((10, 1, 4, 4) if positions else (10, 96, 1, 1))
    dropped = (mask == 0).flatten(1).sum(1)
    assert set(dropped.tolist()) <= {0, cells}
    assert 0 < int((dropped > 0).sum()) <= 3


def test_rsc_says_that_it_couples_records_as_mixstyle_and_dsu_do():
    assert all(objective(method).couples_records for method in (RSC(), RSC(variant="maps"), MixStyle(), DSU()))
    assert not objective(FedProx()).couples_records


def test_the_loss_of_rsc_is_that_of_the_challenged_features():
    model, step = network(), PooledChallenge(1 / 3, 1 / 3)
    features = model.features(batch().images).detach()
    mask = step.mask(features, batch().labels, model)
    expected = functional.cross_entropy(model.head(features * mask), batch().labels, reduction="none")

    assert torch.allclose(step(batch(), model), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "method"),
    [
        ("mixstyle-paper", MixStyle), ("dsu-paper", DSU), ("fedbn-paper", FedBN), ("rsc-paper", RSC),
        ("jigen-released", JiGen), ("fedsr-paper", FedSR),
    ],
)  # fmt: skip
def test_every_preset_is_a_method_with_the_authors_options(preset: str, method: type[FedAvg]):
    loaded = load_preset(preset)

    made = build(method, loaded["method"], where="method")

    changed = {"class_loss": "all"} if method is JiGen else {}
    own = {spec.name for spec in fields(method)} - {spec.name for spec in fields(FedAvg)}
    assert {name: getattr(made, name) for name in own} == {name: getattr(method(), name) for name in own} | changed
    assert loaded["run"]["pretrained"]
