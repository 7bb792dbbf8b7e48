"""Crafted forgeries in paired runs: what they know, what they send, and the worst of them behind each guard."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.poisoning.attack import Poisoning, against_guards
from fdgsec.attacks.poisoning.crafted_forgeries import CRAFTED, RULES, Crafted, crafted
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.defenses.guards import Guards
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.guarded_cases import Harms, NormRecorder, accuracy_lost, displaced, worst_by
from fdgsec.federation.artifacts import Artifact, ImageStyles, ModelState, StyleStatistics
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.forged_artifacts import Honest, Scaled, ScaledUpdate
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.malicious_client_protocol import ForgeryError, Leaving, Peers
from fdgsec.federation.method import Client, Clock, Method, Reply, StepRequest
from fdgsec.federation.wire import SERVER, Message
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Harm, Outcome
from fdgsec.threats.attack import Case, Question, TargetFacts, Truth
from fdgsec.threats.malicious_engine import REHEARSALS, MaliciousEngine

PLAN = TrainingPlan(batch_size=16, learning_rate=0.05, crop=None, flip=0.0)
STYLE = "StyleStatistics"


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(),
    auxiliary=None, unseen=None, own=None,
)  # fmt: skip
CLOCK = Clock(round=0, rounds=1, participants=("client:0", "client:1", "client:2"))
REQUEST = StepRequest(clock=CLOCK, model=None, inbox={})


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=16, per_domain=42), rng=stream(0, "world", "roles"))


def initial(method: Method, seed: int) -> GlobalModel:
    rng = stream(seed, "world", "initialisation")
    network = method.remodel(build_classifier("tiny", 7, rng=rng), rng)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return GlobalModel(
        blueprint=Blueprint(backbone="tiny", classes=7, remodel=method.remodel), state=ModelState(state=state)
    )


def challenger_of(roles: Roles, method: Method, *, rounds: int) -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["client"], encoder="mini",
        seed=0, defense_stack=DefenseStack(usual=Guards()), rounds=rounds, initial=lambda seed: initial(method, seed),
        unseen=roles.held_out.of_domain(3),
    )  # fmt: skip


def style(level: float) -> StyleStatistics:
    return StyleStatistics(mean=torch.tensor([level, 2 * level]), std=torch.tensor([1.0, level]))


def sent(one: Crafted, own: Artifact, others: Sequence[Artifact], *, seen: StepRequest = REQUEST) -> Artifact | None:
    peers = Peers(
        honest=[Reply(artifacts={"slot": other}) for other in others],
        rehearse=lambda: [Reply(artifacts={"slot": style(5.0)}), Reply(artifacts={"slot": style(7.0)})],
    )
    leaving = Leaving(step="share", slot="slot", artifact=own, sender="client:0", peers=peers)
    return one.forge(leaving, seen, stream(0, "attack"))


def numbers(artifact: Artifact | None) -> Tensor:
    assert artifact is not None
    return torch.cat([value.flatten() for _, value in sorted(artifact.tensors().items())])


def test_the_omniscient_forger_uses_the_others_and_the_other_one_its_own_replies_alone():
    known = {"omniscient": [style(1.0), style(2.0), style(4.0)], "own": [style(3.0), style(5.0), style(7.0)]}
    for knowledge in ("omniscient", "own"):
        one = Crafted(kind=STYLE, rule="a little, z = 1.5", knowledge=knowledge)

        found = sent(one, style(3.0), [style(1.0), style(2.0), style(4.0)])

        rows = torch.stack([numbers(artifact) for artifact in known[knowledge]])
        expected = rows.mean(0) - 1.5 * rows.std(0)
        expected[2:] = expected[2:].clamp_min(0)  # stds, sorted behind means
        torch.testing.assert_close(numbers(found), expected)


def test_forged_styles_are_legal_however_far_they_are_moved():
    for one in crafted(STYLE):
        found = sent(one, style(0.01), [style(0.0), style(50.0), style(100.0)])

        assert found is not None
        StyleStatistics(**found.tensors())  # its constructor checks ranges


def test_every_row_of_a_forger_becomes_the_forged_row():
    rows = ImageStyles(mean=torch.arange(6.0).reshape(3, 2), std=torch.ones(3, 2))
    others = [ImageStyles(mean=torch.full((2, 2), level), std=torch.full((2, 2), level)) for level in (1.0, 3.0)]
    one = Crafted(kind="ImageStyles", rule="a little, z = 1.5", knowledge="omniscient")

    found = sent(one, rows, others)

    assert found is not None
    assert found.tensors()["mean"].shape == (3, 2)
    expected = 2.0 - 1.5 * torch.tensor([1.0, 1.0, 3.0, 3.0]).std()
    torch.testing.assert_close(found.tensors()["mean"], expected.expand(3, 2))


def test_a_model_is_forged_around_the_received_one_and_its_variances_stay_legal():
    received = ModelState(state={"weight": torch.tensor([1.0, 1.0]), "bn.running_var": torch.tensor([0.1]),
                                 "count": torch.tensor(3)})  # fmt: skip
    model = GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=received)

    def trained(change: float) -> ModelState:
        return ModelState(state={"weight": torch.tensor([1.0 + change, 1.0 - change]),
                                 "bn.running_var": torch.tensor([0.1 + change]), "count": torch.tensor(4)})  # fmt: skip

    peers = Peers(honest=[Reply(artifacts={"model": trained(change)}) for change in (1.0, 3.0)], rehearse=list)
    leaving = Leaving(step="fit", slot="model", artifact=trained(9.0), sender="client:0", peers=peers)
    one = Crafted(kind="ModelState", rule="inner product", knowledge="omniscient")
    found = one.forge(leaving, StepRequest(clock=CLOCK, model=model, inbox={}), stream(0, "attack"))

    assert found is not None
    torch.testing.assert_close(found.tensors()["weight"], torch.tensor([1.0 - 0.5 * 2, 1.0 + 0.5 * 2]))
    assert float(found.tensors()["bn.running_var"]) == 0.0
    assert int(found.tensors()["count"]) == 4


def test_what_cannot_be_averaged_over_clients_is_not_crafted_and_styles_have_no_inner_product():
    assert not crafted("Scores")
    assert not crafted("Prototypes")
    assert {one.rule for one in crafted("ModelState")} == set(RULES)
    assert {one.rule for one in crafted(STYLE)} == set(RULES) - {"inner product"}
    assert all(len({one.name for one in crafted(kind)}) == len(crafted(kind)) for kind in CRAFTED)


def test_an_engine_that_tells_nothing_of_peers_cannot_craft():
    leaving = Leaving(step="share", slot="slot", artifact=style(1.0), sender="client:0")

    with pytest.raises(ForgeryError, match="runs all clients before it forges"):
        Crafted(kind=STYLE, rule="min-max", knowledge="own").forge(leaving, REQUEST, stream(0, "attack"))


def test_malicious_clients_of_either_engine_send_the_same_bytes(roles: Roles):
    members = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    model, forgery = initial(FedAvg(plan=PLAN), 0), ScaledUpdate(factor=3.0)
    request = StepRequest(clock=CLOCK, model=model, inbox={})
    plain = LocalEngine(members=members, method=FedAvg(plan=PLAN), seed=5)
    inside = LocalEngine(
        members=members,
        method=FedAvg(plan=PLAN),
        seed=5,
        defense_stack=DefenseStack(malicious_clients={"client:1": forgery}),
    )

    after, _ = MaliciousEngine(engine=plain, malicious_clients={"client:1": forgery}).ask(
        "fit", dict.fromkeys(plain.clients(), request)
    )
    within, _ = inside.ask("fit", dict.fromkeys(plain.clients(), request))

    assert {name: reply.artifacts["model"].sha256 for name, reply in after.items()} == {
        name: reply.artifacts["model"].sha256 for name, reply in within.items()
    }


def test_a_rehearsal_is_the_honest_step_on_half_of_the_clients_images(roles: Roles):
    member = Client(name="client:0", data=roles.federation.of_domain(0))
    seen: list[Peers] = []

    class Curious(Honest):
        def forge(self, leaving: Leaving, _seen: StepRequest, _rng: torch.Generator, /) -> Artifact | None:
            assert leaving.peers is not None
            seen.append(leaving.peers)
            return leaving.artifact

    method = CCST()
    engine = MaliciousEngine(
        engine=LocalEngine(members=[member], method=method, seed=0), malicious_clients={"client:0": Curious()}
    )
    replies, _ = engine.ask("share", {"client:0": REQUEST})

    rehearsed = [next(iter(reply.artifacts.values())).sha256 for reply in seen[0].rehearse()]
    whole, _ = run_client_step(method, member, "share", REQUEST, {}, 0)
    assert next(iter(replies["client:0"].artifacts.values())).sha256 == next(iter(whole.artifacts.values())).sha256
    assert len(set(rehearsed)) == REHEARSALS
    assert seen[0].honest == []


GUARDS = ("the run's", "norm", "center=median", "center=krum")


def asked(roles: Roles, *, guards: tuple[str, ...] = GUARDS, clients: int = 7) -> list[tuple[Case, Truth]]:
    question = Question(
        kind="guarded_exchanges", count=2, selecting=1, clients=clients, records=4, hostile=(2,), guards=guards,
        malicious_clients=(Scaled(kind=STYLE, factor=100.0),
                           Crafted(kind=STYLE, rule="min-max", knowledge="omniscient")),
    )  # fmt: skip
    return challenger_of(roles, CCST(), rounds=0).cases(question)


def test_behind_each_guard_stands_every_forgery_and_the_worst_on_seeds_that_did_not_choose_it(roles: Roles):
    pairs = asked(roles)

    for guard in GUARDS:
        of_guard = [(case, truth.harm) for case, truth in pairs if case.slice["guard"] == guard]
        assert [case.slice["forgery"] for case, _ in of_guard] == (
            ["x100"] * 2 + ["min-max, omniscient"] * 2 + ["worst of 2 by displacement"] * 2
        )
        worst = [(case.slice["chosen"], harm) for case, harm in of_guard if "chosen" in case.slice]
        own = {
            name: [harm for case, harm in of_guard if case.slice["forgery"] == name]
            for name in ("x100", "min-max, omniscient")
        }
        chosen = {str(name) for name, _ in worst}
        assert len(chosen) == 1
        assert [harm for _, harm in worst] == own[chosen.pop()]


@pytest.mark.medium
def test_what_scales_a_style_is_worst_without_a_guard_and_what_stays_close_is_worst_behind_a_norm(roles: Roles):
    chosen = {case.slice["guard"]: case.slice["chosen"] for case, _ in asked(roles) if "chosen" in case.slice}

    assert chosen["the run's"] == "x100"
    moved = {
        (case.slice["guard"], case.slice["forgery"]): truth.harm.displacement["StyleBank"]
        for case, truth in asked(roles)
        if truth.harm is not None
    }
    assert moved["the run's", "x100"] > 10 * moved["norm", "x100"]
    assert moved["the run's", "min-max, omniscient"] == pytest.approx(moved["norm", "min-max, omniscient"], rel=0.2)


def test_a_guard_that_does_not_fit_has_no_cases_and_the_report_says_so(roles: Roles):
    pairs = asked(roles, guards=("the run's", "center=krum"), clients=6)  # krum with f = 2 needs seven

    assert {case.slice["guard"] for case, _ in pairs} == {"the run's"}
    attack = Poisoning(guards=("the run's", "center=krum"))
    (row,) = [one for one in attack.missing([case for case, _ in pairs], BLANK) if "guard" in one.slice]
    assert (row.slice["guard"], row.slice["artifact"]) == ("center=krum", STYLE)
    assert row.unavailable is not None
    assert row.unavailable.startswith("does not fit")


@pytest.mark.medium
def test_trained_models_behind_a_guard_lose_accuracy_or_not_in_every_run(roles: Roles):
    question = Question(
        kind="guarded_runs", count=1, selecting=1, rounds=1, clients=3, records=8, hostile=(1,),
        guards=("center=median",), malicious_clients=against_guards("ModelState")[:2],
    )  # fmt: skip

    pairs = challenger_of(roles, FedAvg(plan=PLAN), rounds=1).cases(question)

    names = [case.slice["forgery"] for case, _ in pairs]
    assert names[-2:] == ["worst of 2 by accuracy", "worst of 2 by displacement"]
    for _, truth in pairs:
        assert truth.harm is not None
        assert set(truth.harm.hostile.accuracy) == {"unseen domain", "source domains"}
        assert truth.harm.displacement["global model"] > 0


def harm(before: float, after: float | None, *, moved: float = 0.0, finite: bool = True) -> Harm:
    hostile = Outcome(ended="refused") if after is None else Outcome(accuracy={"a": after}, finite=finite)
    return Harm(honest=Outcome(accuracy={"a": before}), hostile=hostile, displacement={"m": moved})


def test_the_worst_has_the_largest_mean_harm_and_a_refused_forgery_is_never_it():
    one, two, refused = Scaled(kind=STYLE, factor=2.0), Scaled(kind=STYLE, factor=3.0), Scaled(kind=STYLE, factor=4.0)
    seeds: list[Harms] = [
        {one: [harm(0.9, 0.4, moved=0.1)], two: [harm(0.9, 0.7, moved=9.0)], refused: [harm(0.9, None)]},
        {one: [harm(0.9, 0.8, moved=0.1)], two: [harm(0.9, 0.7, moved=9.0)], refused: [harm(0.9, 0.0, moved=99.0)]},
    ]

    assert worst_by(seeds, accuracy_lost) == one
    assert worst_by(seeds, displaced) == two
    assert displaced(harm(0.9, 0.1, finite=False)) == float("inf")


def test_norms_are_those_of_a_models_change_and_of_a_style_itself():
    received, changed = (
        ModelState(state={"w": torch.tensor([1.0, 1.0])}),
        ModelState(state={"w": torch.tensor([4.0, 5.0])}),
    )
    models, styles = NormRecorder(kind="ModelState"), NormRecorder(kind=STYLE)
    for artifact, sender in ((received, SERVER), (changed, "client:0"), (style(0.0), "client:0")):
        message = Message(round=0, stage="update", sender=sender, receiver="x", artifact=artifact)
        models(message)
        styles(message)

    assert models.norms == [5.0]
    assert styles.norms == [1.0]


def test_guards_are_asked_about_styles_always_and_about_models_when_asked_or_in_full():
    facts = TargetFacts(
        artifact_kinds=frozenset({STYLE, "ImageStyles"}), clients=3, images_per_client=10, classes=2, profile="quick",
        knows=frozenset({"own data"}), rounds=2,
    )  # fmt: skip

    def kinds(attack: Poisoning) -> list[tuple[str, str, bool]]:
        found = [one for one in attack.plan(facts) if one.guards]
        return [(one.kind, one.malicious_clients[0].kind, "center=krum" in one.guards) for one in found]

    exchanges = [("guarded_exchanges", STYLE, True), ("guarded_exchanges", "ImageStyles", False)]
    assert kinds(Poisoning()) == exchanges
    assert kinds(Poisoning(guarded_runs=True)) == [*exchanges, ("guarded_runs", "ModelState", True)]
    assert kinds(Poisoning(guards=())) == []
