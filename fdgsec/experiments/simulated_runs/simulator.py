"""The simulator of all observed runs: the target, the pools of images, and the adversary's view.

The challenger (fdgsec.experiments.simulated_runs.challenger) passes it to the functions that build cases."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, join
from fdgsec.data.roles import Roles
from fdgsec.experiments.setup.run_federation import FederationRun, observe
from fdgsec.experiments.setup.run_inputs import division_of, with_validation
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles
from fdgsec.federation.client_step import UNDEFENDED
from fdgsec.federation.defense import Outgoing, Sender
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Method, SharesLists, State
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic
from fdgsec.federation.wire import SERVER, Guard
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, integer_seed, stream
from fdgsec.runtime.secret_streams import simulated_key
from fdgsec.threats.adversary import Adversary, ListSharing, SharedByLists, View, averaged
from fdgsec.threats.attack import Case, Truth

Cases = list[tuple[Case, Truth]]
ENOUGH = 64
"""Number of images with which every method shares something (FedAlign shares a tenth)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulator:
    """One target on one federation, observed by one adversary.

    `clients` are the run's real clients; further runs draw from `roles`, and start from `model` where styles need one.
    `encoder` names the encoder of the styles, and `released_statistic` is the per-image statistic of which releases are
    means. The run trains `rounds` rounds; `initial` draws the initial model of another seed, and `unseen` are the
    images on which a trained model is measured. `check`, where given, compares the releases of each client of an
    exchange with what attacks take them for, and `foreign` collects the kinds that are something else. Where the run
    kept the models of `every_round`, simulated training does, too."""

    method: Method
    roles: Roles
    sources: Sequence[int]
    clients: Sequence[Client]
    adversary: Adversary
    encoder: str
    seed: int
    style_size: int | None = None
    defense_stack: DefenseStack = UNDEFENDED
    guards: Sequence[Guard] = ()
    run: FederationRun | None = None
    model: GlobalModel | None = None
    released_statistic: ReleasedStatistic = field(default_factory=PooledStyles)
    rounds: int = 0
    initial: Callable[[int], GlobalModel] | None = None
    unseen: DomainDataset | None = None
    check: Callable[[Method, Client, Clock], Mapping[str, str]] | None = None
    foreign: dict[str, str] = field(default_factory=dict)
    every_round: bool = False

    def rng(self, *names: str | int) -> torch.Generator:
        """The random stream of one draw."""
        return stream(self.seed, "world", "laboratory", *names)

    def exchange(
        self,
        data: Sequence[DomainDataset],
        *,
        name: str,
        method: Method | None = None,
        turn: int = 0,
        defense_stack: DefenseStack | None = None,
        model: GlobalModel | None = None,
    ) -> FederationRun:
        """Run the exchange among clients "client:1", "client:2", ... that hold `data`; an adversary that is a client
        takes part as "client:0" with its own images. Another `turn` is another round: new randomness, same clients.
        The defenses and the model are the run's unless others are given."""
        members = [Client(name=f"client:{number}", data=images) for number, images in enumerate(data, 1)]
        if "client:0" in self.adversary.parties:
            members.insert(0, Client(name="client:0", data=self.clients[0].data))
        seed = self.seed if not turn else integer_seed(self.rng("turn", turn))
        fitting = (method or self.method).fitting(len(members))
        if self.check is not None:
            clock = Clock(round=0, rounds=0, participants=tuple(member.name for member in members))
            for member in members:
                self.foreign.update(self.check(fitting, member, clock))
        return observe(
            fitting, members, seed=seed, name=name, model=model or self.model,
            defense_stack=defense_stack or self.defense_stack, guards=self.guards,
        )  # fmt: skip

    def simulated(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """What the server of a federation of "client:1", "client:2", ... would see, were they to hold `data`.

        For an attack's own simulations: the public method, options and defenses with other randomness, on images that
        the adversary holds. Training starts from the run's initial model, and a training server has the random streams
        that it had in the run: it hands out the same initial generator (FedDAG). Raises UsageError for any other
        image."""
        self._check_known(data)
        members = [Client(name=f"client:{number}", data=images) for number, images in enumerate(data, 1)]
        seed = integer_seed(rng)
        method = self.method.fitting(len(members))
        if rounds and method.reviews != "none":
            division = division_of(self.defense_stack.defenses)
            members = [with_validation(client, seed=seed, division=division) for client in members]
        key = simulated_key(self.seed) if rounds and SERVER in self.adversary.parties else None
        observed = observe(
            method,
            members,
            seed=seed,
            name="simulated",
            model=self.model,
            rounds=rounds,
            key=key,
            defense_stack=self.defense_stack,
            every_round=self.every_round,
        )
        return self._undone(View(messages=tuple(observed.transcript.messages())))

    def defended(self, artifact: Artifact, images: DomainDataset, rng: torch.Generator) -> Artifact:
        """Apply the run's defenses, with fresh randomness, to an artifact of a client that holds `images`.

        For an attack's own simulations, as `simulated`; publicly invertible parts of the defenses are undone again. The
        rows of an artifact are taken as single images where there are as many as `images`. Artifacts that clients do
        not share are returned as they are. Raises UsageError for any other image."""
        self._check_known([images])
        if artifact.kind not in self.slots:
            return artifact
        rows = _rows(artifact)
        state = {SHARED_ROWS: torch.arange(len(images))} if rows == len(images) else {}
        sender = Sender(
            client=Client(name="client:1", data=images), method=self.method, model=self.model,
            statistic_source=self.defense_stack.statistic_source, clock=self._clock, state=state,
        )  # fmt: skip
        defense_stack = replace(self.defense_stack, key=simulated_key(integer_seed(rng)), name="simulated")
        leaving = [
            Outgoing(round=0, stage="share", name=slot, artifact=artifact, sender=sender)
            for slot in self.slots[artifact.kind]
        ]
        return averaged([defense_stack.undone(defense_stack.defended(outgoing)) for outgoing in leaving])

    def shared(self, images: DomainDataset, rng: torch.Generator) -> Artifact:
        """The artifact that a client with `images` would share, before any defense.

        Raises UsageError for images that the adversary does not hold."""
        self._check_known([images])
        return next(iter(self._shared(images, rng).values()))

    def sharing(self, images: DomainDataset) -> ListSharing:
        """What `shared` gives for clients that hold parts of `images`, (L, N) positions.

        Raises UsageError for images that the adversary does not hold."""
        self._check_known([images])
        at_once = self.method.sharing(images) if isinstance(self.method, SharesLists) else None

        def one(rows: Tensor, rng: torch.Generator) -> Artifact:
            return next(iter(self._shared(images.subset(rows), rng).values()))

        checked: list[bool] = []  # a plug-in may replace `share` alone

        def shared(lists: Tensor, rng: torch.Generator) -> SharedByLists:
            if at_once is not None and len(lists) and checked != [False]:
                found = at_once(lists)
                sent = [next(iter(inbox.values())) for inbox in found.inboxes]
                if not checked:
                    checked.append(_alike(sent[0], one(lists[0], child(rng, 0))))
                if checked == [True]:
                    return SharedByLists(sent=sent, weights=found.weights)
            return SharedByLists(sent=[one(rows, child(rng, number)) for number, rows in enumerate(lists)])

        return shared

    def _shared(self, images: DomainDataset, rng: torch.Generator) -> Mapping[str, Artifact]:
        client = Client(name="client:1", data=images)
        return self.method.share(client, model=self.model, state={}, clock=self._clock, rng=rng)[0]

    @property
    def _clock(self) -> Clock:
        return Clock(round=0, rounds=0, participants=("client:1",))

    @cached_property
    def slots(self) -> Mapping[str, Sequence[str]]:
        """The slots in which clients share each kind of artifact."""
        data = self.clients[0].data  # any images will do, if they are enough to share something
        some = data.subset(torch.arange(min(ENOUGH, len(data))))
        shared = self._shared(some, self.rng("slots"))
        return {
            artifact.kind: [name for name, other in shared.items() if other.kind == artifact.kind]
            for artifact in shared.values()
        }

    def _check_known(self, data: Sequence[DomainDataset]) -> None:
        asked = {name for images in data for name in images.ids} - self._held
        if not asked:
            return
        known = self.known_images()
        foreign = {name for name in asked if name.partition("#")[0] not in known}  # "ID#mirrored" is made of ID
        if foreign:
            raise UsageError(
                f"an attack simulates on images that its adversary holds; {len(foreign)} of these are not."
            )
        self._held.update(asked)

    @cached_property
    def _held(self) -> set[str]:
        """Names already found among the known images: a memo, since defenses are simulated thousands of times."""
        return set()

    def known_images(self) -> frozenset[str]:
        """The names of the images that the adversary holds."""
        knows, held = self.adversary.knows, list[DomainDataset]()
        if "auxiliary" in knows:
            held.append(self.roles.auxiliary)
        if "own data" in knows:
            held.append(self.clients[0].data)
        if "unseen" in knows and self.unseen is not None:
            held.append(self.unseen)
        return frozenset(name for images in held for name in images.ids)

    def without_unknowns(self, case: Case) -> Case:
        """Remove from a case what its adversary does not know."""
        knows = self.adversary.knows
        return replace(
            case,
            records=case.records if "client sizes" in knows else None,
            domain=case.domain if "victim domains" in knows else None,
        )

    def view(self, observed: FederationRun) -> View:
        """What the adversary saw of a run, with the publicly invertible parts of the defenses undone."""
        return self._undone(self.adversary.view(observed.transcript))

    def _undone(self, seen: View) -> View:
        if not self.defense_stack.defenses:
            return seen
        return View(messages=tuple(replace(m, artifact=self.defense_stack.undone(m.artifact)) for m in seen.messages))

    def drawable(self, domain: int) -> DomainDataset:
        """Images of a domain that are no auxiliary ones: those of the run's clients, and those held out."""
        return join([self.roles.federation.of_domain(domain), self.roles.held_out.of_domain(domain)])

    def others(self, domain: int) -> DomainDataset:
        """Images of a domain that the adversary does not hold at all: neither auxiliary ones nor a client's own."""
        return self.unheld(self.drawable(domain))

    def unheld(self, images: DomainDataset) -> DomainDataset:
        """Those of some images that the adversary does not hold."""
        known = self.known_images()
        rows = [place for place, name in enumerate(images.ids) if name not in known]
        return images.subset(torch.tensor(rows, dtype=torch.int64))

    @property
    def open_domains(self) -> Sequence[int]:
        """Source domains of which the adversary does not hold the larger part itself.

        Clients of several domains, and such as share out a whole domain, are drawn from these."""
        return [one for one in self.sources if 2 * len(self.others(one)) > len(self.drawable(one))]

    def domain_name(self, domain: int) -> str:
        """The name of a domain."""
        return str(self.roles.federation.domain_names[domain])

    def domain_of(self, data: DomainDataset) -> str:
        """The name of the only domain in `data`, or "mixed"."""
        found = torch.unique(data.domains)
        return self.domain_name(int(found[0])) if len(found) == 1 else "mixed"

    def statistic_of(self, images: DomainDataset) -> Tensor:
        """The linear statistic of every image, (n, 2C), or the released statistic in its place, (n, D)."""
        return self.released_statistic.truth(statistics(self.encoder, images, size=self.style_size))

    def truth_of(self, images: DomainDataset, rows: Tensor | None) -> Truth:
        """The truth about released rows of `images`, at `rows` among the candidates."""
        return Truth(
            rows=rows, images=images.pixels(), labels=images.labels, domains=images.domains,
            statistic=self.statistic_of(images),
        )  # fmt: skip


def blinded(candidates: DomainDataset, *, labeled: bool = False) -> DomainDataset:
    """Remove what an adversary does not have from candidates: labels, domains, attributes and image names.

    A name stays the same for the same image, so that the judge can see which questions share candidates. The pixels are
    not copied, and `labeled` keeps the classes (`rows` still point into the store, in which an attack, being trusted
    code, must not look further)."""
    nothing = torch.zeros(len(candidates), dtype=torch.int64)
    names = tuple(hashlib.sha256(f"candidate {name}".encode()).hexdigest()[:20] for name in candidates.ids)
    labels = candidates.labels if labeled else nothing
    return replace(candidates, labels=labels, domains=nothing, attributes={}, ids=names)


def shown_images(data: DomainDataset, state: State) -> DomainDataset | None:
    """The images behind the rows that a client released, in row order; None for pooled releases."""
    return data.subset(state[SHARED_ROWS]) if SHARED_ROWS in state else None


def _alike(one: Artifact, other: Artifact) -> bool:
    """Whether two artifacts are the same up to rounding."""
    first, second = one.tensors(), other.tensors()
    return first.keys() == second.keys() and all(
        torch.allclose(first[name].double(), second[name].double(), rtol=1e-4, atol=1e-6) for name in first
    )


def _rows(artifact: Artifact) -> int:
    """The number of rows of an artifact with per-image rows; 0 for a pooled artifact."""
    return len(next(iter(artifact.tensors().values()))) if isinstance(artifact, ImageStyles | Amplitudes) else 0
