"""`fdgsec.attack`, `attack_run` and `attack_vectors`: attacks on a target, a finished run and vectors of one's own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from fdgsec.experiments.python_api.error_words import with_keywords
from fdgsec.experiments.python_api.given_values import encoder_name, file_of, path_of

if TYPE_CHECKING:
    from torch import Tensor

    from fdgsec.experiments.attack_vectors.candidate_images import StatisticsOf
    from fdgsec.experiments.attack_vectors.read_arrays import Candidates, Owners, Vectors
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.settings import Settings
    from fdgsec.federation.defense import Defense
    from fdgsec.federation.method import Method
    from fdgsec.nn.styles.encoders import StyleEncoder
    from fdgsec.runtime.progress import ShowProgress
    from fdgsec.runtime.registry import Target
    from fdgsec.threats.attack import Attack


@with_keywords
def attack(
    target: "str | Target | Method" = "ccst-overall",
    *,
    dataset: str = "shapes",
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    preset: str | None = None,
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    defenses: "Sequence[str | Defense]" = (),
    seed: int = 0,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
    **settings: "Unpack[Settings]",
) -> "AttackReport":
    """Run (or reuse) a target, run every applicable attack, and return the report.

    Attacks and defenses are named ("private-styles:epsilon=8") or given as objects (`PrivateStyles(epsilon=8)`); a
    target may be the object of a method. `settings` are those of `fdgsec.experiments.settings.Settings` (per_domain,
    encoder, rounds, ...), `assignments` the command line's --set items ("method.k=2"). With `out`, the run directory is
    written; otherwise nothing is. `progress` "auto" shows it in notebooks and on a terminal's stderr.
    Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack.run_attacks import attack as experiment
    from fdgsec.experiments.options_in_effect import check_in_effect
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.experiments.run_config import attack_settings
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import Target, given_classes

    given = {
        "dataset": dataset,
        "attacks": attacks,
        "adversary": adversary,
        "defenses": defenses,
        "seed": seed,
        **settings,
    }
    methods = () if isinstance(target, (str, Target)) else (target,)
    with given_classes("methods", *methods), given_classes("attacks", *attacks), progress_shown(progress) as shown:
        config = attack_settings(target, given, profile=profile, preset=preset, assignments=assignments)
        check_in_effect(config, assignments)
        report = experiment(config, data_root=path_of(data_root), out=path_of(out), fresh=fresh, progress=shown)
    return AttackReport.of(report)


@with_keywords
def attack_run(
    run: str | Path,
    *,
    target: str | None = None,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    profile: str = "quick",
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    seed: int | None = None,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
) -> "AttackReport":
    """Attack what a finished run recorded, as `fdgsec attack --run`; `target` and `seed` default to the run's own.

    `report.environment["notes"]` says what could not be repeated. Raises the errors of `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, attack_recorded
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    request = RecordedRequest(
        run=Path(run), target=target, adversary=adversary, attacks=attacks, profile=profile, seed=seed,
        assignments=assignments,
    )  # fmt: skip
    with given_classes("attacks", *attacks), progress_shown(progress) as shown:
        report = attack_recorded(request, data_root=path_of(data_root), out=path_of(out), fresh=fresh, progress=shown)
    return AttackReport.of(report)


@with_keywords
def attack_vectors(
    artifacts: "str | Vectors",
    *,
    encoder: "str | StyleEncoder | Callable[[Tensor], Tensor] | None" = None,
    rows: Literal["images", "clients"] = "images",
    again: "str | Vectors | None" = None,
    candidates: "str | Candidates | None" = None,
    statistics: "StatisticsOf | None" = None,
    images_per_client: int | Sequence[int] = (),
    truth: "str | Owners | None" = None,
    dataset: str | None = None,
    target_domain: str | None = None,
    data_root: str | Path | None = None,
    per_domain: int | None = None,
    image_size: int | None = None,
    allow_partial: bool = False,
    out: str | Path | None = None,
    profile: str = "quick",
    attacks: "Sequence[str | Attack]" = (),
    adversary: str = "server",
    seed: int = 0,
    fresh: bool = False,
    assignments: Sequence[str] = (),
    progress: "ShowProgress" = "auto",
) -> "AttackReport":
    """Attack vectors of your own, as `fdgsec attack --artifacts`; `dataset` names the adversary's public images.

    Vectors are a file, an artifact, rows (R, 2C) with all channel means, then all stds, or by client name one vector
    (2C,) or the rows of its images. With `rows="clients"` each row is one client's: no encoder is needed. `again` is a
    second release of the same clients, `candidates` are the rows of images that may be behind the vectors, and `truth`
    says which (one bool for each, or the number of its vector, from 1, and 0 for none); without candidates it is a file
    that lists images. Candidates may be images, uint8 or float in [0, 1], (N, 3, H, W) or (N, H, W, 3), or a folder of
    them: `statistics` is then the function that gives for float images (N, 3, H, W) their rows (N, 2C), or `encoder`
    names what does. The folder of a recording (`record`) is attacked with its second releases. An `encoder` of your own
    is a function of float images (N, 3, H, W) in [0, 1] that gives features (N, C, h, w), or a
    `fdgsec.nn.styles.callable_encoder.CallableEncoder` of one that takes uint8.
    With `out` the attacks' answers are written beside the report; `fresh` reads no cached file. Raises the errors of
    `fdgsec.runtime.errors`."""
    from fdgsec.experiments.attack_vectors.run_vector_attacks import attack_vectors as experiment
    from fdgsec.experiments.attack_vectors.vectors_request import VectorsRequest
    from fdgsec.experiments.report.attack_report import AttackReport
    from fdgsec.runtime.checked_files import computed_anew
    from fdgsec.runtime.progress import progress_shown
    from fdgsec.runtime.registry import given_classes

    request = VectorsRequest(
        artifacts=file_of(artifacts), encoder=encoder_name(encoder), rows=rows, again=file_of(again),
        candidates=file_of(candidates), statistics=statistics, truth=file_of(truth), dataset=dataset,
        unseen=target_domain,
        images_per_client=(images_per_client,) if isinstance(images_per_client, int) else tuple(images_per_client),
        per_domain=per_domain, image_size=image_size, allow_partial=allow_partial, attacks=attacks, adversary=adversary,
        profile=profile, seed=seed, assignments=assignments,
    )  # fmt: skip
    with given_classes("attacks", *attacks), progress_shown(progress) as shown, computed_anew(fresh):
        report = experiment(request, data_root=path_of(data_root), out=path_of(out), progress=shown)
    return AttackReport.of(report)
