"""CCST with amplitude spectra as styles (appendix E): what is shared, and what becomes of an image."""

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.artifacts import Amplitudes, StyleBank
from fdgsec.federation.method import SHARED_ROWS, Client, Clock
from fdgsec.methods.ccst import CCST
from fdgsec.nn.styles.amplitude_spectra import amplitudes, exchange_amplitudes
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import federated, four_clients

CLOCK = Clock(round=0, rounds=1, participants=("client:0",))
OVERALL = CCST(representation="amplitude", k=4)
SINGLE = CCST(representation="amplitude", style="single", styles_per_client=3, k=4)


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def bank_of(method: CCST, members: list[Client]) -> Amplitudes:
    messages = observe(method, members, seed=0, name="test").transcript.messages()
    bank = next(message.artifact for message in messages if message.stage == "combine")
    assert isinstance(bank, Amplitudes)
    return bank


def test_the_overall_amplitude_is_the_mean_over_all_images(members: list[Client]):
    client = members[1]

    shared, state = OVERALL.share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    sent = shared["style"]
    assert isinstance(sent, Amplitudes)
    mean = sum(amplitudes(as_float(image.unsqueeze(0)).double())[0] for image in client.data.pixels()) / len(
        client.data
    )
    assert torch.allclose(sent.values[0].double(), torch.as_tensor(mean), rtol=1e-6, atol=1e-6)
    assert sent.owner.tolist() == [1]
    assert SHARED_ROWS not in state


def test_single_amplitudes_are_those_of_the_rows_that_are_remembered(members: list[Client]):
    shared, state = SINGLE.share(members[0], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    sent = shared["styles"]
    assert isinstance(sent, Amplitudes)
    assert len(state[SHARED_ROWS]) == 3
    originals = as_float(members[0].data.pixels(state[SHARED_ROWS])).double()
    assert torch.allclose(sent.values.double(), amplitudes(originals), rtol=1e-6, atol=1e-6)


def test_the_bank_is_every_clients_spectra_attributed(members: list[Client]):
    assert bank_of(OVERALL, members).owner.tolist() == [0, 1, 2, 3]
    assert bank_of(SINGLE, members).owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_foreign_draw_exchanges_low_amplitudes_and_the_own_keeps_the_original(members: list[Client]):
    client, bank = members[0], bank_of(OVERALL, members)
    originals = client.data.pixels()

    made = OVERALL.stylized(client, bank, stream(0, "world", "t"))

    versions = made.images.reshape(len(originals), 4, *originals.shape[1:])
    for image, found in zip(originals, versions, strict=True):
        expected = [image]
        for row in bank.values[1:]:  # b = floor(.1 * 32) = 3, nothing of the own amplitude stays
            content = as_float(image.unsqueeze(0))
            expected.append(
                (exchange_amplitudes(content, row.unsqueeze(0), b=3)[0].clamp(0, 1) * 255).round().to(torch.uint8)
            )
        assert len(found) == len(expected)
        assert all(any(torch.equal(version, e) for version in found) for e in expected)


def test_an_own_share_of_one_leaves_every_image_as_it_is(members: list[Client]):
    method = CCST(representation="amplitude", k=4, amplitude_ratio=1.0)

    made = method.stylized(members[0], bank_of(method, members), stream(0, "world", "t"))

    assert torch.equal(made.images, members[0].data.pixels().repeat_interleave(4, dim=0))


def test_spectra_are_taken_and_exchanged_at_the_size_that_was_asked_for(members: list[Client]):
    method = CCST(representation="amplitude", style_size=64, k=4)
    pixels, bank = members[0].data.pixels()[:2], bank_of(method, members)

    made = method.exchange(pixels, bank.values[[1, 1]])

    assert bank.values.shape == (4, 3, 64, 33)
    large = exchange_amplitudes(as_float(resized(pixels, 64)), bank.values[[1, 1]], b=6)
    assert torch.equal(made, resized((large.clamp(0, 1) * 255).round().to(torch.uint8), 32))


@pytest.mark.parametrize("method", [OVERALL, SINGLE], ids=["overall", "single"])
@pytest.mark.medium
def test_two_rounds_share_spectra_once_and_run_alike_through_bytes(method: CCST, members: list[Client]):
    made, again = (federated(method, members, recode=recode) for recode in (False, True))

    row, rows = 3 * 32 * 17 * 4 + 8, 1 if method.style == "overall" else 3
    sent = [
        (m.round, m.stage, m.artifact.bytes) for m in made.transcript.messages() if isinstance(m.artifact, Amplitudes)
    ]
    assert sent == [(0, "share", rows * row)] * 4 + [(0, "combine", 4 * rows * row)] * 4
    assert again.transcript.sha256 == made.transcript.sha256


def test_a_bank_of_the_other_representation_is_refused(members: list[Client]):
    styles = StyleBank(mean=torch.zeros(1, 8), std=torch.zeros(1, 8), owner=torch.tensor([0]))

    with pytest.raises(TypeError, match="client:0 should hold Amplitudes in 'bank'; it holds StyleBank"):
        OVERALL.training_set(members[0], inbox={"bank": styles}, state={}, rng=stream(0, "world", "t"))


def test_releasing_all_shares_every_images_spectrum(members: list[Client]):
    everything = SINGLE.releasing_all()
    assert everything is not None

    observed = observe(everything, members, seed=0, name="all")

    assert [len(observed.states[c.name][SHARED_ROWS]) for c in members] == [len(c.data) for c in members]
    assert OVERALL.releasing_all() is None
