"""The verb `attack --artifacts`: attack the user's style vectors, with or without a truth file.

There is no method to simulate: attacks read the vectors as they are, and questions that need simulations are skipped
with the reason. The adversary learns from public images (`--dataset`); without a truth file these are also the
candidates. Vectors of clients are also read alone, without images; then no encoder is loaded."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from fdgsec.data.catalog import dataset_entry, load_dataset
from fdgsec.data.domains import DomainDataset
from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.data.roles import duplicate_groups
from fdgsec.experiments.attack.attack_context import judge_of
from fdgsec.experiments.attack.attack_setting import AttackSetting
from fdgsec.experiments.attack.loop import attacks_of, corrected, run_attacks
from fdgsec.experiments.attack.release_check import difference, spectra_of_images
from fdgsec.experiments.attack.unread_releases import unread_kinds
from fdgsec.experiments.attack.written_report import write_report
from fdgsec.experiments.attack_vectors.answer_tables import guess_files
from fdgsec.experiments.attack_vectors.given_questions import GivenVectors
from fdgsec.experiments.attack_vectors.questions import VectorQuestions
from fdgsec.experiments.attack_vectors.read_arrays import vectors_of
from fdgsec.experiments.attack_vectors.read_pooling import pooling_of
from fdgsec.experiments.attack_vectors.read_recording import Recording, is_recording, read_recording
from fdgsec.experiments.attack_vectors.read_vectors import OWN, Listed, Rows, Sent, check_channels, read_truth
from fdgsec.experiments.attack_vectors.vectors_request import (
    ENCODER_NEEDED,
    NO_ENCODER,
    VectorsRequest,
    given_vectors,
)
from fdgsec.experiments.report.schema import COULD_NOT_RUN, AttackReport, AttackResult
from fdgsec.experiments.run_config import RunConfig, attack_settings, parse_assignments
from fdgsec.experiments.setup.run_inputs import artifact_rows
from fdgsec.experiments.train import dataset_document
from fdgsec.federation.artifacts import Amplitudes, ImageStyles
from fdgsec.federation.released_statistics import MeanSpectra, MeanStyles, PooledStyles, ReleasedStatistic
from fdgsec.federation.run_folder import check_replaceable, environment
from fdgsec.federation.wire import SERVER, Message, Transcript
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import encoder_named, statistics
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.threads import THREADS, limited_threads
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, Statistics
from fdgsec.threats.attack import Answers, Attack, Case, ReadsVectors, TargetFacts, Truth
from fdgsec.threats.judging.judge import Judge

MEANS_OF_STYLES = "the vectors are read as means of their images' means and stds, which fit the candidates better"
FITS = 1e-3
"""Relative distance within which the style of an image counts as equal to its row."""


@dataclass(frozen=True, kw_only=True)
class JudgeWithoutTruth(Judge):
    """A judge without ground truth."""

    def measure(
        self, answers: Answers, cases: Sequence[Case], truths: Sequence[Truth], rng: torch.Generator
    ) -> list[Measurement]:
        """Measure, and mark rows that are unavailable because there is no truth."""
        rows = super().measure(answers, cases, truths, rng)
        return [
            row if row.unavailable is None else replace(row, unavailable=f"no truth: {row.unavailable}") for row in rows
        ]


@limited_threads(THREADS)
def attack_vectors(
    request: VectorsRequest, *, data_root: Path | None, out: Path | None, progress: Progressive
) -> AttackReport:
    """Attack the vectors and return the report; with `out`, also write it, with guesses.csv and contact sheets.

    Raises UsageError, DataError, ArtifactError and MissingResourceError before anything is written."""
    started = time.monotonic()
    if out is not None:
        check_replaceable(out)
    recording = read_recording(request.artifacts) if is_recording(request.artifacts) else None
    if recording is not None:
        request = of_recording(request, recording)
    config = _settings(request)
    attacks = attacks_of(config)
    sent = vectors_of(request.artifacts, rows=request.rows)
    given = given_vectors(request, sent)
    public = _public(request, data_root=data_root, progress=progress)
    truth = _truth(request, public)
    public, notes = _apart(public, truth, alone=given is not None)
    questions = VectorQuestions.of(sent, truth, public, seed=request.seed, given=given)
    if not _read_alone(attacks, questions, config):
        _check_encoder(request, sent)
    notes += _style_match_note(sent, truth, request.encoder)
    setting = _attack_setting(request, config, questions, public)
    if isinstance(setting.knowledge.released_statistic, MeanStyles):
        notes = [
            *notes,
            "the vectors are read as means of their images' means and stds, which fit the candidates better",
        ]
    outcomes = run_attacks(attacks, setting, progress)
    transcript = _transcript(sent, request, given) if recording is None else recording.transcript
    notes += [] if recording is None else recording.notes
    results = corrected(outcomes)
    report = _report(request, config, results, transcript, dataset=_described(public, truth, given), notes=notes)
    unread = () if recording is None else unread_kinds(transcript, setting.adversary, attacks, results)
    report = replace(report, unread_kinds=unread, seconds=time.monotonic() - started)
    if out is not None:
        files = guess_files(
            outcomes, questions.names, setting.knowledge,
            clients={name: one.title or name for name, one in sent.items()},
            partners=() if given is None else given.partners,
        )  # fmt: skip
        write_report(report, out, config=config, transcript=transcript, files=files)
    return report


def of_recording(request: VectorsRequest, recording: Recording) -> VectorsRequest:
    """The request about the vectors of a recording; second releases are its own unless others are given."""
    again = recording.again if request.again is None else request.again
    rows: Rows = "clients" if next(iter(recording.first.values())).ndim == 1 else "images"
    return replace(request, artifacts=recording.first, again=again, rows=rows)


def _report(
    request: VectorsRequest,
    config: RunConfig,
    results: Sequence[AttackResult],
    transcript: Transcript,
    *,
    dataset: Mapping[str, object],
    notes: Sequence[str],
) -> AttackReport:
    artifacts, traffic = artifact_rows(transcript.rows)
    return AttackReport(
        target=OWN, method=OWN, preset="", dataset=dataset, encoder=request.encoder or NO_ENCODER, backbone=None,
        seed=request.seed, profile=config.profile, reused=False, defenses=[], guarantees=[], accuracy=None,
        attacks=results, artifacts=artifacts, model_traffic=traffic, transcript_sha256=transcript.sha256,
        environment={**environment(), "notes": "; ".join(notes)}, seconds=0.0,
    )  # fmt: skip


def _settings(request: VectorsRequest) -> RunConfig:
    """The settings of the attacks. Raises UsageError for settings of a run, which vectors do not have."""
    if request.rows not in get_args(Rows):
        raise unknown_name("rows", request.rows, get_args(Rows))
    table = isinstance(request.artifacts, Path) and request.artifacts.suffix in (".csv", ".npy")
    if table and request.encoder is None and request.rows == "images":
        raise UsageError(ENCODER_NEEDED)
    foreign = sorted(set(parse_assignments(request.assignments)) - {"attacks"})
    if foreign:
        raise UsageError(f"--set {foreign[0]}=... does not apply to vectors; only attacks.NAME.OPTION can be set.")
    if request.adversary == "client":
        raise UsageError(
            "--adversary client needs images of its own, which vectors do not have; use server or outsider."
        )
    given: Mapping[str, Any] = {
        "attacks": request.attacks, "adversary": request.adversary, "seed": request.seed,
        "dataset": request.dataset or "none", "encoder": request.encoder or NO_ENCODER,
    }  # fmt: skip
    config = attack_settings("ccst-single", given, profile=request.profile, assignments=request.assignments)
    return replace(config, method=OWN, target=OWN, options={}, per_domain=request.per_domain)


def _read_alone(attacks: Sequence[Attack], questions: VectorQuestions, config: RunConfig) -> bool:
    """Whether no attack has a use for an encoder: it reads the vectors alone, or there are no images to read."""
    if questions.given is None or questions.truth is not None:
        return False
    if questions.images is None:
        return True
    facts = _facts(questions, classes=1, config=config, knows=ADVERSARIES[config.adversary].knows)
    return all(_plans_alone(attack, facts) for attack in attacks)


def _plans_alone(attack: Attack, facts: TargetFacts) -> bool:
    try:
        return isinstance(attack, ReadsVectors) and bool(attack.plan_of_vectors(facts))
    except UsageError:
        return False


def _check_encoder(request: VectorsRequest, sent: Mapping[str, Sent]) -> None:
    """Load the encoder. Raises UsageError where none is named, or one with other channels."""
    if request.encoder is None:
        raise UsageError(ENCODER_NEEDED)
    where = str(request.artifacts) if isinstance(request.artifacts, Path) else "--artifacts"
    channels = encoder_named(request.encoder).channels
    check_channels(sent, channels=channels, encoder=request.encoder, where=where)


def _public(request: VectorsRequest, *, data_root: Path | None, progress: Progressive) -> DomainDataset | None:
    """The adversary's public images, or None. Raises UsageError for options that need public images."""
    if request.dataset is None:
        if request.unseen or request.per_domain or data_root is not None:
            raise UsageError(
                "--unseen-domain, --per-domain and --data-root need public images; name them with --dataset."
            )
        return None
    images = load_dataset(
        request.dataset, data_root=data_root, image_size=request.image_size, allow_partial=request.allow_partial,
        per_domain=_cap(request), seed=request.seed, progress=progress.update,
    )  # fmt: skip
    if request.unseen is not None and bool((images.domains == images.domain_index(request.unseen)).all()):
        raise UsageError(
            f"--unseen-domain {request.unseen} is all of {request.dataset}; leave it out or use more domains."
        )
    return images


