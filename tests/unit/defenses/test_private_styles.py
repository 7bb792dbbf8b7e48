"""private-styles on single messages: what leaves instead, what it costs, and what is refused."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.defenses import private_styles
from fdgsec.defenses.k_anonymous import KAnonymous
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, Scores, StyleDistribution, StyleStatistics
from fdgsec.federation.defense import Outgoing, Sender
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import NUMBERS, SHARED_ROWS, Client, Clock, Inbox, State
from fdgsec.federation.public_clip_bounds import (
    Frame,
    Reference,
    color_spaces,
    pooled_frame,
    public_images,
    row_region,
    rows_of,
    with_rows,
)
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc import FISC
from fdgsec.privacy.accounting import Relation
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.private_styles_setting import (
    PixelStatistic,
    cost,
    largest_change,
    network_input,
    outgoing,
    protected,
)
from tests.support.toy_federation import PixelStyles

OVERALL = CCST(encoder="pixels")
SINGLE = CCST(encoder="pixels", style="single", styles_per_client=4)
MULTIPLIER = noise_multiplier(8.0, 1e-5)


@dataclass(frozen=True, kw_only=True)
class ScaledRows(FedAvg):
    """Rows of 3 channels that are no color statistics: four times those of the images' first pixels."""

    twice: bool = False

    @property
    def shares(self):  # type: ignore[no-untyped-def]
        return "once"

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        pixels = 4 * client.data.pixels().float().flatten(2)[:, :, :8]
        rows = torch.zeros(len(pixels), dtype=torch.int64) if self.twice else torch.arange(len(pixels))
        return {"rows": ImageStyles(mean=pixels.mean(2), std=pixels.std(2))}, {SHARED_ROWS: rows}


