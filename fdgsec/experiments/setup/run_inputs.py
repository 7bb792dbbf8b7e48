"""The inputs of a run, built from its settings: data, roles, clients, method, model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fdgsec.data.catalog import dataset_entry, load_dataset
from fdgsec.data.domain_groups import join_domains
from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import Division, in_order_of_names, lodo, ltdo, partition, split_validation
from fdgsec.data.roles import FRACTIONS, Roles, split_roles
from fdgsec.experiments.run_config import RunConfig, build, merged, target_method
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import Defense, PlansGuarantee, mechanism_on
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import parties
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.precision import device_named
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import resolve, target_named


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The data of a run: all images, the source domains, the unseen domain, and in LTDO the validation domain."""

    dataset: DomainDataset
    target: int
    sources: tuple[int, ...]
    validation: int | None = None

    @property
    def target_name(self) -> str:
        """The unseen domain's name."""
        return str(self.dataset.domain_names[self.target])

    def unseen(self) -> DomainDataset:
        """All images of the unseen domain."""
        return self.dataset.of_domain(self.target)

    def seen(self) -> DomainDataset:
        """All images of the source domains."""
        unseen = self.dataset.domains == self.target
        if self.validation is not None:
            unseen = unseen | (self.dataset.domains == self.validation)
        return self.dataset.subset(~unseen)

    def second(self) -> DomainDataset | None:
        """All images of LTDO's validation domain, None in LODO."""
        return None if self.validation is None else self.dataset.of_domain(self.validation)


def load_world(config: RunConfig, *, data_root: Path | None, progress: Progressive) -> World:
    """Load the dataset and find the unseen domain. Raises DataError, DatasetNotFoundError or UsageError, for a device
    that this machine does not have as well."""
    device_named(config.device)  # before anything is computed, and where nothing is trained, too
    entry = dataset_entry(config.dataset)
    dataset = load_dataset(
        config.dataset,
        data_root=data_root,
        image_size=config.image_size,
        allow_partial=config.allow_partial,
        per_domain=_cap(config, entry.drawn),
        per_class=config.per_class,
        seed=config.seed,
        progress=progress.update,
    )
    dataset, unseen = join_domains(
        dataset, config.target_domain or entry.target_domain or str(dataset.domain_names[-1])
    )
    if config.validation_domain is None:
        target, second = dataset.domain_index(unseen), None
        lodo(dataset, target)  # raises where nothing would be left to train on or to test
    else:
        dataset, kept = join_domains(dataset, config.validation_domain)
        if kept == unseen:
            raise UsageError(
                f"{config.validation_domain} is both the target and the validation domain; name two domains."
            )
        target, second = dataset.domain_index(unseen), dataset.domain_index(kept)
        ltdo(dataset, validation=second, test=target)
    present = torch.unique(dataset.domains).tolist()
    sources = tuple(d for d in present if d not in (target, second))
    return World(dataset=dataset, target=target, sources=sources, validation=second)


def _cap(config: RunConfig, drawn: int) -> int | None:
    """The cap on images per domain; it must not enlarge a procedural dataset, which draws any number."""
    return config.per_domain if not drawn or config.per_domain is None else min(config.per_domain, drawn)


def roles_of(world: World, config: RunConfig) -> Roles:
    """Split into federation, held-out and auxiliary images before anything is partitioned (DESIGN 3).

    Raises UsageError for more auxiliary images than a source domain can spare."""
    asked = config.auxiliary
    numbers = None if asked is None else {name: _auxiliary(asked, world, name) for name in _source_names(world)}
    return split_roles(world.dataset, rng=stream(config.seed, "world", "roles"), auxiliary=numbers)


LEFT = 200
"""Images of a source domain that clients and non-members keep where more than 15% are auxiliary."""


def _source_names(world: World) -> list[str]:
    return [str(world.dataset.domain_names[domain]) for domain in world.sources]


