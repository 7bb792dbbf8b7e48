"""The attack context: the adversary, its knowledge, and the challenger that all attacks of a report share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from fdgsec.attacks.statistics.tracing import Whitening
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles
from fdgsec.experiments.attack.release_check import foreign_releases, whitening_of
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import FederationRun
from fdgsec.experiments.setup.run_inputs import World, attacked_method, model_of
from fdgsec.experiments.setup.style_view import StyleView
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.summed_client_cases import sums_suffice, sums_uploads
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.early_layer_encoder import ModelEncoder
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.metrics.feature_extractors import INCEPTION, LITE
from fdgsec.metrics.image_similarity import PerceptualEncoder
from fdgsec.nn.styles.image_styles import encoder_named, register_encoder, statistics
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import is_bundled
from fdgsec.threats.adversary import ADVERSARIES, Adversary, Knowledge, MakesObjective, Statistics
from fdgsec.threats.attack import TargetFacts
from fdgsec.threats.judging.judge import Judge

EXTRACTORS: tuple[str, ...] = (INCEPTION, LITE, "mini")
"""The feature extractors for sets of pictures."""
SET_LIMITS: Mapping[str, Mapping[str, int]] = {"quick": {INCEPTION: 50, LITE: 200}, "full": {}}
"""How many pictures of a set an extractor judges, per profile; Inception takes a second for three on a CPU."""
LPIPS = "lpips_alex"
"""The variant that its authors recommend for comparisons (Zhang et al. 2018)."""


def judge_of(profile: str, *, kind: type[Judge] = Judge) -> Judge:
    """The judge of a report's attacks."""
    return kind(
        perceptual=(PerceptualEncoder(encoder_named("mini")), LPIPS), extractors=EXTRACTORS,
        set_limits=SET_LIMITS[profile],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackContext:
    """Everything that one report's attacks share.

    `foreign` has the kinds of releases that are not what attacks take them for; for a plug-in's method, each simulated
    exchange may add to it. `exchanges` counts those that the adversary saw (Transcript.different_exchanges)."""

    config: RunConfig
    world: World
    roles: Roles
    challenger: Challenger
    adversary: Adversary
    knowledge: Knowledge
    facts: TargetFacts
    foreign: Mapping[str, str]
    exchanges: Mapping[str, int]
    judge: Judge
    progress: Progressive


def attack_context_of(
    config: RunConfig,
    world: World,
    roles: Roles,
    method: Method,
    clients: Sequence[Client],
    observed: FederationRun,
    model: GlobalModel | None,
    style_view: StyleView,
    defense_stack: DefenseStack,
    progress: Progressive,
) -> AttackContext:
    """Build the attack context of one adversary and one target."""
    adversary = ADVERSARIES[config.adversary]
    knows = adversary.knows
    auxiliary = roles.auxiliary.subset(roles.auxiliary.domains != world.target)
    plug_in = not is_bundled(method)

    @cache  # of all clients that are compared
    def whitening() -> Whitening | None:
        return whitening_of(auxiliary, knowledge.statistics, style_view.released_statistic)

    def check(method: Method, client: Client, clock: Clock) -> Mapping[str, str]:
        return foreign_releases(
            method, client, clock=clock, model=model, statistics=knowledge.statistics,
            released_statistic=style_view.released_statistic, whitening=whitening,
        )  # fmt: skip

    challenger = Challenger(
        method=method, roles=roles, sources=world.sources, clients=clients,
        adversary=adversary, encoder=style_view.encoder, style_size=style_view.style_size, seed=config.seed,
        run=observed, model=model, released_statistic=style_view.released_statistic, defense_stack=defense_stack,
        rounds=config.rounds, unseen=world.unseen(), check=check if plug_in else None,
        initial=lambda seed: model_of(replace(config, seed=seed), method, len(world.dataset.class_names)),
        every_round=config.keep == "models=all",
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=lambda dataset: statistics(style_view.encoder, dataset, size=style_view.style_size),
        encoder=style_view.encoder,
        class_names=world.dataset.class_names,
        domain_names=world.dataset.domain_names,
        auxiliary=auxiliary if "auxiliary" in knows else None,
        unseen=world.unseen() if "unseen" in knows else None,
        own=clients[0].data if "own data" in knows else None,
        released_statistic=style_view.released_statistic,
        weighted_statistic=method.weighted_statistic,
        simulate=challenger.simulated,
        statistics_under=_statistics_under(method, model),
        defended=challenger.defended if defense_stack.defenses and method.shares != "never" else None,
        shared=challenger.shared if defense_stack.defenses and method.shares != "never" else None,
        sharing=challenger.sharing if method.shares != "never" else None,
        network=None if model is None else lambda state: model.with_state({**model.state.state, **state}).module(),
        plan=method.client_plan,
        keeps_moments=method.keeps_moments,
        objective=objective_of(
            method, model, auxiliary if "auxiliary" in knows else clients[0].data if "own data" in knows else None
        ),
    )
    attacked = attacked_method(config)
    facts = TargetFacts(
        artifact_kinds=attacked.released_kinds, clients=len(clients),
        images_per_client=min(len(client.data) for client in clients),
        classes=len(world.dataset.class_names), profile=config.profile, knows=frozenset(knows),
        pooled=attacked.shares_means, weighted=attacked.weighted_statistic is not None, rounds=config.rounds,
        public_images=len(auxiliary) if "auxiliary" in knows else len(clients[0].data),
        named=not defense_stack.policies, summable=sums_suffice(method), summed=sums_uploads(defense_stack),
        grouped_rows=defense_stack.mixes_records,
        kept_rounds=config.rounds if config.keep == "models=all" else 0,
    )  # fmt: skip
    clock = Clock(round=0, rounds=config.rounds, participants=tuple(client.name for client in clients))
    for client in clients if plug_in else clients[:1]:
        challenger.foreign.update(check(method, client, clock))
    return AttackContext(
        config=config, world=world, roles=roles, challenger=challenger, adversary=adversary, knowledge=knowledge,
        facts=facts, foreign=challenger.foreign, progress=progress,
        exchanges=observed.transcript.different_exchanges(adversary.reads),
        judge=judge_of(config.profile),
    )  # fmt: skip


def objective_of(method: Method, model: GlobalModel | None, images: DomainDataset | None) -> MakesObjective | None:
    """What a client of the adversary's `images` trains that has received nothing but the model, where each image has a
    loss of its own; else None, as where the adversary has no images."""
    if model is None or images is None:
        return None
    start, client, clock = model, Client(name="client:0", data=images), Clock(round=0, rounds=1, participants=())

    def objective(rng: torch.Generator) -> Objective:
        return method.objective(client, model=start, inbox={}, state={}, clock=clock, rng=rng)

    try:
        coupled = objective(stream(0, "attack", "objective")).couples_records
    except Exception:  # noqa: BLE001 - whatever a method's own code raises that needs more than a model
        return None
    return None if coupled else objective


def _statistics_under(method: Method, model: GlobalModel | None) -> Callable[[ModelState], Statistics] | None:
    """The statistics of the layers of a model from which clients' styles come; None where these come from no model."""
    shared = method.shared_mean
    if model is None or shared is None or shared.layers is None:
        return None
    start, stage = model, shared.layers

    def statistics_under(state: ModelState) -> Statistics:
        encoder = register_encoder(ModelEncoder(start.with_state(state.tensors()), stage=stage))
        return lambda dataset: statistics(encoder, dataset)

    return statistics_under
