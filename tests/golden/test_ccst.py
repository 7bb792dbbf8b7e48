"""CCST against slow transcriptions of its equations, and the invariants that follow from them."""

import pytest
import torch

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.artifacts import ImageStyles, StyleBank, StyleStatistics
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.ccst import CCST
from fdgsec.nn.styles.channel_statistics import adain, style_of
from fdgsec.nn.styles.image_styles import encoder_named, resized
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

CLOCK = Clock(round=0, rounds=1, participants=("client:0", "client:1", "client:2"))


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=14)


@pytest.fixture(scope="module")
def clients(data: DomainDataset) -> list[Client]:
    return [Client(name=f"client:{number}", data=data.of_domain(number)) for number in range(3)]


@pytest.fixture(scope="module")
def bank(clients: list[Client]) -> StyleBank:
    return bank_of(CCST(), clients)


def bank_of(method: CCST, clients: list[Client]) -> StyleBank:
    transcript = observe(method, clients, seed=0, name="test").transcript
    found = [message.artifact for message in transcript.messages() if isinstance(message.artifact, StyleBank)]
    return found[0]


def test_overall_style_is_equation_8(clients: list[Client]):
    method, client = CCST(), clients[0]
    stacked = encoder_named("mini").encode(as_float(client.data.pixels())).permute(1, 0, 2, 3).flatten(1).double()

    shared, _ = method.share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    style = shared["style"]
    assert isinstance(style, StyleStatistics)
    assert torch.allclose(style.mean.double(), stacked.mean(1), rtol=1e-5, atol=1e-4)
    assert torch.allclose(style.std.double(), (stacked.var(1, correction=0) + 1e-5).sqrt(), rtol=1e-5)


def test_single_styles_are_equation_6_of_ceil_n_over_32_random_images(data: DomainDataset):
    client = Client(name="client:0", data=data)  # 56 images
    method = CCST(style="single", k=1)

    shared, state = method.share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    styles = shared["styles"]
    assert isinstance(styles, ImageStyles)
    assert styles.mean.shape[0] == 2
    mean, std = style_of(encoder_named("mini").encode(as_float(data.pixels(state["shared_rows"]))))
    assert torch.allclose(styles.mean, mean, rtol=1e-4, atol=1e-3)
    assert torch.allclose(styles.std, std, rtol=1e-4, atol=1e-3)


def test_the_bank_holds_every_clients_style_attributed_and_everybody_gets_it(clients: list[Client]):
    transcript = observe(CCST(), clients, seed=0, name="test").transcript

    banks = [m for m in transcript.messages() if isinstance(m.artifact, StyleBank)]

    assert [m.receiver for m in banks] == ["client:0", "client:1", "client:2"]
    assert isinstance(banks[0].artifact, StyleBank)
    assert banks[0].artifact.owner.tolist() == [0, 1, 2]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_image_appears_k_times_with_its_label(clients: list[Client], bank: StyleBank, k: int):
    client = clients[1]

    made = CCST(k=k).stylized(client, bank, stream(0, "world", "t"))

    assert len(made) == k * len(client.data)
    assert torch.equal(made.labels, client.data.labels.repeat_interleave(k))


def test_with_k_equal_n_every_image_keeps_exactly_one_bit_identical_original(clients: list[Client], bank: StyleBank):
    client = clients[0]
    originals = client.data.pixels()

    made = CCST(k=3).stylized(client, bank, stream(0, "world", "t"))

    same = (made.images.reshape(len(originals), 3, *originals.shape[1:]) == originals.unsqueeze(1)).flatten(2).all(2)
    assert same.sum(1).tolist() == [1] * len(originals)


def test_styles_are_drawn_without_replacement(clients: list[Client], bank: StyleBank):
    made = CCST(k=3).stylized(clients[0], bank, stream(0, "world", "t"))
    triples = made.images.reshape(len(clients[0].data), 3, -1)

    assert not any(torch.equal(t[i], t[j]) for t in triples for i in range(3) for j in range(i))


def test_a_stylized_image_is_equation_5(clients: list[Client], bank: StyleBank):
    pixels = clients[0].data.pixels()[:2]
    encoder = encoder_named("mini")
    content = encoder.encode(as_float(pixels))
    expected = encoder.decode(adain(content, bank.mean[1], bank.std[1])).clamp(0, 1)

    made = CCST().generate(pixels, bank.mean[[1, 1]], bank.std[[1, 1]])

    assert float((as_float(made) - expected).abs().max()) <= 0.5 / 255 + 1e-5  # rounding to 8 bits


