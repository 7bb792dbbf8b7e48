"""`fdgsec audit` of the noise itself: repetitions, relations between releases, numbers without noise, and divisors."""

import json
import math
from pathlib import Path

import pytest
import torch

from fdgsec.cli.app import main
from fdgsec.experiments.audit.neighboring_clients import Pilot
from fdgsec.experiments.audit.noise_checks import NoiseChecks, compared, seeds
from fdgsec.runtime.registry import DEFENSES
from tests.support.deciding_images import UNDOING

OPTIONS = ["--per-domain", "20", "--image-size", "32", "--encoder", "pixels", "--norm", "group"]
AGAIN = "noise comes again"
BOUND = "bounds lie above the claim"
SHAPE = "noise is not Gaussian, as its cost says"
THIN = "noise leaves directions out"
MOVES = "one image or client moves a release further than its cost allows"
SIZE = "the size of the noise tells how many records there are"
FAULTS = [
    ("StylesFromA12BitSeed", "ccst-overall", "private-styles:epsilon=4", "--runs 20 --distinct-releases 512", AGAIN),
    ("StylesWithOneNoise", "ccst-overall", "private-styles:epsilon=4", "--runs 20 --distinct-releases 2", AGAIN),
    ("StylesWithOneNoisePerRun", "fedalign", "private-styles:epsilon=4", "--runs 20 --rounds 2", AGAIN),
    ("StylesAndModelsWithOneNoise", "ccst-overall", "private-styles:epsilon=4", "--runs 20 --rounds 1", AGAIN),
    ("StylesWithOneNumberOfNoise", "ccst-overall", "private-styles:epsilon=4", "--runs 20", AGAIN),
    ("StylesWithOneNumberOfNoise", "stablefdg", "private-styles:epsilon=4", "--runs 20 --backbone tiny", AGAIN),
    ("StylesWithOneNoiseForMeansAndSquares", "ccst-overall", "private-styles:epsilon=4", "--runs 20", AGAIN),
    (
        "RowsWithOneNoise",
        "ccst-single",
        "private-styles:epsilon=4",
        "--runs 20 --set method.styles_per_client=8",
        AGAIN,
    ),
    ("RowsWithOneNoise", "fedalign", "private-styles:epsilon=4", "--runs 20 --set method.upload_ratio=0.5", AGAIN),
    ("ModelsWithOneNoisePerTensor", "fedavg", "dp-fedavg:epsilon=2", "--runs 4 --rounds 1 --backbone tiny", AGAIN),
    ("ModelsWithNoiseWhereTheyChanged", "fedavg", "dp-fedavg:epsilon=2", "--runs 48 --rounds 1", BOUND),
    ("ModelsWithNoiseOnAFifth", "fedavg", "dp-fedavg:epsilon=2", "--runs 60 --rounds 1", BOUND),
    ("DPSGDWithAPrivateDivisor", "fedavg", "dp-sgd:epsilon=2", "--canaries 64 --guesses 8", SIZE),
    ("DPSGDAmongContributors", "fedavg", "dp-sgd:epsilon=2", "--canaries 64 --guesses 8", SIZE),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ("StylesWithOneQuietNumber", BOUND), ("StylesWithSpikyNoise", SHAPE), ("StylesThatMayGoWithoutNoise", SHAPE),
        ("StylesWithOneNoiseForAllClients", AGAIN),
    ],
)  # fmt: skip
@pytest.mark.medium
def test_noise_that_one_direction_does_not_show_is_found(
    broken: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On 512 numbers: of the six of pixels, most are cut."""
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]
    options = ["--per-domain", "20", "--image-size", "32", "--runs", "60", "--distinct-releases", "0"]

    code = main(
        ["audit", "--target", "ccst-overall", "--defense", "private-styles:epsilon=4", "--out", str(tmp_path), *options]
    )

    found = json.loads((tmp_path / "audit.json").read_text())
    assert code == 1
    assert {fault} <= set(found["faults"]) <= {fault, MOVES}  # one image moves a number with little noise far


def audit(out: Path, target: str, defense: str, options: str, *, seed: int = 0) -> dict[str, object]:
    """The document, with the exit code."""
    compare = [] if "--distinct-releases" in options else ["--distinct-releases", "0"]
    code = main(
        ["audit", "--target", target, "--defense", defense, "--out", str(out), "--seed", str(seed), *OPTIONS, *compare,
         *options.split()]
    )  # fmt: skip
    found: dict[str, object] = json.loads((out / "audit.json").read_text())
    return {**found, "code": code}


EVERY_DAY = [fault for fault in FAULTS if fault[0] != "StylesAndModelsWithOneNoise"]
"""Without one that draws the noise of a hundred million numbers."""


@pytest.mark.parametrize(
    ("broken", "target", "defense", "options", "fault"),
    [pytest.param(*fault, marks=() if fault in EVERY_DAY else pytest.mark.nightly) for fault in FAULTS],
)
@pytest.mark.medium
def test_a_planted_fault_is_found(
    broken: str, target: str, defense: str, options: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, defense.partition(":")[0], f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    found = audit(tmp_path, target, defense, options)

    assert found["code"] == 1
    assert fault in str(found["faults"])


@pytest.mark.parametrize("broken", ["StylesWithoutNoiseInOneDirection", ""])
@pytest.mark.medium
def test_a_single_direction_without_noise_is_found(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every number has its noise, and every two have unrelated noise but for one part in 250."""
    if broken:
        monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]
    options = ["--per-domain", "20", "--image-size", "32", "--runs", "60", "--distinct-releases", "1536"]

    main(["audit", "--target", "ccst-overall", "--images", "12", "--out", str(tmp_path), *options])

    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["images"] == 12
    assert [fault for fault in found["faults"] if not broken or fault != MOVES] == ([BOUND] if broken else [])
    assert ("the direction with the least noise" in found["canary"]) == bool(broken)


