"""Executes the observed runs that attacks ask for, and keeps the truth away from them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fdgsec.adversaries import Adversary, View
from fdgsec.data.domains import DomainDataset, join
from fdgsec.data.roles import Roles
from fdgsec.experiments.draws import skewed, stratified, uniform
from fdgsec.experiments.observed import Observed, observe
from fdgsec.features import statistics
from fdgsec.federation import SHARED_ROWS, Client, GlobalModel, Method, State
from fdgsec.rng import stream
from fdgsec.threats import Case, Request, Truth
from fdgsec.wire import Guard, SendsDefended

CANDIDATES = 150
"""Members asked about per membership case, and as many non-members."""
LEAST_OUTSIDE = 30
"""Images that must be left outside a re-drawn client."""


Cases = list[tuple[Case, Truth]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Laboratory:
    """One target on one federation, watched by one adversary.

    `clients` are the run's real clients; further runs draw from `roles`, and start from `model` where styles need one."""

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
    memo: dict[Request, Cases] = field(default_factory=dict)

    def cases(self, request: Request) -> Cases:
        """Execute `request` (once) and give its cases with their truths, in a fixed order."""
        if request not in self.memo:
            pairs = self._kinds()[request.kind](request)
            self.memo[request] = [(self._told(case), truth) for case, truth in pairs]
        return self.memo[request]

    def _kinds(self) -> Mapping[str, Callable[[Request], Cases]]:
        return {
            "released": self._released,
            "as_if_released": self._as_if_released,
            "add_one_record": self._add_one_record,
            "resampled_clients": self._resampled_clients,
            "halves": self._halves,
        }

    def _coins(self, *names: str | int) -> torch.Generator:
        return stream(self.seed, "world", "laboratory", *names)

    def exchange(self, data: Sequence[DomainDataset], *, name: str, method: Method | None = None) -> Observed:
        """Run the exchange among clients "client:1", "client:2", ... that hold `data`; an adversary that is a client
        takes part as "client:0" with its own images."""
        members = [Client(name=f"client:{number}", data=images) for number, images in enumerate(data, 1)]
        if "client:0" in self.adversary.parties:
            members.insert(0, Client(name="client:0", data=self.clients[0].data))
        return observe(
            (method or self.method).fitting(len(members)), members, seed=self.seed, name=name, model=self.model,
            defenses=self.defenses, guards=self.guards,
        )  # fmt: skip

    def _told(self, case: Case) -> Case:
        """Take out of a question what its adversary does not know."""
        knows = self.adversary.knows
        return replace(
            case,
            records=case.records if "client sizes" in knows else None,
            domain=case.domain if "victim domains" in knows else None,
        )

    def _view(self, observed: Observed) -> View:
        return self.adversary.view(observed.transcript)

    def _others(self, domain: int) -> DomainDataset:
        """Images of a domain that the adversary does not hold as auxiliary ones."""
        return join([self.roles.federation.of_domain(domain), self.roles.held_out.of_domain(domain)])

    def _domain_name(self, domain: int) -> str:
        return str(self.roles.federation.domain_names[domain])

    def _released(self, request: Request) -> Cases:
        observed = self.run or observe(
            self.method, self.clients, seed=self.seed, name="run", defenses=self.defenses, guards=self.guards
        )
        victims = [client for client in self.clients if client.name not in self.adversary.parties]
        shown = {client.name: _shown(client.data, observed.states[client.name]) for client in victims}
        gallery = self._gallery([images for images in shown.values() if images is not None], request.gallery)
        asked = None if gallery is None else blinded(gallery)
        position = {} if gallery is None else {name: index for index, name in enumerate(gallery.ids)}
        result: Cases = []
        for client in victims:
            images, domain = shown[client.name], self._domain_of(client.data)
            case = Case(
                request="released", views=(self._view(observed),), victim=client.name, records=len(client.data),
                domain=domain, slice={"domain": domain}, candidates=asked,
            )  # fmt: skip
            if images is None:
                majority = torch.bincount(client.data.domains).argmax().reshape(1)
                truth = Truth(domains=majority, statistic=self._pooled_statistic(client.data))
            else:
                placed = torch.tensor([position[name] for name in images.ids], dtype=torch.int64) if position else None
                truth = self._truth_of(images, placed)
            result.append((case, truth))
        return result

    def _domain_of(self, data: DomainDataset) -> str:
        found = torch.unique(data.domains)
        return self._domain_name(int(found[0])) if len(found) == 1 else "mixed"

    def _gallery(self, shown: Sequence[DomainDataset], size: int) -> DomainDataset | None:
        if not shown or not size:
            return None
        true = join(shown)
        known = set(true.ids)
        pool = join([self._others(domain) for domain in self.sources])
        rest = torch.tensor([i for i, name in enumerate(pool.ids) if name not in known], dtype=torch.int64)
        rng = self._coins("gallery", size)
        extra = rest[torch.randperm(len(rest), generator=rng)[: max(size - len(true), 0)]]
        everything = join([true, pool.subset(extra)])
        return everything.subset(torch.randperm(len(everything), generator=rng))

    def _truth_of(self, images: DomainDataset, rows: Tensor | None) -> Truth:
        return Truth(
            rows=rows, images=images.pixels(), labels=images.labels, domains=images.domains,
            statistic=self._image_statistic(images),
        )  # fmt: skip

    def _image_statistic(self, images: DomainDataset) -> Tensor:
        return statistics(self.encoder, images, size=self.style_size).linear()

    def _pooled_statistic(self, images: DomainDataset) -> Tensor:
        return self._image_statistic(images).mean(0, keepdim=True)

    def _as_if_released(self, request: Request) -> Cases:
        result: Cases = []
        method = self.method.releasing_all()
        if method is None:
            return result
        for domain in self.sources:
            where = self._domain_name(domain)
            images = stratified(
                self._others(domain), request.per_class, self._coins("as-if", domain, request.per_class)
            )
            observed = self.exchange([images], name=f"as-if:{domain}:{request.per_class}", method=method)
            shown = _shown(images, observed.states["client:1"])
            assert shown is not None
            order = torch.randperm(len(images), generator=self._coins("as-if-order", domain, request.per_class))
            gallery = images.subset(order)
            position = {name: index for index, name in enumerate(gallery.ids)}
            case = Case(
                request="as_if_released", views=(self._view(observed),), victim="client:1", records=len(images),
                domain=where, slice={"domain": where}, candidates=blinded(gallery),
            )  # fmt: skip
            rows = torch.tensor([position[name] for name in shown.ids], dtype=torch.int64)
            result.append((case, self._truth_of(shown, rows)))
        return result

    def _add_one_record(self, request: Request) -> Cases:
        result: Cases = []
        for domain in self.sources:
            where = self._domain_name(domain)
            holds = self.roles.federation.of_domain(domain)
            pool = self.roles.held_out.of_domain(domain)
            order = torch.randperm(len(pool), generator=self._coins("add-one", domain))
            gallery = pool.subset(torch.randperm(len(pool), generator=self._coins("add-one-gallery", domain)))
            position = {name: index for index, name in enumerate(gallery.ids)}
            asked = blinded(gallery)
            before = self._view(self.exchange([holds], name=f"add-one:{domain}:before"))
            for number, index in enumerate(order[: request.count]):
                record = pool.subset(index.reshape(1))
                after = self._view(self.exchange([join([holds, record])], name=f"add-one:{domain}:{number}"))
                case = Case(
                    request="add_one_record", views=(before, after), victim="client:1", records=len(holds),
                    domain=where, slice={"domain": where}, candidates=asked,
                )  # fmt: skip
                result.append((case, self._truth_of(record, torch.tensor([position[record.ids[0]]]))))
        return result

    def _resampled_clients(self, request: Request) -> Cases:
        """Re-draw clients from all images of a domain that the adversary does not hold; who was not drawn is a non-member.

        Every image is a member of some clients and not of others, so that what is odd about an image or about the
        adversary's reference favours neither answer, and clients are independent units for an interval. With a fixed
        set of non-members they are not: bootstrapping clients alone then covered 2 to 54% instead of 95%."""
        result: Cases = []
        for domain in self.sources:
            where = self._domain_name(domain)
            pool = self._others(domain)
            if len(pool) < request.records + LEAST_OUTSIDE:
                continue
            drawn: list[DomainDataset] = []
            for number in range(request.count):
                rng = self._coins("resampled", domain, request.records, number)
                order = torch.randperm(len(pool), generator=rng)
                drawn.append(pool.subset(order[: request.records]))
            observed = self.exchange(drawn, name=f"resampled:{domain}:{request.records}")
            view = self._view(observed)
            for number, data in enumerate(drawn):
                rng = self._coins("resampled", domain, request.records, number)
                order = torch.randperm(len(pool), generator=rng)
                outside = order[request.records :]
                asked = min(CANDIDATES, len(data), len(outside))
                both = torch.cat([order[:asked], outside[:asked]])
                mixed = torch.randperm(2 * asked, generator=rng)
                case = Case(
                    request="resampled_clients", views=(view,), victim=f"client:{number + 1}", records=len(data),
                    domain=where, slice={"domain": where, "n_per_client": request.records},
                    candidates=blinded(pool.subset(both[mixed])),
                )  # fmt: skip
                truth = Truth(
                    members=mixed < asked, domains=torch.tensor([domain]), statistic=self._pooled_statistic(data)
                )
                result.append((case, truth))
        return result

    def _halves(self, request: Request) -> Cases:
        groups = [[domain] for domain in self.sources] if request.scheme != "domain" else [list(self.sources)]
        return [pair for group in groups for pair in self._halves_of(request, group)]

    def _halves_of(self, request: Request, domains: list[int]) -> Cases:
        """Draw the clients of one population from disjoint images.

        Were they drawn independently, the first half of one client would share images with the second halves of others
        but never with its own, and its true partner would look farther away than chance. They come under new names, so
        that even whoever knows the domain of every client is not told theirs."""
        pools = [self._others(domain) for domain in domains]
        per_pool = -(-request.count // len(pools))
        records = request.records or max(1, int(0.7 * min(len(pool) for pool in pools)) // (2 * per_pool))
        firsts, seconds = [], []
        left = [torch.ones(len(pool), dtype=torch.bool) for pool in pools]
        for number in range(request.count):
            which = number % len(pools)
            rng = self._coins("halves", request.scheme, *domains, number)
            remaining = left[which].nonzero().flatten()
            pool = pools[which].subset(remaining)
            draw = skewed if request.scheme == "dirichlet" else uniform
            chosen = draw(pool, 2 * records, rng)
            left[which][remaining[chosen]] = False
            firsts.append(pool.subset(chosen[:records]))
            seconds.append(pool.subset(chosen[records:]))
        order = torch.randperm(request.count, generator=self._coins("halves-order", request.scheme, *domains))
        slices: dict[str, str | int] = {"clients": request.scheme, "n_per_client": records}
        if len(domains) == 1:
            slices["domain"] = self._domain_name(domains[0])
        view_a = self._view(self.exchange(firsts, name=f"halves:{request.scheme}:{domains}:A"))
        view_b = self._view(
            self.exchange([seconds[int(i)] for i in order], name=f"halves:{request.scheme}:{domains}:B")
        )
        place = {int(client): position for position, client in enumerate(order)}
        result: Cases = []
        for half, view in (("A", view_a), ("B", view_b)):
            for number in range(request.count):
                case = Case(
                    request="halves", views=(view,), victim=f"client:{number + 1}", records=records,
                    slice={**slices, "half": half},
                )  # fmt: skip
                result.append((case, Truth(partner=place[number] if half == "A" else None)))
        return result


def blinded(candidates: DomainDataset) -> DomainDataset:
    """Take away from candidates what an adversary would not hold: labels, domains, attributes and telling names.

    A name stays the same for the same image, so that the judge can see which questions share candidates. The pixels
    are not copied (`rows` still point into the store, which an attack, being trusted code, must not look around in)."""
    nothing = torch.zeros(len(candidates), dtype=torch.int64)
    names = tuple(hashlib.sha256(f"candidate {name}".encode()).hexdigest()[:20] for name in candidates.ids)
    return replace(candidates, labels=nothing, domains=nothing, attributes={}, ids=names)


def _shown(data: DomainDataset, state: State) -> DomainDataset | None:
    """The images behind the rows that a client released, in row order; None for pooled releases."""
    return data.subset(state[SHARED_ROWS]) if SHARED_ROWS in state else None
