"""What every observed run needs: the target, the pools that it draws from, and one adversary's eyes.

The laboratory (fdgsec.experiments.laboratory) hands these instruments to the modules that make cases."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.adversaries import Adversary, View
from fdgsec.data.domains import DomainDataset, join
from fdgsec.data.roles import Roles
from fdgsec.errors import UsageError
from fdgsec.experiments.observed import Observed, observe
from fdgsec.experiments.world import with_validation
from fdgsec.features import statistics
from fdgsec.federation import SHARED_ROWS, Client, GlobalModel, Method, State
from fdgsec.rng import integer_seed, stream
from fdgsec.threats import Case, Truth
from fdgsec.wire import SERVER, Guard, SendsDefended

Cases = list[tuple[Case, Truth]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Instruments:
    """One target on one federation, watched by one adversary.

    `clients` are the run's real clients; further runs draw from `roles`, and start from `model` where styles need one.
    `encoder` names whose statistics the styles are."""

    method: Method
    roles: Roles
    sources: Sequence[int]
    clients: Sequence[Client]
    adversary: Adversary
    encoder: str
    seed: int
    style_size: int | None = None
    defenses: Sequence[SendsDefended] = ()
    guards: Sequence[Guard] = ()
    run: Observed | None = None
    model: GlobalModel | None = None

    def coins(self, *names: str | int) -> torch.Generator:
        """The random stream of one draw."""
        return stream(self.seed, "world", "laboratory", *names)

    def exchange(
        self, data: Sequence[DomainDataset], *, name: str, method: Method | None = None, turn: int = 0
    ) -> Observed:
        """Run the exchange among clients "client:1", "client:2", ... that hold `data`; an adversary that is a client
        takes part as "client:0" with its own images. Another `turn` is another round: new coins, same clients."""
        members = [Client(name=f"client:{number}", data=images) for number, images in enumerate(data, 1)]
        if "client:0" in self.adversary.parties:
            members.insert(0, Client(name="client:0", data=self.clients[0].data))
        seed = self.seed if not turn else integer_seed(self.coins("turn", turn))
        return observe(
            (method or self.method).fitting(len(members)), members, seed=seed, name=name, model=self.model,
            defenses=self.defenses, guards=self.guards,
        )  # fmt: skip

    def simulated(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """What the server of a federation of "client:1", "client:2", ... would see, were they to hold `data`.

        For an attack's own simulations: the public method and options without defenses, on images that the adversary
        holds. Training starts from the run's initial model, and a server that trains draws as it drew in the run: it hands
        out the same initial generator (FedDAG). Raises UsageError for any other image."""
        allowed = self.known_images()
        foreign = sum(name not in allowed for images in data for name in images.ids)
        if foreign:
            raise UsageError(f"an attack simulates on images that its adversary holds; {foreign} of these are not.")
        members = [Client(name=f"client:{number}", data=images) for number, images in enumerate(data, 1)]
        seed = integer_seed(rng)
        method = self.method.fitting(len(members))
        if rounds and method.reviews != "none":
            members = [with_validation(client, seed=seed) for client in members]
        coins = self.seed if rounds and SERVER in self.adversary.parties else None
        observed = observe(method, members, seed=seed, name="simulated", model=self.model, rounds=rounds, coins=coins)
        return View(messages=tuple(observed.transcript.messages()))

    def known_images(self) -> frozenset[str]:
        """The names of the images that the adversary holds."""
        knows, held = self.adversary.knows, list[DomainDataset]()
        if "auxiliary" in knows:
            held.append(self.roles.auxiliary)
        if "own data" in knows:
            held.append(self.clients[0].data)
        return frozenset(name for images in held for name in images.ids)

    def told(self, case: Case) -> Case:
        """Take out of a question what its adversary does not know."""
        knows = self.adversary.knows
        return replace(
            case,
            records=case.records if "client sizes" in knows else None,
            domain=case.domain if "victim domains" in knows else None,
        )

    def view(self, observed: Observed) -> View:
        """What the adversary saw of a run."""
        return self.adversary.view(observed.transcript)

    def others(self, domain: int) -> DomainDataset:
        """Images of a domain that the adversary does not hold as auxiliary ones."""
        return join([self.roles.federation.of_domain(domain), self.roles.held_out.of_domain(domain)])

    def domain_name(self, domain: int) -> str:
        """What the domain is called."""
        return str(self.roles.federation.domain_names[domain])

    def domain_of(self, data: DomainDataset) -> str:
        """The domain that all of `data` is of, or "mixed"."""
        found = torch.unique(data.domains)
        return self.domain_name(int(found[0])) if len(found) == 1 else "mixed"

    def statistic_of(self, images: DomainDataset) -> Tensor:
        """The linear statistic of every image, (n, 2C)."""
        return statistics(self.encoder, images, size=self.style_size).linear()

    def truth_of(self, images: DomainDataset, rows: Tensor | None) -> Truth:
        """The truth about released rows of `images`, at `rows` among the candidates."""
        return Truth(
            rows=rows, images=images.pixels(), labels=images.labels, domains=images.domains,
            statistic=self.statistic_of(images),
        )  # fmt: skip


def blinded(candidates: DomainDataset, *, labelled: bool = False) -> DomainDataset:
    """Take away from candidates what an adversary would not hold: labels, domains, attributes and telling names.

    A name stays the same for the same image, so that the judge can see which questions share candidates. The pixels
    are not copied, and `labelled` leaves the classes in (`rows` still point into the store, which an attack, being trusted
    code, must not look around in)."""
    nothing = torch.zeros(len(candidates), dtype=torch.int64)
    names = tuple(hashlib.sha256(f"candidate {name}".encode()).hexdigest()[:20] for name in candidates.ids)
    labels = candidates.labels if labelled else nothing
    return replace(candidates, labels=labels, domains=nothing, attributes={}, ids=names)


def shown_images(data: DomainDataset, state: State) -> DomainDataset | None:
    """The images behind the rows that a client released, in row order; None for pooled releases."""
    return data.subset(state[SHARED_ROWS]) if SHARED_ROWS in state else None