@pytest.mark.medium
def test_noise_that_is_projected_with_the_mean_that_it_hides_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesInAPublicSubspace")  # type: ignore[arg-type]
    options = ["--per-domain", "20", "--image-size", "32", "--runs", "60", "--distinct-releases", "1536"]

    assert main(["audit", "--target", "ccst-overall", "--images", "12", "--out", str(tmp_path), *options]) == 0

    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["faults"] == []
    assert "some direction of share/style of round 0 has less noise than its numbers, and a canary" in found["noise"]


@pytest.mark.medium
@pytest.mark.parametrize("broken", ["StylesClippedAtTheirMedian", "StylesWithNoiseOfTheirOwnSpread"])
def test_noise_that_depends_on_the_records_is_found(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    found = audit(
        tmp_path, "ccst-overall", "private-styles:epsilon=4", "--runs 20 --distinct-releases 0 --encoder mini"
    )

    assert found["code"] == 1
    assert "noise depends on the records that it hides" in str(found["faults"])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("broken", "target"),
    [
        ("broken_defenses:StylesClippedAboutTheirMedian", "ccst-overall"),
        ("broken_defenses:StylesOfTheMostFrequentClass", "stablefdg"),
        *((f"deciding_images:{broken.__name__}", "ccst-overall") for broken in UNDOING),
        ("deciding_images:StylesClippedAboutTheirQuartile", "stablefdg"),
        ("misstated_noise:StylesWithRoundedNoise", "ccst-overall"),
        ("misstated_noise:StylesWithLaplaceNoiseForL2", "stablefdg"),
    ],
)
def test_a_release_that_one_deciding_image_moves_is_found(
    broken: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between clients of which one had another image, releases were 3.1 to 9.6 deviations apart, or told apart for
    certain, where .92 are allowed (tests/conformance/test_defenses.py); along the canary's direction they were bounded by 0 to 1.3 of a stated epsilon of
    4."""
    monkeypatch.setitem(DEFENSES, "private-styles", f"tests.support.{broken}")  # type: ignore[arg-type]

    found = audit(tmp_path, target, "private-styles:epsilon=4", "--runs 20 --distinct-releases 0 --encoder mini")

    assert found["code"] == 1
    assert MOVES in str(found["faults"])


@pytest.mark.medium
@pytest.mark.parametrize(("most", "releases"), [(3.0, 0), (4.0, 4096)])
def test_noise_without_tails_is_found(most: float, releases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A number beyond the cut of a client's value was in the release of its neighbor 429 times of 1,500, for a cut at 3
    deviations; the bound on epsilon was 2.2 of a stated 4."""
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.misstated_noise:StylesWithCutNoise")  # type: ignore[arg-type]

    found = audit(
        tmp_path, "ccst-overall", f"private-styles:epsilon=4,most={most}",
        f"--runs 20 --distinct-releases {releases} --encoder mini",
    )  # fmt: skip

    assert (found["code"], found["faults"]) == (1, [SHAPE])


@pytest.mark.slow
def test_a_clip_of_each_tensor_by_itself_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "dp-fedavg", "tests.support.broken_defenses:ModelsClippedTensorByTensor")  # type: ignore[arg-type]

    found = audit(tmp_path, "fedavg", "dp-fedavg:epsilon=2", "--runs 250 --rounds 1 --backbone tiny")

    assert BOUND in str(found["faults"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "defense", "options"),
    [
        ("fedalign", "private-styles:epsilon=4", "--runs 20 --rounds 2 --distinct-releases 512"),
        ("feddag-dp", "private-scores:epsilon=4", "--runs 20 --rounds 2 --distinct-releases 512"),
        ("fedavg", "dp-fedavg:epsilon=2", "--runs 4 --rounds 2 --distinct-releases 512"),
        ("fedavg", "dp-sgd:epsilon=2", "--canaries 64 --guesses 8 --distinct-releases 64"),
    ],
)
def test_sound_noise_passes(
    target: str, defense: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = audit(tmp_path, target, defense, options)

    releases = options.split()[-1]
    assert (found["code"], found["faults"], found["seeding"]) == (0, [], False)
    assert found["distinct_releases"] == int(releases)
    assert f"no two of {releases} releases alike: more than 2^" in " ".join(capsys.readouterr().out.split())


def test_a_seed_of_32_bits_is_hinted_at_where_too_few_releases_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesFromA32BitSeed")  # type: ignore[arg-type]

    found = audit(tmp_path, "ccst-overall", "private-styles:epsilon=4", "--runs 20 --distinct-releases 64")

    assert (found["code"], found["seeding"]) == (0, True)
    assert "manual_seed, which keeps 32 bits" in " ".join(capsys.readouterr().out.split())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_seed_of_32_bits_is_found_among_2_to_the_18_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFENSES, "private-styles", "tests.support.broken_defenses:StylesFromA32BitSeed")  # type: ignore[arg-type]

    found = audit(tmp_path, "ccst-overall", "private-styles:epsilon=4", f"--runs 20 --distinct-releases {2**18}")

    assert (found["code"], found["repeated_noise"], found["exceeded"]) == (1, True, False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("broken", "target", "defense", "options", "fault"), FAULTS)
