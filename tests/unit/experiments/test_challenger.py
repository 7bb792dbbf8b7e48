from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.simulator import blinded
from fdgsec.federation.method import Client
from fdgsec.methods.ccst import CCST
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.attack import Question, TargetFacts


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=84)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def challenger_of(roles: Roles, style: str = "overall") -> Challenger:
    method = CCST(style="single") if style == "single" else CCST()
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients,
        adversary=ADVERSARIES["server"], encoder="mini", seed=0,
    )  # fmt: skip


REQUESTS = [
    ("single", Question(kind="released", gallery=60)),
    ("single", Question(kind="as_if_released", per_class=3)),
    ("overall", Question(kind="add_one_record", count=2)),
    ("overall", Question(kind="resampled_clients", count=3, records=10)),
]


@pytest.mark.parametrize(("style", "request_"), REQUESTS, ids=[question.kind for _, question in REQUESTS])
def test_candidates_say_nothing_but_their_pixels(roles: Roles, style: str, request_: Question):
    for case, _ in challenger_of(roles, style).cases(request_):
        assert case.candidates is not None
        assert not case.candidates.labels.any()
        assert not case.candidates.domains.any()
        assert not case.candidates.attributes
        assert not any("/" in name for name in case.candidates.ids)


def test_a_client_is_not_asked_about_images_that_it_has(roles: Roles):
    """Asked about its own training images, it showed how well it copies what it holds."""
    own = roles.federation.of_domain(0)

    def asked(by: Challenger) -> dict[str, torch.Tensor]:
        cases = by.cases(Question(kind="as_if_released", per_class=3))
        found = {str(case.slice["domain"]): truth.images for case, truth in cases}
        return {name: images for name, images in found.items() if images is not None}

    server = challenger_of(roles, "single")
    mine, theirs = (asked(replace(server, adversary=ADVERSARIES[name], memo={})) for name in ("client", "server"))
    held = {image.numpy().tobytes() for image in own.pixels()}
    shown = mine[str(own.domain_names[0])]

    assert len(shown)
    assert not any(image.numpy().tobytes() in held for image in shown)
    assert any(image.numpy().tobytes() in held for image in theirs[str(own.domain_names[0])])
    for name in (str(own.domain_names[1]), str(own.domain_names[2])):
        torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=0)


def test_the_same_image_keeps_its_name_in_every_question(data: DomainDataset):
    first, again = blinded(data.subset(torch.arange(5))), blinded(data.subset(torch.arange(3, 8)))

    assert first.ids[3:] == again.ids[:2]
    assert len(set(first.ids)) == 5


@pytest.mark.parametrize(("style", "request_"), REQUESTS[:3], ids=[question.kind for _, question in REQUESTS[:3]])
def test_the_truth_names_the_image_behind_every_row(roles: Roles, style: str, request_: Question):
    for case, truth in challenger_of(roles, style).cases(request_):
        assert case.candidates is not None
        assert truth.rows is not None
        assert truth.images is not None
        assert torch.equal(case.candidates.pixels(truth.rows), truth.images)


def test_members_are_in_the_release_and_non_members_are_not(roles: Roles):
    question = Question(kind="resampled_clients", count=4, records=10)

    for case, truth in challenger_of(roles).cases(question):
        assert case.candidates is not None
        assert truth.members is not None
        assert int(truth.members.sum()) == 10  # all of them were asked about
        mean, std = case.released()
        inside = case.candidates.subset(truth.members)

        expected = statistics("mini", inside).pooled().style(unbiased=False)
        assert torch.allclose(mean, expected[0], rtol=1e-5, atol=1e-4)
        assert torch.allclose(std, expected[1], rtol=1e-5, atol=1e-4)


def test_no_candidate_is_an_auxiliary_image(roles: Roles):
    known = set(roles.auxiliary.rows.tolist())

    for style, question in REQUESTS:
        for case, _ in challenger_of(roles, style).cases(question):
            assert case.candidates is not None
            assert not known & set(case.candidates.rows.tolist())


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "domain"])
def test_halves_of_one_population_share_no_image(roles: Roles, scheme: str, monkeypatch: pytest.MonkeyPatch):
    held: list[list[set[int]]] = []
    exchange = Challenger.exchange

    def listening(self: Challenger, data: list[DomainDataset], *, name: str, turn: int = 0) -> object:
        held.append([set(images.rows.tolist()) for images in data])
        return exchange(self, data, name=name, turn=turn)

    monkeypatch.setattr(Challenger, "exchange", listening)
    challenger_of(roles).cases(Question(kind="halves", count=6, scheme=scheme))

    for first, second in zip(held[::2], held[1::2], strict=True):
        everything = [row for half in (*first, *second) for row in half]
        assert len(everything) == len(set(everything))


@pytest.mark.parametrize(("style", "request_"), REQUESTS, ids=[question.kind for _, question in REQUESTS])
@pytest.mark.parametrize(("adversary", "told"), [("server", True), ("client", False), ("outsider", False)])
def test_only_an_adversary_that_knows_client_sizes_is_told_them(
    roles: Roles, style: str, request_: Question, adversary: str, told: bool
):
    watched = replace(challenger_of(roles, style), adversary=ADVERSARIES[adversary], memo={})

    assert {case.records is not None for case, _ in watched.cases(request_)} == {told}


@pytest.mark.parametrize(("style", "request_"), REQUESTS, ids=[question.kind for _, question in REQUESTS])
@pytest.mark.parametrize(("adversary", "told"), [("server", True), ("client", False), ("outsider", False)])
def test_only_an_adversary_that_knows_victim_domains_is_told_them(
    roles: Roles, style: str, request_: Question, adversary: str, told: bool
):
    watched = replace(challenger_of(roles, style), adversary=ADVERSARIES[adversary], memo={})

    cases = [case for case, _ in watched.cases(request_)]

    assert len({case.slice["domain"] for case in cases}) >= 2
    assert all(case.domain == (case.slice["domain"] if told else None) for case in cases)


def test_a_server_is_told_that_a_client_holds_several_domains(roles: Roles):
    plain = challenger_of(roles)
    several = Client(name="client:0", data=roles.federation)

    cases = replace(plain, clients=[several, *plain.clients[1:]]).cases(Question(kind="released"))

    assert [case.domain for case, _ in cases] == ["mixed", "painting", "cartoon"]


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "domain"])
def test_halves_come_under_new_names_whose_domain_nobody_is_told(roles: Roles, scheme: str):
    cases = challenger_of(roles).cases(Question(kind="halves", count=3, records=4, scheme=scheme))

    assert cases
    assert {case.domain for case, _ in cases} == {None}


@pytest.mark.parametrize("lacking", ["client sizes", "victim domains"])
def test_inversion_parts_pooled_styles_only_where_client_sizes_and_domains_are_known(lacking: str):
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics", "StyleBank"}), clients=3, images_per_client=50, classes=7,
        profile="quick", knows=frozenset(ADVERSARIES["server"].knows),
    )  # fmt: skip

    with pytest.raises(UsageError, match=f"must know {lacking}"):
        StyleInversion().plan(replace(facts, knows=facts.knows - {lacking}))
    assert StyleInversion().plan(facts)