def _auxiliary(asked: int | Literal["all"], world: World, name: str) -> int:
    """The number of auxiliary images of a source domain."""
    size = int((world.dataset.domains == world.dataset.domain_index(name)).sum())
    most = max(size - LEFT, round(FRACTIONS[2] * size))
    if asked == "all":
        return most
    if not 1 <= asked <= most:
        raise UsageError(
            f"auxiliary={asked} is impossible: {name} has {size} images, of which clients and non-members keep {LEFT} "
            f"(or 85%). It must be 1 to {most}, or all; --per-domain limits the images of a domain."
        )
    return asked


def clients_of(
    data: DomainDataset, config: RunConfig, *, validation: Mapping[str, DomainDataset] | None = None
) -> list[Client]:
    """Partition the source images over clients. Raises UsageError for an empty client or an impossible scheme."""
    parts = partition(
        data if division_of(config.defenses) == "stratified" else in_order_of_names(data),
        config.partition,
        rng=stream(config.seed, "world", "partition"),
        clients=config.clients,
        alpha=config.heterogeneity,
        lam=config.heterogeneity,
    )
    for part in parts:
        if not len(part.data):
            raise UsageError(
                f"{part.name} is empty under partition {config.partition!r}; use fewer clients or more data."
            )
    held = validation or {}
    return [Client(name=part.name, data=part.data, validation=held.get(part.name)) for part in parts]


def with_validation(client: Client, *, seed: int, share: float = 0.1, division: Division = "stratified") -> Client:
    """Split `share` of a client's images off for validation, before any augmentation.

    Unless the split is stratified, the client's images are in the order of their names afterwards."""
    rng = stream(seed, "world", "validation", client.name)
    train, validation = split_validation(named(client, division).data, fraction=share, rng=rng, division=division)
    return Client(name=client.name, data=train, validation=validation)


def named(client: Client, division: Division) -> Client:
    """A client whose images stand in an order that tells nothing of them, where its run promises to hide one."""
    return client if division == "stratified" else replace(client, data=in_order_of_names(client.data))


def division_of(defenses: Iterable[Defense]) -> Division:
    """How a run with these defenses divides a client's images.

    A mechanism on records compares the client with one that has another image in a place, or one image more or less:
    all other images must stay where they are, in training, validation and the choice of rows."""
    mechanisms = [defense for defense in defenses if mechanism_on(defense)]
    promises = [defense.promise for defense in mechanisms if isinstance(defense, PlansGuarantee)]
    if any(isinstance(each, PlannedGuarantee) and "add-remove" in each.relations for each in promises):
        return "independent"
    return "names" if mechanisms else "stratified"


def divided(config: RunConfig) -> dict[str, object]:
    """What a report says of the division of clients' images: nothing where it was by class."""
    division = division_of(config.defenses)
    return {} if division == "stratified" else {"division": division}


def attacked_clients(world: World, roles: Roles, config: RunConfig, method: Method) -> list[Client]:
    """The clients of an attacked run: only images with the federation role, split if the method needs validation."""
    division = division_of(config.defenses)
    found = clients_of(roles.federation.subset(roles.federation.domains != world.target), config)
    clients = [named(client, division) for client in found]
    if config.rounds and method.reviews != "none":
        clients = [
            with_validation(client, seed=config.seed, share=config.validation_share, division=division)
            for client in clients
        ]
    return clients


def method_of(config: RunConfig) -> Method:
    """Build the method with its options, stacked with the local method if one is named.

    Methods with an encoder option use the run's encoder. Raises UsageError for methods that cannot be stacked."""
    method: Method = _built(config.method, config.options, config, where="method")
    if not config.local:
        if config.local_options:
            raise UsageError(
                f"with.{next(iter(config.local_options))} is set, but no method is on top; add --with NAME."
            )
        return method
    local: Method = _built(config.local, config.local_options, config, where="with")
    return Stacked(base=method, local=local)