def test_a_planted_fault_is_found_every_time(
    broken: str, target: str, defense: str, options: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(DEFENSES, defense.partition(":")[0], f"tests.support.broken_defenses:{broken}")  # type: ignore[arg-type]

    found = [audit(tmp_path / str(seed), target, defense, options, seed=seed) for seed in range(1, 6)]

    assert [one["code"] for one in found] == [1] * 5


def test_the_number_of_excluded_noise_vectors_is_that_of_the_birthday_bound():
    few, many = NoiseChecks(releases=2**15), NoiseChecks(releases=2**18, confidence=0.95)

    assert few.states_bits == pytest.approx(30 - math.log2(2 * math.log(20)), abs=1e-4)
    assert many.states_bits == pytest.approx(33.417, abs=1e-3)
    assert NoiseChecks(releases=9, alike=(1, 8)).states_bits is None
    assert NoiseChecks().states_bits is None


def test_releases_are_compared_up_to_the_first_repetition():
    drawn = iter([torch.tensor([value]) for value in (1.0, 2.0, 3.0, 2.0)])

    found = compared(NoiseChecks(), (*drawn, torch.tensor([1.0])))

    assert (found.releases, found.alike, found.repeated) == (4, (1, 3), True)
    assert "releases 1 and 3 of the same records are alike" in found.line()


def test_a_seed_within_a_release_is_seen_and_one_before_it_is_not():
    ready: list[torch.Generator] = []

    def once() -> None:
        if not ready:
            ready.append(torch.Generator().manual_seed(1))
        torch.randn(3, generator=ready[0])

    assert seeds(lambda: torch.randn(3, generator=torch.Generator().manual_seed(2)))
    assert not seeds(once)


def test_values_that_recur_in_one_world_only_count_for_it():
    absent = torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 2.0]])
    present = torch.tensor([[3.0, 5.0, 4.0], [3.5, 5.0, 6.0]])

    pilot = Pilot.of(absent, present)

    exact = [pilot.scores(release)[0] for release in (*absent, *present)]
    assert exact == [-1.0, -1.0, 0.0, 0.0]  # 5 recurs in both, 0 without the canary alone