def _cap(request: VectorsRequest) -> int | None:
    drawn = dataset_entry(str(request.dataset)).drawn
    return request.per_domain if not drawn or request.per_domain is None else min(request.per_domain, drawn)


def _truth(request: VectorsRequest, public: DomainDataset | None) -> Listed | None:
    """Read the truth with the image size and names of the public images; None without one about images.

    Raises UsageError if it does not fit them."""
    if request.truth is None or request.candidates is not None:
        return None
    if not isinstance(request.truth, Path):
        raise UsageError("a truth that is no file is about --candidates; give them too, or a file that lists images.")
    if request.rows == "clients":
        raise UsageError(
            "--truth lists images of rows, and with --rows clients no row is of an image; leave it out, or give "
            "--candidates."
        )
    path = request.truth
    size = request.image_size or (None if public is None else public.image_size[0])
    if public is None:
        return read_truth(path, image_size=size)
    found = read_truth(path, image_size=size, classes=public.class_names, domains=public.domain_names)
    apart = None if request.unseen is None else public.domain_index(request.unseen)
    if found.placed and apart in found.images.domains.tolist():
        raise UsageError(f"{path} has images of {request.unseen}, the domain of --unseen-domain; name another domain.")
    return found


def _apart(
    public: DomainDataset | None, truth: Listed | None, *, alone: bool
) -> tuple[DomainDataset | None, list[str]]:
    """Remove public images with a near-duplicate in the truth, so that no attack learns from its candidates.

    `alone` says that vectors of clients are also read without images."""
    if public is None and alone and truth is None:
        return None, ["the vectors were read alone: no images, and no encoder"]
    if public is None:
        return None, ["without --dataset, the adversary has no auxiliary images, and most attacks cannot learn"]
    if truth is None or isinstance(public.store, LazyPixels):
        return public, []
    both = torch.cat([truth.images.pixels(), public.pixels()])
    nothing = torch.zeros(len(both), dtype=torch.int64)
    together = replace(
        public, store=both, rows=torch.arange(len(both)), labels=nothing, domains=nothing, attributes={},
        ids=tuple(str(number) for number in range(len(both))),
    )  # fmt: skip
    groups = duplicate_groups(together)
    copies = torch.isin(groups[len(truth.images) :], groups[: len(truth.images)])
    left = int(copies.sum())
    note = [f"{left} public images are near-duplicates of images of the truth and were removed"] if left else []
    return public.subset(~copies), note


