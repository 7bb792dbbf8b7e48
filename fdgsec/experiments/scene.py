"""Everything that one report's attacks share: the adversary, what it knows, and the laboratory that runs for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fdgsec.adversaries import ADVERSARIES, Adversary, Knowledge
from fdgsec.artifacts import Amplitudes
from fdgsec.config import RunConfig
from fdgsec.console import Progressive
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles
from fdgsec.defending import Shield
from fdgsec.experiments.laboratory import Laboratory
from fdgsec.experiments.observed import Observed
from fdgsec.experiments.world import World, model_of
from fdgsec.features import encoder_named, introduce, statistics
from fdgsec.federation import Client, GlobalModel, Method, SharesDistributions, TrainsByPlan
from fdgsec.metrics.extractors import INCEPTION
from fdgsec.metrics.images import PerceptualEncoder
from fdgsec.metrics.judge import Judge
from fdgsec.model_encoder import ModelEncoder
from fdgsec.readings import MeanSpectra, PooledStyles, Reading, StyleDistributions
from fdgsec.registry import TARGETS, target_named
from fdgsec.spectral_encoder import SpectralEncoder
from fdgsec.threats import TargetFacts

EXTRACTORS: Mapping[str, tuple[str, ...]] = {"quick": ("mini",), "full": (INCEPTION, "mini")}
"""The networks that generated sets are judged by, per profile: the customary one takes a second per three images here."""


@dataclass(frozen=True, kw_only=True)
class Eyes:
    """How the target's styles are looked at: by which public encoder, at which image size, as the mean of what.

    The encoder of amplitude spectra, and that of a model's early layers, is made here and not loaded."""

    encoder: str
    style_size: int | None
    reading: Reading

    @classmethod
    def of(cls, config: RunConfig, images: DomainDataset, method: Method, model: GlobalModel | None) -> "Eyes":
        """The run's encoder; for mean spectra, that of `images`; for styles of the model's own layers, these of `model`."""
        target = TARGETS.get(config.target)  # None where a training run is named by its method
        if target is not None and target.pooled and Amplitudes.kind in target.releases:
            side = config.style_size
            spectra = SpectralEncoder(images.image_size if side is None else (side, side))
            return cls(encoder=introduce(spectra), style_size=side, reading=MeanSpectra())
        if not isinstance(method, SharesDistributions) or model is None:
            return cls(encoder=config.encoder, style_size=config.style_size, reading=PooledStyles())
        return cls(
            encoder=introduce(ModelEncoder(model, stage=method.stage)),
            style_size=None,
            reading=StyleDistributions(unbiased=method.unbiased, eps=method.eps, released=method.spread == "std"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Everything that one report's attacks share."""

    config: RunConfig
    world: World
    roles: Roles
    laboratory: Laboratory
    adversary: Adversary
    knowledge: Knowledge
    facts: TargetFacts
    judge: Judge
    progress: Progressive


def scene_of(
    config: RunConfig,
    world: World,
    roles: Roles,
    method: Method,
    clients: Sequence[Client],
    observed: Observed,
    model: GlobalModel | None,
    eyes: Eyes,
    shield: Shield,
    progress: Progressive,
) -> Scene:
    """Set the scene: one adversary before one target."""
    adversary = ADVERSARIES[config.adversary]
    knows = adversary.knows
    auxiliary = roles.auxiliary.subset(roles.auxiliary.domains != world.target)
    laboratory = Laboratory(
        method=method, roles=roles, sources=world.sources, clients=clients,
        adversary=adversary, encoder=eyes.encoder, style_size=eyes.style_size, seed=config.seed, run=observed,
        model=model, reading=eyes.reading, shield=shield, rounds=config.rounds, unseen=world.unseen(),
        initial=lambda seed: model_of(replace(config, seed=seed), method, len(world.dataset.class_names)),
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=lambda dataset: statistics(eyes.encoder, dataset, size=eyes.style_size),
        encoder=eyes.encoder,
        class_names=world.dataset.class_names,
        domain_names=world.dataset.domain_names,
        auxiliary=auxiliary if "auxiliary" in knows else None,
        unseen=world.unseen() if "unseen" in knows else None,
        own=clients[0].data if "own data" in knows else None,
        reading=eyes.reading,
        simulate=laboratory.simulated,
        defended=laboratory.defended if shield.defenses and method.shares != "never" else None,
        shared=laboratory.shared if shield.defenses and method.shares != "never" else None,
        network=None if model is None else lambda state: model.with_state({**model.state.state, **state}).module(),
        plan=method.plan if isinstance(method, TrainsByPlan) else None,
        keeps_moments=isinstance(method, TrainsByPlan) and method.keep_optimiser,
    )
    facts = TargetFacts(
        artifact_kinds=target_named(config.target).releases, clients=len(clients), images_per_client=min(len(client.data) for client in clients),
        classes=len(world.dataset.class_names), profile=config.profile, knows=frozenset(knows),
        pooled=target_named(config.target).pooled, rounds=config.rounds,
    )  # fmt: skip
    perceptual = (PerceptualEncoder(encoder_named("mini")),)
    return Scene(
        config=config, world=world, roles=roles, laboratory=laboratory, adversary=adversary, knowledge=knowledge,
        facts=facts, judge=Judge(perceptual=perceptual, extractors=EXTRACTORS[config.profile]), progress=progress,
    )  # fmt: skip