def test_adain_output_has_the_banks_statistics_before_the_decoder(clients: list[Client], bank: StyleBank):
    content = encoder_named("mini").encode(as_float(clients[0].data.pixels()))

    mean, std = style_of(adain(content, bank.mean[2], bank.std[2]))

    varies = style_of(content)[1] > 0.1  # a constant channel has no spread to give
    assert torch.allclose(mean, bank.mean[2].expand_as(mean), rtol=1e-4, atol=1e-2)
    assert torch.allclose(std[varies], bank.std[2].expand_as(std)[varies], rtol=1e-2)


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_number_of_clients_is_refused(clients: list[Client], k: int):
    with pytest.raises(UsageError, match=r"k must lie in 1\.\.3"):
        bank_of(CCST(k=k), clients)


def test_an_empty_client_is_refused(clients: list[Client]):
    empty = Client(name="client:3", data=clients[0].data.subset(torch.zeros(0, dtype=torch.int64)))

    with pytest.raises(UsageError, match="client:3 has no images"):
        bank_of(CCST(), [*clients, empty])


def test_released_single_mode_divides_by_hw_and_uses_one_style_per_batch(clients: list[Client]):
    method = CCST(style="single", styles_per_client="all", single_unbiased=False, style_per_batch=True, k=3)
    bank = bank_of(method, clients)
    draws = torch.arange(3).repeat(14, 1)

    rows = method._style_rows(bank, draws, stream(0, "world", "t"))

    assert all(len(set(rows[draws.flatten() == owner].tolist())) == 1 for owner in range(3))


def test_encoding_and_decoding_every_message_changes_nothing(clients: list[Client]):
    from fdgsec.federation.round_loop import RoundLoop
    from fdgsec.federation.wire import Wire

    def exchanged(recode: bool) -> str:
        wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number))
        engine = LocalEngine(members=clients, method=CCST(), seed=0, recode=recode)
        RoundLoop(method=CCST(), engine=engine, wire=wire, key=simulated_key(0), rounds=0).run(None)
        return wire.transcript.sha256

    assert exchanged(recode=True) == exchanged(recode=False)


def test_stylized_data_are_made_once(clients: list[Client], bank: StyleBank):
    method = CCST(k=2)
    first, state = method.training_set(clients[0], inbox={"bank": bank}, state={}, rng=stream(0, "world", "a"))

    again, _ = method.training_set(clients[0], inbox={}, state=state, rng=stream(0, "world", "b"))

    assert torch.equal(first.images, again.images)


def test_leaky_validation_takes_a_tenth_of_the_stylized_images(clients: list[Client], bank: StyleBank):
    method = CCST(leaky_validation=True)
    data, state = method.training_set(clients[0], inbox={"bank": bank}, state={}, rng=stream(0, "world", "a"))

    held = method.validation_set(clients[0], state)

    assert held is not None
    assert (len(data), len(held)) == (38, 4)


def test_styles_and_stylized_images_are_made_at_the_size_that_was_asked_for(clients: list[Client], bank: StyleBank):
    method, pixels = CCST(style_size=64), clients[0].data.pixels()
    enlarged = resized(pixels, 64)
    stacked = encoder_named("mini").encode(as_float(enlarged)).permute(1, 0, 2, 3).flatten(1).double()

    shared, _ = method.share(clients[0], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))
    made = method.generate(pixels[:2], bank.mean[[1, 1]], bank.std[[1, 1]])

    style = shared["style"]
    assert isinstance(style, StyleStatistics)
    assert torch.allclose(style.mean.double(), stacked.mean(1), rtol=1e-5, atol=1e-4)
    large = CCST().generate(enlarged[:2], bank.mean[[1, 1]], bank.std[[1, 1]])
    assert torch.equal(made, resized(large, 32))


def test_a_client_that_draws_itself_alone_keeps_its_originals(clients: list[Client]):
    alone = clients[:1]

    made = CCST(k=1).stylized(alone[0], bank_of(CCST(k=1), alone), stream(0, "world", "draws"))

    assert torch.equal(made.images, alone[0].data.pixels())
