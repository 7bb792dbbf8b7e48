"""A view holds what its adversary could see, and finds in it what was said last."""

from dataclasses import replace

import pytest
import torch

from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    GeneratorState,
    ImageStyles,
    InterpolationStyle,
    ModelState,
    Scores,
    StyleBank,
    StyleStatistics,
)
from fdgsec.federation.wire import Message, Transcript
from fdgsec.nn.styles.channel_statistics import moments
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, View, averaged


def style(value: float) -> StyleStatistics:
    return StyleStatistics(mean=torch.full((2,), float(value)), std=torch.full((2,), float(value + 10)))


def bank(*values: float, owner: tuple[int, ...] = (0, 1, 1)) -> StyleBank:
    rows = torch.tensor(values)[:, None].expand(-1, 2)
    return StyleBank(mean=rows, std=rows + 10, owner=torch.tensor(owner))


def said(sender: str, artifact: Artifact, *, round: int = 0, receiver: str = "server") -> Message:
    return Message(round=round, stage="share", sender=sender, receiver=receiver, artifact=artifact)


def view(*messages: Message) -> View:
    return View(messages=messages)


def seen(adversary: str) -> list[tuple[str, str]]:
    transcript = Transcript()
    for sender, receiver in (
        ("client:0", "server"), ("client:1", "server"), ("server", "client:0"), ("server", "client:1"),
        ("client:1", "client:2"),
    ):  # fmt: skip
        transcript.append(said(sender, style(1.0), receiver=receiver))
    return [(message.sender, message.receiver) for message in ADVERSARIES[adversary].view(transcript).messages]


def test_each_adversary_sees_its_own_links_and_an_outsider_all_of_them():
    uploads, downloads = (
        [("client:0", "server"), ("client:1", "server")],
        [("server", "client:0"), ("server", "client:1")],
    )

    assert seen("server") == [*uploads, *downloads]
    assert seen("client") == [("client:0", "server"), ("server", "client:0")]
    assert seen("outsider") == [*uploads, *downloads, ("client:1", "client:2")]


def test_what_adversaries_know_beside_their_view():
    """Sizes and domains are the server's, own images a client's; the transform and the encoder are public."""
    assert {name: "client sizes" in one.knows for name, one in ADVERSARIES.items()} == {
        "server": True, "client": False, "outsider": False,
    }  # fmt: skip
    assert [name for name, one in ADVERSARIES.items() if "own data" in one.knows] == ["client"]
    assert [name for name, one in ADVERSARIES.items() if "auxiliary" in one.knows] == ["server"]
    assert all({"encoder", "transform", "class names", "unseen"} <= set(one.knows) for one in ADVERSARIES.values())


@pytest.mark.parametrize("kind", [StyleStatistics, InterpolationStyle])
def test_a_victims_own_pooled_style_is_one_row(kind: type[StyleStatistics] | type[InterpolationStyle]):
    sent = kind(mean=torch.tensor([1.0, 2.0]), std=torch.tensor([3.0, 4.0]))

    found = view(said("client:2", style(9.0)), said("client:1", sent)).styles("client:1")

    assert found is not None
    assert [each.tolist() for each in found] == [[[1.0, 2.0]], [[3.0, 4.0]]]


def test_a_victims_own_rows_are_all_of_them():
    rows = ImageStyles(mean=torch.tensor([[1.0], [2.0]]), std=torch.tensor([[3.0], [4.0]]))

    found = view(said("client:1", rows)).styles("client:1")

    assert found is not None
    assert [each.tolist() for each in found] == [[[1.0], [2.0]], [[3.0], [4.0]]]


def test_a_bank_shows_the_rows_of_its_owner_alone_of_everybody_and_of_nobody_else():
    seen = view(said("server", bank(5.0, 6.0, 7.0), receiver="client:0"))

    first, second = seen.styles("client:0"), seen.styles("client:1")

    assert first is not None
    assert second is not None
    assert (first[0].tolist(), first[1].tolist()) == ([[5.0, 5.0]], [[15.0, 15.0]])
    assert (second[0].tolist(), second[1].tolist()) == ([[6.0, 6.0], [7.0, 7.0]], [[16.0, 16.0], [17.0, 17.0]])
    assert seen.styles("client:2") is None
    assert view().styles("client:0") is None


def test_the_last_round_counts_and_within_a_round_what_was_said_first():
    late = view(
        said("client:1", style(1.0)), said("client:1", style(2.0), round=2), said("client:1", style(3.0), round=1)
    )
    same = view(said("client:1", style(1.0)), said("server", bank(5.0, 6.0, 7.0)))

    assert float(late.styles("client:1")[0].max()) == 2.0  # type: ignore[index]
    assert float(same.styles("client:1")[0].max()) == 1.0  # type: ignore[index]
    assert late.artifact("client:1") is late.messages[1].artifact
    assert late.sent("client:1", StyleStatistics) is late.messages[1].artifact
    assert late.latest(StyleStatistics) is late.messages[1].artifact