def _style_match_note(sent: Mapping[str, Sent], truth: Listed | None, encoder: str | None) -> list[str]:
    """A note with the number of rows that equal the style of their image, which reveals a wrong encoder."""
    rows = [(one.artifact, one.rows) for one in sent.values() if isinstance(one.artifact, ImageStyles)]
    if truth is None or encoder is None or not rows:
        return []
    fits = 0
    for artifact, places in rows:
        images = truth.images.subset(truth.behind[places])
        own = torch.cat(statistics(encoder, images).style(unbiased=True), dim=1)
        seen = torch.cat([artifact.mean, artifact.std], dim=1).double()
        fits += int(((seen - own).norm(dim=1) <= FITS * own.norm(dim=1)).sum())
    total = sum(len(places) for _, places in rows)
    size = truth.images.image_size[0]
    hint = "" if fits == total else " (others may have noise, another encoder or other preprocessing)"
    return [f"{fits} of {total} rows equal the style of their image by {encoder} at {size} px{hint}"]


def _attack_setting(
    request: VectorsRequest, config: RunConfig, questions: VectorQuestions, public: DomainDataset | None
) -> AttackSetting:
    """The attacks' shared inputs; the adversary's `knows` holds only what was given, so that attacks state reasons."""
    kept = ADVERSARIES[config.adversary]
    given = {
        "encoder": request.encoder is not None, "auxiliary": public is not None, "unseen": request.unseen is not None,
        "client sizes": questions.sized, "victim domains": questions.placed,
    }  # fmt: skip
    adversary = replace(kept, knows=tuple(name for name in kept.knows if given.get(name, True)))
    apart = None if public is None or request.unseen is None else public.domain_index(request.unseen)
    knows = adversary.knows
    auxiliary = public if public is None or apart is None else public.subset(public.domains != apart)
    names = questions.images if public is None else public
    knowledge = Knowledge(
        statistics=_statistics(request, questions), encoder=request.encoder or NO_ENCODER,
        class_names=("any",) if names is None else names.class_names,
        domain_names=("any",) if names is None else names.domain_names,
        auxiliary=auxiliary if "auxiliary" in knows else None, released_statistic=_pooling(questions),
        unseen=None if public is None or apart is None or "unseen" not in knows else public.of_domain(apart), own=None,
    )  # fmt: skip
    facts = _facts(questions, classes=len(knowledge.class_names), config=config, knows=knows)
    judge = Judge if questions.truth is not None or _owned(questions) else JudgeWithoutTruth
    return AttackSetting(
        target=OWN, seed=request.seed, adversary=adversary, knowledge=knowledge, facts=facts, questions=questions,
        vectors=questions.given is not None,
        judge=judge_of(config.profile, kind=judge),
        unlike=_unlike(questions, request.encoder),
    )  # fmt: skip