def attacked_method(config: RunConfig) -> Method:
    """The method whose releases are attacked: the run's without its local method, or that of another target.

    A run is attacked as another target by `attack --run RUN --target fedavg`, which reads its models."""
    named = target_named(config.target)
    if named.method != config.method:
        return target_method(named)
    return method_of(replace(config, local="", local_options={}))


def attackable(config: RunConfig) -> RunConfig:
    """The settings with the encoder that the attacked method declares, whatever options it was given.

    Raises UsageError for a method that releases nothing without training, where no round trains."""
    method = attacked_method(config)
    if method.needs_training and not config.rounds:
        raise UsageError(f"{config.target} releases nothing before it trains; give --rounds 1 or more.")
    shared = method.shared_mean
    return config if shared is None or shared.encoder is None else replace(config, encoder=shared.encoder)


def _built(name: str, given: Mapping[str, Any], config: RunConfig, *, where: str) -> Any:
    """Build a method; a `base` in the settings is built by name, with the training plan given here."""
    options: dict[str, Any] = {"encoder": config.encoder, "style_size": config.style_size}
    taken = {option: value for option, value in options.items() if option in options_of(name)}
    named = given.get("base")
    named = {"method": named} if isinstance(named, str) else named
    if not isinstance(named, Mapping) or "method" not in named:
        return build(resolve("methods", name), {**taken, **given}, where=where)
    below = {option: value for option, value in named.items() if option != "method"}
    plan = {"plan": given["plan"]} if "plan" in given else {}
    base = _built(str(named["method"]), merged(plan, below), config, where=f"{where}.base")
    above = {option: value for option, value in given.items() if option not in ("base", "plan")}
    made = build(resolve("methods", name), {**taken, **above}, where=where)
    if "base" not in options_of(name):
        raise UsageError(f"{name} has no base; cross-evaluation has one.")
    return replace(made, base=base)


def options_of(method: str) -> frozenset[str]:
    """The names of a method's options: the fields of its dataclass."""
    return frozenset(spec.name for spec in fields(resolve("methods", method)))


def blueprint_of(config: RunConfig, method: Method, classes: int) -> Blueprint:
    """The blueprint of the network that `method` trains, with this machine's device."""
    return Blueprint(
        backbone=config.backbone, classes=classes, norm=config.norm, device=device_named(config.device),
        remodel=method.remodel,
    )  # fmt: skip


def model_of(config: RunConfig, method: Method, classes: int) -> GlobalModel:
    """Initialize the global model of `method`. Raises WeightsUnavailableError for missing pretrained weights."""
    blueprint = blueprint_of(config, method, classes)
    rng = stream(config.seed, "world", "initialisation")
    plain = build_classifier(config.backbone, classes, norm=config.norm, pretrained=config.pretrained, rng=rng)
    network = method.remodel(plain, rng)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return GlobalModel(blueprint=blueprint, state=ModelState(state=state))


def artifact_rows(rows: Sequence[Any]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Split transcript rows into artifacts (one entry each) and model traffic (summed by stage and direction)."""
    artifacts = [
        {key: getattr(row, key) for key in ("round", "stage", "sender", "receiver", "kind", "bytes", "sha256")}
        for row in rows
        if row.kind not in ("ModelState", "GeneratorState", "Scores")
    ]
    traffic: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        if row.kind in ("ModelState", "GeneratorState", "Scores"):
            key = (row.stage, row.kind, parties(row.sender), parties(row.receiver))
            entry = traffic.setdefault(key, [0, 0])
            entry[0], entry[1] = entry[0] + 1, entry[1] + row.bytes
    models = [
        {"stage": stage, "kind": kind, "sender": sender, "receiver": receiver, "messages": count, "bytes": size}
        for (stage, kind, sender, receiver), (count, size) in traffic.items()
    ]
    return artifacts, models