def test_a_victims_artifact_is_neither_a_model_nor_numbers_nor_anothers():
    model, numbers = ModelState(state={"w": torch.ones(1)}), Scores(values=torch.ones(1))
    seen = view(
        said("client:2", style(9.0), round=3), said("client:1", model, round=2), said("client:1", numbers, round=2),
        said("client:1", style(1.0)),
    )  # fmt: skip

    assert seen.artifact("client:1") is seen.messages[3].artifact
    assert view(said("client:1", model), said("client:1", numbers)).artifact("client:1") is None
    assert seen.artifact("client:7") is None


def test_spectra_are_found_in_a_bank_where_their_owner_sent_none():
    spectra = Amplitudes(values=torch.arange(24.0).reshape(3, 1, 4, 2), owner=torch.tensor([2, 5, 2]))

    seen = view(said("server", spectra, receiver="client:0"))

    found, other = seen.artifact("client:2"), seen.artifact("client:5")
    assert isinstance(found, Amplitudes)
    assert isinstance(other, Amplitudes)
    assert torch.equal(found.values, spectra.values[[0, 2]])
    assert found.owner.tolist() == [2, 2]
    assert torch.equal(other.values, spectra.values[[1]])
    assert seen.artifact("client:3") is None


def test_a_model_is_no_generator_for_the_one_who_asks_what_was_sent():
    model, generator = (kind(state={"w": torch.ones(1)}) for kind in (ModelState, GeneratorState))
    seen = view(said("client:1", generator), said("client:1", model, round=-1), said("server", model, round=4))

    assert seen.sent("client:1", ModelState) is model
    assert seen.sent("client:1", GeneratorState) is generator
    assert seen.sent("client:2", ModelState) is None
    assert seen.latest(ModelState) is model
    assert view(said("client:1", generator)).latest(ModelState) is generator  # a generator is a state, too
    assert seen.latest(Scores) is None


def test_public_images_are_auxiliary_ones_else_ones_own_else_refused():
    images = shapes(image_size=16, per_domain=4)
    auxiliary, own = images.of_domain(0), images.of_domain(1)

    def knowing(auxiliary: object, own: object) -> Knowledge:
        return Knowledge(
            statistics=lambda dataset: moments(torch.ones(1, 3, 2, 2)), encoder="pixels", class_names=(), domain_names=(),
            auxiliary=auxiliary, unseen=None, own=own,  # type: ignore[arg-type]
        )  # fmt: skip

    assert knowing(auxiliary, own).public_images() is auxiliary
    assert knowing(None, own).public_images() is own
    with pytest.raises(UsageError, match="needs auxiliary images"):
        knowing(None, None).public_images()
    assert knowing(None, own).keeps_moments is False


def test_several_uploads_of_one_kind_in_one_stage_are_averaged():
    first, second = said("client:1", style(1.0), round=1), said("client:1", style(2.0), round=1)
    elsewhere = (
        said("client:2", style(50.0), round=1), said("client:1", style(60.0)),
        replace(said("client:1", style(70.0), round=1), stage="update"),
        said("client:1", style(80.0), round=1, receiver="client:3"),
    )  # fmt: skip
    seen = view(first, second, *elsewhere)

    found, artifact = seen.styles("client:1"), seen.artifact("client:1")

    assert found is not None
    assert [each.tolist() for each in found] == [[[1.5, 1.5]], [[11.5, 11.5]]]
    assert isinstance(artifact, StyleStatistics)
    assert artifact.mean.tolist() == [1.5, 1.5]
    assert artifact.mean.dtype == torch.float32


def test_uploads_of_other_kinds_or_shapes_are_not_averaged():
    rows = ImageStyles(mean=torch.full((3, 2), 9.0), std=torch.full((3, 2), 9.0))
    fewer = ImageStyles(mean=torch.full((2, 2), 5.0), std=torch.full((2, 2), 5.0))
    seen = view(said("client:1", rows), said("client:1", fewer), said("client:1", style(1.0)))

    found = seen.styles("client:1")

    assert found is not None
    assert found[0].tolist() == [[9.0, 9.0]] * 3


def test_a_mean_of_spectra_keeps_the_owners_of_the_first():
    one, two = (
        Amplitudes(values=torch.full((2, 3, 4, 3), float(value)), owner=torch.tensor([1, 1])) for value in (1.0, 4.0)
    )

    mean = averaged([one, two])

    assert mean.values.unique().tolist() == [2.5]
    assert mean.owner.tolist() == [1, 1]
    assert averaged([one]) is one