def no_noise(**options: object) -> PrivateStyles:
    return replace(PrivateStyles(epsilon=math.inf, clip=1e9), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", ["public", "raw"])
@pytest.mark.parametrize("center", ["public", "zero"])
@pytest.mark.parametrize("method", [OVERALL, SINGLE, PixelStyles(), FedAlign(upload_ratio=1.0)])
def test_without_noise_and_behind_a_huge_clip_a_release_stays_as_it_is(method: FedAvg, center: str, scale: str):
    message = outgoing(method)

    found = protected(no_noise(center=center, scale=scale), message)

    tolerance = (
        1e-2 if isinstance(method, PixelStyles) else 1e-5
    )  # PixelStyles divides by HW n - 1, the pooled std by HW n
    assert largest_change(found.artifact, message.artifact) < tolerance
    assert found.uses is None  # nothing is promised without noise


def test_every_image_is_clipped_before_the_mean_is_taken():
    message = outgoing(OVERALL)

    near, nearer = (protected(PrivateStyles(epsilon=math.inf, clip=c), message).artifact for c in (1e-3, 1e-6))

    center = protected(PrivateStyles(epsilon=math.inf, clip=1e-9), message).artifact
    assert largest_change(near, center) > 100 * largest_change(nearer, center) > 0
    assert largest_change(center, message.artifact) > 0.1


def test_the_center_is_that_of_public_images_whatever_the_client_holds():
    few, many = (outgoing(OVERALL, count=count) for count in (3, 30))

    first, second = (protected(PrivateStyles(epsilon=math.inf, clip=1e-9), m).artifact for m in (few, many))

    assert largest_change(first, second) < 1e-6
    assert set(public_images((32, 32)).ids).isdisjoint(few.sender.client.data.ids)


@pytest.mark.parametrize(
    ("neighbors", "known"),
    [
        ("replace-one", {"replace-one": 2 / 12, "zero-out": 1 / 12}),
        ("zero-out", {"zero-out": 1 / 12}),
        ("add-remove", {"add-remove": math.sqrt(1.5), "zero-out": 1.0}),
    ],
)
def test_a_mean_pays_for_the_relations_in_which_epsilon_holds(neighbors: str, known: dict[str, float]):
    defense = replace(PrivateStyles(clip=5.0), neighbors=neighbors)  # type: ignore[arg-type]

    (use,) = cost(protected(defense, outgoing(OVERALL, count=12)))

    assert dict(use.sensitivity) == pytest.approx({relation: 5 * value for relation, value in known.items()})
    assert use.noise == pytest.approx(MULTIPLIER * 5 * known[neighbors])
    assert use.unit == "record"


@pytest.mark.parametrize(
    ("neighbors", "promised"),
    [
        ("replace-one", {"replace-one", "zero-out"}),
        ("zero-out", {"zero-out"}),
        ("add-remove", {"add-remove"}),  # the number of images is private in this one alone
    ],
)
def test_a_plan_promises_the_asked_relation_and_what_follows_from_it(neighbors: Relation, promised: set[str]):
    planned = PrivateStyles(neighbors=neighbors).promise

    assert planned is not None
    assert planned.relations == promised
    assert PrivateStyles(neighbors=neighbors, epsilon=math.inf).promise is None


def test_assumptions_name_what_the_unit_leaves_public():
    record, client, private = (
        " ".join(defense.assumptions)
        for defense in (PrivateStyles(), PrivateStyles(unit="client"), PrivateStyles(neighbors="add-remove"))
    )

    assert "how many images a client has is public" in record
    assert "an image of a person is one record" in record
    assert "how many rows a client sends is public" in client
    assert "everything that one client sends is covered together" in client
    assert "is public" not in private
    assert "the number of images is private here" in private


def test_the_sum_of_one_image_is_divided_by_one():
    message = outgoing(OVERALL, count=1)

    found = protected(no_noise(neighbors="add-remove"), message)

    assert largest_change(found.artifact, message.artifact) < 1e-4


def test_public_bounds_are_made_once_for_each_source_of_statistics(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    def counted(sender: Sender, slot: str, reference: Reference) -> Frame:
        made.append(slot)
        return pooled_frame(sender, slot, reference)

    def another_run(images: DomainDataset, model: GlobalModel | None) -> PixelStatistic:
        return network_input(images, model)

    monkeypatch.setattr(private_styles, "pooled_frame", counted)
    message, defense = outgoing(OVERALL), PrivateStyles(clip=7.25)
    elsewhere = replace(message, sender=replace(message.sender, statistic_source=another_run))
    for one in (message, message, elsewhere, message):
        protected(defense, one)

    assert len(made) == 2


def test_rows_of_single_images_pay_once_for_all_and_not_one_nth():
    (use,) = cost(protected(PrivateStyles(clip=5.0), outgoing(ScaledRows())))

    assert dict(use.sensitivity) == pytest.approx({"replace-one": 10.0, "zero-out": 5.0})


@pytest.mark.parametrize("method", [FedAlign(upload_ratio=1.0), SINGLE])
def test_color_statistics_are_bounded_by_half_discs_and_not_by_the_clip(method: FedAvg):
    (use,) = cost(protected(PrivateStyles(clip=5.0), outgoing(method)))

    assert use.sensitivity["replace-one"] == pytest.approx(7.665, abs=5e-4)
    assert use.sensitivity["zero-out"] == pytest.approx(7.665 / 2, abs=5e-4)


def test_rows_of_three_channels_that_are_no_colors_are_clipped():
    message = outgoing(ScaledRows())

    region = row_region(message.sender, message.name, Reference())

    assert region not in color_spaces()
    assert type(region).__name__ == "Ball"


def grouped_and_clipped(message: Outgoing, *, first_row: float) -> torch.Tensor:
    """The coordinates of rows of which the first one lies far out, after k-anonymous, before private-styles' noise."""
    region = row_region(message.sender, message.name, Reference())
    values = rows_of(message.artifact)
    values[0, 0] = first_row
    mixed = KAnonymous(k=5).on_message(
        replace(message, artifact=with_rows(message.artifact, values)), simulated_stream(0, "groups")
    )
    assert mixed is not None
    return region.inside(rows_of(mixed.artifact))


def test_rows_that_k_anonymous_has_mixed_move_by_more_than_one_row_can_and_are_refused():
    message = outgoing(ScaledRows(), count=20)
    (use,) = cost(protected(PrivateStyles(), message))

    one, other = (grouped_and_clipped(message, first_row=value) for value in (-1e6, 1e6))

    assert float((one - other).norm()) > 2 * use.sensitivity["replace-one"]  # all five rows of its group: sqrt(5)
    with pytest.raises(
        UsageError, match="k-anonymous before it mixes a record into several rows; put k-anonymous after it"
    ):
        DefenseStack(defenses=(KAnonymous(), PrivateStyles())).check(SINGLE)
    DefenseStack(defenses=(PrivateStyles(), KAnonymous())).check(SINGLE)
    DefenseStack(defenses=(KAnonymous(), PrivateStyles(unit="client"))).check(SINGLE)


@pytest.mark.parametrize(
    "method", [OVERALL, FISC(encoder="pixels"), CCST(encoder="pixels", representation="amplitude")]
)
def test_one_clients_whole_release_is_one_value_of_diameter_two_clips(method: FedAvg):
    defense = PrivateStyles(unit="client", clip=5.0)

    found = protected(defense, outgoing(method))

    (use,) = cost(found)
    assert dict(use.sensitivity) == pytest.approx({"replace-one": 10.0, "zero-out": 5.0})
    assert use.unit == "client"


def test_a_client_that_sends_four_rows_may_change_all_four():
    (use,) = cost(protected(PrivateStyles(unit="client"), outgoing(SINGLE)))

    assert use.sensitivity["replace-one"] == pytest.approx(2 * 7.665, abs=1e-3)


def test_noise_comes_from_the_stream_that_is_handed_in():
    message, defense = outgoing(OVERALL), PrivateStyles()

    first, again, other = (protected(defense, message, draw=draw).artifact for draw in (0, 0, 1))

    assert largest_change(first, again) == 0
    assert largest_change(first, other) > 0


@pytest.mark.parametrize("epsilon", [0.01, 8.0])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("method", [OVERALL, SINGLE, PixelStyles()])
def test_however_large_the_noise_what_leaves_is_a_legal_artifact(method: FedAvg, unit: str, epsilon: float):
    message = outgoing(method)

    found = protected(replace(PrivateStyles(epsilon=epsilon), unit=unit), message)  # type: ignore[arg-type]

    assert type(found.artifact) is type(message.artifact)
    assert {name: value.shape for name, value in found.artifact.tensors().items()} == {
        name: value.shape for name, value in message.artifact.tensors().items()
    }


def test_models_and_numbers_are_none_of_its_business():
    message = outgoing(OVERALL)
    numbers = replace(message, stage="update", name=NUMBERS, artifact=Scores(values=torch.ones(2)))

    assert PrivateStyles().on_message(numbers, simulated_stream(0)) is None
    assert PrivateStyles().on_message(replace(message, stage="update"), simulated_stream(0)) is None


def test_fiscs_clustered_style_is_refused_per_record_and_not_per_client():
    with pytest.raises(UsageError, match=r"FINCH puts together.*unit=client.*local_clustering=false"):
        PrivateStyles().check(FISC())
    with pytest.raises(UsageError, match="averages sigma itself"):
        PrivateStyles().check(FISC(local_clustering=False))

    PrivateStyles().check(FISC(local_clustering=False, sigma="mixture"))
    PrivateStyles(unit="client").check(FISC())


def test_fiscs_pooled_style_without_clusters_is_a_mean():
    pooled = FISC(encoder="pixels", local_clustering=False, sigma="mixture")
    message = outgoing(pooled)

    found = protected(no_noise(), message)

    assert largest_change(found.artifact, message.artifact) < 1e-5


def test_a_release_that_is_no_mean_of_what_its_lens_reads_is_refused():
    clustered = FISC(encoder="pixels", client_partition="first")

    with pytest.raises(UsageError, match="not the mean of one statistic per image"):
        protected(PrivateStyles(), outgoing(clustered))


def test_an_image_with_two_rows_is_refused():
    with pytest.raises(UsageError, match="an image has several"):
        protected(PrivateStyles(), outgoing(ScaledRows(twice=True)))


def test_a_mean_of_whole_spectra_is_refused_per_record():
    with pytest.raises(UsageError, match="unit=client"):
        protected(PrivateStyles(), outgoing(CCST(encoder="pixels", representation="amplitude")))


def test_the_number_of_rows_tells_the_number_of_images():
    with pytest.raises(UsageError, match="their number follows"):
        protected(PrivateStyles(neighbors="add-remove"), outgoing(SINGLE))


def test_a_method_without_styles_is_refused():
    with pytest.raises(UsageError, match="sends no styles"):
        PrivateStyles().check(FedAvg())


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 1.0}, {"clip": -1.0}, {"clip": 0.0}, {"clip": 1e-320},
     {"quantile": 0.0}, {"quantile": 1.5},
     {"unit": "client", "neighbors": "add-remove"}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, object]):
    with pytest.raises(UsageError):
        replace(PrivateStyles(), **options)  # type: ignore[arg-type]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize(
    "artifact",
    [
        StyleStatistics(mean=vector(1, 2), std=vector(3, 4)),
        ImageStyles(mean=torch.rand(3, 2), std=torch.rand(3, 2)),
        StyleDistribution(mean=vector(1), std=vector(2), mean_spread=vector(3), std_spread=vector(4)),
        Amplitudes(values=torch.rand(2, 3, 4, 3), owner=torch.tensor([0, 0])),
    ],
)
def test_rows_of_an_artifact_make_it_again(artifact: Artifact):
    assert largest_change(with_rows(artifact, rows_of(artifact)), artifact) == 0
    with_rows(artifact, rows_of(artifact) - 100)  # legal


def test_rows_of_other_kinds_are_refused():
    with pytest.raises(UsageError, match="Scores"):
        rows_of(Scores(values=vector(1)))


def test_the_kind_of_message_is_looked_at_before_the_data():
    message: Outgoing = replace(outgoing(OVERALL), artifact=Scores(values=vector(1)))

    assert PrivateStyles().on_message(message, simulated_stream(0)) is None
