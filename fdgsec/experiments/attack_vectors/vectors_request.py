"""The request of `attack --artifacts`, and the vectors that it gives of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fdgsec.experiments.attack_vectors.candidate_images import StatisticsOf, are_images, candidates_by_statistics
from fdgsec.experiments.attack_vectors.given_questions import GivenVectors, second_releases, sizes_of
from fdgsec.experiments.attack_vectors.read_arrays import Candidates, Owners, Vectors, candidates_of, vectors_of
from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable
from fdgsec.experiments.attack_vectors.read_vectors import Rows, Sent
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.attack import Attack

NO_ENCODER = "none"
"""The encoder in reports on vectors that were read alone."""
ENCODER_NEEDED = (
    "--artifacts needs --encoder, the one that made the vectors (`fdgsec list encoders`), to read images; it does not "
    "with --rows clients, where each row is one client's style, and no --dataset."
)


@dataclass(frozen=True, kw_only=True)
class VectorsRequest:
    """Vectors to attack, their encoder and their truth; with `dataset` None, the adversary has no images.

    `rows` says what a row of a table is of. Vectors of clients need no encoder; `again` is a second release of theirs,
    `candidates` the statistics of images that may be behind them, in place of images (`truth` is about these then), or
    the images themselves with the function `statistics` or the encoder that makes a style of an image, and
    `images_per_client` how many images are behind each: one number for all, or one each. `unseen` names a domain of the
    dataset for attacks that learn from a domain that no client has."""

    artifacts: Vectors
    encoder: str | None = None
    rows: Rows = "images"
    again: Vectors | None = None
    candidates: Candidates | None = None
    statistics: StatisticsOf | None = None
    images_per_client: Sequence[int] = ()
    truth: Owners | None = None
    dataset: str | None = None
    unseen: str | None = None
    per_domain: int | None = None
    image_size: int | None = None
    allow_partial: bool = False
    attacks: Sequence[str | Attack] = ()
    adversary: str = "server"
    profile: str = "quick"
    seed: int = 0
    assignments: Sequence[str] = field(default_factory=tuple)


def given_vectors(request: VectorsRequest, sent: Mapping[str, Sent]) -> GivenVectors | None:
    """The vectors as those of clients; None where rows are of images.

    Raises UsageError for options that need vectors of clients, and for a single one with nothing to compare it with."""
    if request.statistics is not None and request.candidates is None:
        raise UsageError("statistics=... is a function of candidate images; give candidates too.")
    if not all(one.pooled for one in sent.values()):
        asked = {"--again": request.again, "--candidates": request.candidates,
                 "--images-per-client": request.images_per_client or None}  # fmt: skip
        for option, value in asked.items():
            if value is not None:
                raise UsageError(f"{option} is about vectors of clients; say --rows clients if each row is of one.")
        return None
    if request.rows == "clients" and len(sent) < 2 and request.candidates is None and request.dataset is None:
        raise UsageError(
            "--rows clients needs the vectors of two clients or more, to link them; for a single one give --candidates."
        )
    again = None if request.again is None else vectors_of(request.again, rows=request.rows, option="--again")
    second = second_releases(sent, again)
    if request.candidates is None:
        return GivenVectors(
            first=sent, second=second, sizes=sizes_of(request.images_per_client, None, len(sent)), seed=request.seed
        )
    if request.dataset is not None:
        raise UsageError("--candidates are read without images; leave --dataset out.")
    table = _table(request, request.candidates)
    _check_columns(sent, table)
    sizes = sizes_of(request.images_per_client, table, len(sent))
    return GivenVectors(first=sent, second=second, table=table, sizes=sizes, seed=request.seed)


def _table(request: VectorsRequest, candidates: Candidates) -> CandidateTable:
    """The candidates' statistics. Raises UsageError for a function of images where no images are given."""
    if are_images(candidates):
        return candidates_by_statistics(
            candidates, request.truth, encoder=request.encoder, function=request.statistics,
            image_size=request.image_size,
        )  # fmt: skip
    if request.statistics is not None:
        raise UsageError("statistics=... is a function of images; give images as candidates, or leave it out.")
    return candidates_of(candidates, request.truth)


def _check_columns(sent: Mapping[str, Sent], table: CandidateTable) -> None:
    """Raise UsageError for vectors and candidates with different numbers of columns."""
    first = next(iter(sent.values())).artifact.tensors()["mean"]
    if table.moments.channels != len(first):
        raise UsageError(
            f"--candidates has {2 * table.moments.channels} numbers per row, the vectors {2 * len(first)}; both must "
            "be of one encoder."
        )