def _facts(questions: VectorQuestions, *, classes: int, config: RunConfig, knows: Collection[str]) -> TargetFacts:
    return TargetFacts(
        artifact_kinds=frozenset(one.artifact.kind for one in questions.sent.values()), clients=len(questions.sent),
        images_per_client=min(len(one.rows) for one in questions.sent.values()), classes=classes,
        profile=config.profile, knows=frozenset(knows),
        pooled=not any(isinstance(one.artifact, Amplitudes) for one in questions.sent.values()),
        candidate_statistics=questions.given is not None and questions.given.table is not None,
        public_images=0 if questions.images is None else 1,
    )  # fmt: skip


def _owned(questions: VectorQuestions) -> bool:
    """Whether it is known whose the candidates are whose statistics are given."""
    table = None if questions.given is None else questions.given.table
    return table is not None and table.owner is not None


def _pooling(questions: VectorQuestions) -> ReleasedStatistic:
    """The statistic of which clients' vectors are means: read from candidates, where these are given."""
    given = questions.given
    return PooledStyles() if given is None or given.table is None else pooling_of(given.first, given.table)


def _statistics(request: VectorsRequest, questions: VectorQuestions) -> Statistics:
    """The statistics of images: those that are given, else those of the encoder. Raises UsageError without either."""
    if questions.given is not None and questions.given.table is not None:
        return questions.given.table.statistics

    def of_images(dataset: DomainDataset) -> Moments:
        if request.encoder is None:
            raise UsageError(ENCODER_NEEDED)
        return statistics(request.encoder, dataset)

    return of_images


def _unlike(questions: VectorQuestions, encoder: str | None) -> str:
    """Why the vectors are not known to be styles or spectra of the truth's images; empty where they are equal.

    Without a truth nothing is measured, and nothing is said of protection."""
    if questions.truth is None or encoder is None:
        return ""
    for name, one in questions.sent.items():
        images = questions.truth.images.subset(questions.behind(one))
        shown = None if one.pooled else torch.arange(len(images))
        if isinstance(one.artifact, Amplitudes):
            reason = difference(name, one.artifact, MeanSpectra(), spectra_of_images(images, one.artifact), shown)
        else:
            records = PooledStyles().records(statistics(encoder, images))
            reason = difference(name, one.artifact, PooledStyles(), records, shown)
        if reason:
            return reason.removeprefix(COULD_NOT_RUN)
    return ""


def _described(public: DomainDataset | None, truth: Listed | None, given: GivenVectors | None) -> dict[str, object]:
    """The report's entry for the dataset: the public images, else those of the truth, else none."""
    images = public if public is not None else None if truth is None else truth.images
    counts = {"auxiliary": public, "truth": None if truth is None else truth.images}
    roles = {role: {"all": 0 if held is None else len(held)} for role, held in counts.items()}
    if given is not None and given.table is not None:
        roles["candidates"] = {"all": len(given.table.images)}
    if truth is not None:
        roles["truth"] = {"members": len(truth.behind), "others": len(truth.images) - len(truth.behind)}
    if images is None:
        return {"name": "none", "manifest_sha256": "", "images": 0, "domains": [], "classes": [], "roles": roles}
    return dataset_document(images, roles)


def _transcript(sent: Mapping[str, Sent], request: VectorsRequest, given: GivenVectors | None) -> Transcript:
    """All vectors as messages of one round, and second releases as those of the next."""
    transcript = Transcript()
    for name, one in sent.items():
        transcript.append(Message(round=0, stage="share", sender=name, receiver=SERVER, artifact=one.artifact))
    if given is not None and request.again is not None:
        for name, one in zip(sent, given.second, strict=True):
            transcript.append(Message(round=1, stage="share", sender=name, receiver=SERVER, artifact=one.artifact))
    return transcript
