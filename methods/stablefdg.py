"""StableFDG: style and attention based learning for federated domain generalization.

Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227. Section 3.1 is the style half: sharing (step 1, eqs. 1 to 3),
selective shifting (step 2), feature-level oversampling (step 3, appendix G), exploration (step 4, eqs. 4 and 5) and MixStyle
(step 5). Section 3.2 is the attention half (eqs. 6 to 8), made in fdgsec/networks/attention.py; the operations on a batch
of maps are in fdgsec/restyling.py, images drawn by class in fdgsec/class_draws.py. Extends methods/fedavg.py.

Shares, every round, before training: each participant sends the four vectors Phi_n of eq. (3), computed by the current
global model up to `stage`; the server gives each participant those of `received` others, unattributed. A single participant
receives nothing and shifts nothing: the centralised setting of table 4 trains with steps 3 to 5 and attention.
Differs from the paper where its formula cannot be meant: a shifted style follows N(centre, Sigma) of its giver, where
step 2 multiplies by Sigma once more (`shift_law="printed"` does too); steps 3 to 5 happen once per forward pass, since
three "independent" stages could make the batch eight times as large (`explore_once=False`). By default sigma divides by
HW - 1, and queries and keys have length 1, as in the authors' code, which the paper's numbers come from (the preset
`stablefdg-paper` takes eqs. 1 and 8 as printed). Where it is silent, that code decides: explored stds may be negative
(counted in the client's state, see NEGATIVE_STDS), the gradient flows through the statistics that normalise and not
through the new ones, models are averaged uniformly. What that code does against the paper is an option each, set
together by the preset `stablefdg-released`. Of it are not reproduced: all clients send their styles, also those that do
not take part; the last short batch is dropped; the class-balanced batch is drawn once per epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.artifacts import Artifact, StyleDistribution
from fdgsec.batches import Batch, TrainingSet, batches_in_order, epoch_of_batches
from fdgsec.class_draws import BalancedPass, ClassDraws
from fdgsec.errors import ArtifactError, UsageError
from fdgsec.features import statistics
from fdgsec.federation import Client, Clock, GlobalModel, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.model_encoder import introduced_layers
from fdgsec.models import Between, Classifier
from fdgsec.networks.attention import HighlightedClassifier, Similarity, class_partners, highlighted, mixed_queries
from fdgsec.precision import precision_of
from fdgsec.restyling import (
    StyleLaws,
    batch_styles,
    explored,
    greedy_seeds,
    instance_statistics,
    mixed_statistics,
    once_clustered,
    oversampled_rows,
    restyled,
)
from fdgsec.rng import child, derangement
from fdgsec.server_needs import ServerNeeds
from fdgsec.training import Objective

STAGES = ("stem", "stage1", "stage2", "stage3", "stage4")
PHI = ("mean", "std", "mean_spread", "std_spread")  # eq. (3)
DISTRIBUTION = "distribution"
OWN_VARIANCES = "own_variances"
NEGATIVE_STDS = "negative_stds"
"""The entry of a client's state that counts its last round's explored stds: those below 0, and all of them, (2,) int64."""


@dataclass(frozen=True, kw_only=True)
class StableFDG(FedAvg):
    """StableFDG with its options; those of the optimiser are in the preset `stablefdg-paper`.

    `style` and `attention` switch the two halves. Step 1: statistics are taken at the end of `stage`, in evaluation mode on
    plain images unless `statistics_training_mode` and `statistics_augmented` say otherwise; `spread` is sent of them;
    `received` distributions come from random other participants or from the farthest (`sharing`). Step 2 starts in round
    `shift_from`; half a batch keeps its style, chosen by `selection` ("centroids": its first half, which takes the styles of
    cluster centres, as released). `probability` is that of step 2 and, at each stage of `explore_at`, of steps 3 to 5.
    `oversampling` counts batches, `oversample` says which rows; `exploration` is alpha, about `explore_centre` (the batch
    before or after oversampling); `mix_alpha` is MixStyle's (None: none); `gradient` says which statistics pass gradients.

    Attention: `embedding` is d; `cosine` and `attention_bias` are the released code's, as are the `unused_parameters`;
    `similarity` is eq. (8) or one of its halves. `singletons` says what a sample gets that is alone in its class: another
    image of the class from the client's data, which joins the batch ("extra", appendix G); its own query ("self"); or, as
    released, a second pass over one image per class, whose maps may join in step 3 and whose queries, wrongly ordered,
    replace its own."""

    weights: Literal["size", "uniform"] = "uniform"
    style: bool = True
    attention: bool = True
    unbiased: bool = True
    eps: float = 1e-6
    stage: str = "stage1"
    spread: Literal["variance", "std"] = "variance"
    statistics_training_mode: bool = False
    statistics_augmented: bool = False
    received: int = 1
    sharing: Literal["random", "farthest"] = "random"
    shift_from: int = 0
    shift_law: Literal["normal", "printed"] = "normal"
    selection: Literal["k-means++", "random", "centroids"] = "k-means++"
    probability: float = 0.5
    explore_at: tuple[str, ...] = ("stage1", "stage2", "stage3")
    explore_once: bool = True
    oversampling: float = 1.0
    oversample: Literal["balanced", "random"] = "balanced"
    exploration: float = 3.0
    explore_centre: Literal["batch", "concatenated"] = "batch"
    clamp_explored: bool = False
    mix_alpha: float | None = 0.1
    gradient: Literal["normalisation", "none", "all"] = "normalisation"
    embedding: int = 30
    cosine: bool = True
    attention_bias: bool = False
    unused_parameters: bool = False
    similarity: Similarity = "mixed"
    singletons: Literal["extra", "self", "released"] = "extra"

    def __post_init__(self) -> None:
        if not {self.stage, *self.explore_at} <= set(STAGES):
            raise UsageError(
                f"stablefdg acts at {', '.join(STAGES)}; got stage = {self.stage!r}, explore_at = {self.explore_at!r}."
            )
        if not 0 <= self.probability <= 1 or min(self.received, self.oversampling, self.shift_from) < 0:
            raise UsageError(
                "stablefdg needs probability in [0, 1], and received, oversampling, shift_from of at least 0; got "
                f"{self.probability}, {self.received}, {self.oversampling}, {self.shift_from}."
            )
        if self.eps <= 0 or self.embedding < 1 or (self.mix_alpha is not None and self.mix_alpha <= 0):
            raise UsageError(
                "stablefdg needs eps > 0, embedding >= 1 and mix_alpha > 0 (or none: no MixStyle); got "
                f"{self.eps}, {self.embedding}, {self.mix_alpha}."
            )

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Style information, every round, unless nobody is to receive any."""
        return "every" if self.style and self.received else "never"

    @property
    def server_needs(self) -> ServerNeeds:
        """Who sent which distribution, unless none is shared."""
        if self.shares == "never":
            return super().server_needs
        return ServerNeeds(uploads="named", because="each client receives another one's styles, never its own")

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method on top, which would not be heard."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("stablefdg has its own local objective; leave the local method out.")

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Section 3.2: the attention highlighter and a head for the joined features."""
        if not self.attention:
            return network
        return highlighted(
            network, embedding=self.embedding, cosine=self.cosine, bias=self.attention_bias,
            unused=self.unused_parameters, rng=rng,
        )  # fmt: skip

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Step 1: send Phi_n, centre and spread of the client's image styles under the current model (eqs. 2 and 3).

        Raises UsageError for a client without images, and where no model was received."""
        if self.shares == "never":
            return {}, state
        if model is None:
            raise UsageError(
                "stablefdg shares styles of the current model, and got none; give the run a model, or set received to 0."
            )
        if not len(client.data):
            raise UsageError(f"{client.name} has no images; a style needs at least one. Use fewer clients.")
        mean, std = self.image_styles(client, model, rng)
        if self.shift_law == "printed":
            own = torch.stack([mean.var(0, correction=0), std.var(0, correction=0)]).float()
            state = {**state, OWN_VARIANCES: own}
        return {DISTRIBUTION: self.distribution(mean, std)}, state

    def image_styles(self, client: Client, model: GlobalModel, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Give mu(s_i) and sigma(s_i) of each image's maps at the end of `stage` (eq. 1), two (n, C) float64.

        Nothing behind that stage runs. In float32 whatever the device trains in. Where these layers are an encoder that
        somebody introduced, what it has seen once is not seen again."""
        alone = not (self.statistics_training_mode or self.statistics_augmented)
        encoder = introduced_layers(model, stage=self.stage) if alone else None
        if encoder is not None:
            return statistics(encoder, client.data).style(unbiased=self.unbiased, eps=self.eps)
        network = model.module().train(self.statistics_training_mode)
        device = network.head.weight.device
        layout = precision_of(device, network.backbone).layout
        if self.statistics_augmented:
            dealt = epoch_of_batches(TrainingSet.of(client.data), self.plan, rng, device=device, layout=layout)
        else:
            dealt = batches_in_order(client.data, self.plan.batch_size, device=device, layout=layout)
        return batch_styles(network, dealt, stage=self.stage, eps=self.eps, unbiased=self.unbiased)

    def distribution(self, mean: Tensor, std: Tensor) -> StyleDistribution:
        """Give Phi_n of eq. (3) for image styles (n, C): averages, and variances about them (eq. 2).

        With `spread` "std" the latter are sqrt(variance + eps) with n - 1 in the denominator, as released."""
        correction = 1 if self.spread == "std" and len(mean) > 1 else 0
        spreads = [values.var(0, correction=correction) for values in (mean, std)]
        if self.spread == "std":
            spreads = [(variance + self.eps).sqrt() for variance in spreads]
        return StyleDistribution(
            mean=mean.mean(0).float(), std=std.mean(0).float(),
            mean_spread=spreads[0].float(), std_spread=spreads[1].float(),
        )  # fmt: skip

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Mapping[str, Inbox], State]:
        """Step 1: give each participant `received` others' information, nobody's to two in one turn and nobody its own.

        With fewer participants each receives what all others sent; one alone receives nothing."""
        if self.shares == "never" or len(shared) < 2:
            return {}, server
        sent = [inbox[DISTRIBUTION] for inbox in shared.values()]
        received = zip(shared, self._givers(sent, rng).tolist(), strict=True)
        return {
            name: {f"{DISTRIBUTION}.{turn}": sent[giver] for turn, giver in enumerate(givers)}
            for name, givers in received
        }, server

    def _givers(self, sent: Sequence[Artifact], rng: torch.Generator) -> Tensor:
        """Say whose information each participant receives, (participants, min(`received`, participants - 1))."""
        turns = min(self.received, len(sent) - 1)
        if self.sharing == "farthest":  # appendix E.1
            vectors = torch.stack([torch.cat(list(phi.tensors().values())) for phi in sent]).double()
            return torch.cdist(vectors, vectors).fill_diagonal_(-1).topk(turns, dim=1).indices
        steps = [derangement(len(sent), rng)]  # one cycle through all, on which `turns` steps do not come round
        while len(steps) < turns:
            steps.append(steps[0][steps[-1]])
        return torch.stack(steps, 1)

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        """Train on the client's own images, and start to count negative stds."""
        return TrainingSet.of(client.data), {**state, NEGATIVE_STDS: torch.zeros(2, dtype=torch.int64)}

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Algorithm 1, stage 2: cross-entropy behind style shifting, exploration and attention."""
        if not self.style and not self.attention:
            return super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        shifting = self.style and clock.round >= self.shift_from
        own = child(rng, "stablefdg")  # leaves the order of batches as FedAvg has it
        return LocalLearning(
            method=self, draws=ClassDraws(data=client.data, plan=self.plan, rng=own), rng=own,
            styles=self.new_styles(inbox, state) if shifting else None,
            negative_stds=state.get(NEGATIVE_STDS, torch.zeros(2, dtype=torch.int64)),
        )  # fmt: skip

    def new_styles(self, inbox: Inbox, state: State) -> StyleLaws | None:
        """Make the laws of step 2 from what was received, or None where nothing was.

        Raises TypeError for an artifact of another kind."""
        received = [inbox[slot] for slot in sorted(inbox) if slot.startswith(DISTRIBUTION)]
        if not received:
            return None
        phis = [phi for phi in received if isinstance(phi, StyleDistribution)]
        if len(phis) < len(received):
            kinds = ", ".join(artifact.kind for artifact in received)
            raise TypeError(f"stablefdg shifts to a StyleDistribution; received {kinds}.")
        vectors = [torch.stack([phi.tensors()[name] for phi in phis]) for name in PHI]
        spreads = torch.stack(vectors[2:])
        scales = spreads.sqrt() if self.spread == "variance" else spreads
        if self.shift_law == "printed":  # eps Sigma_n'(.) with eps ~ N(0, Sigma_n(.)), n being the receiver
            scales = scales.square() * state[OWN_VARIANCES].sqrt().unsqueeze(1)
        return StyleLaws(mean=vectors[0], std=vectors[1], mean_scale=scales[0], std_scale=scales[1])

    def shifted(self, maps: Tensor, styles: StyleLaws, rng: torch.Generator) -> Tensor:
        """Step 2: half of the maps (B, C, H, W) keep their style, the others get new ones.

        The new styles and the statistics that they replace pass no gradient. Raises ArtifactError where channels differ."""
        count, channels = maps.shape[:2]
        if styles.mean.shape[1] != channels:
            raise ArtifactError(
                f"a StyleDistribution of {channels} channels is expected at {self.stage}; got {styles.mean.shape[1]}."
            )
        mean, std = instance_statistics(maps.detach(), eps=self.eps, unbiased=self.unbiased)
        points = torch.cat([mean, std], 1).flatten(1)
        keeping = (count + 1) // 2
        new_mean, new_std = (drawn.to(mean) for drawn in styles.drawn(count - keeping, rng))
        if self.selection == "random":
            kept = torch.randperm(count, generator=rng)[:keeping]
        else:
            kept = greedy_seeds(points, keeping, rng)
        if self.selection == "centroids":
            centre_mean, centre_std = once_clustered(points, kept)[..., None, None].chunk(2, 1)
            new_mean, new_std = torch.cat([centre_mean, new_mean]), torch.cat([centre_std, new_std])
            return restyled(maps, mean, std, new_mean=new_mean, new_std=new_std)
        moving = torch.ones(count, dtype=torch.bool).index_fill(0, kept, False).nonzero().flatten().to(maps.device)
        moved = restyled(maps[moving], mean[moving], std[moving], new_mean=new_mean, new_std=new_std)
        return maps.index_put((moving,), moved)  # keeps channels_last, which index_copy does not

    def enriched(
        self, maps: Tensor, labels: Tensor, rng: torch.Generator, *, size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Steps 3 to 5: append `size` maps in extrapolated styles, then mix the styles of all.

        `labels` (B,) are on the CPU. Gives maps (B + size, ...), their labels, and the explored stds (size, C, 1, 1).
        Both AdaINs are one, to the last style, as released: explored stds are mixed with their sign. Where one is
        negative two AdaINs would differ, for the first one's result is turned over and has the positive std."""
        source = maps.detach() if self.gradient == "none" else maps
        mean, std = instance_statistics(source, eps=self.eps, unbiased=self.unbiased)
        new_mean, new_std = (mean, std) if self.gradient == "all" else (mean.detach(), std.detach())
        rows = oversampled_rows(labels, size, rng, balanced=self.oversample == "balanced").to(maps.device)
        far_mean, far_std = (self._explored(statistic, rows) for statistic in (new_mean, new_std))
        if size:
            maps, mean, std = (torch.cat([whole, whole[rows]]) for whole in (maps, mean, std))
            new_std = torch.cat([new_std, far_std.clamp_min(0) if self.clamp_explored else far_std])
            new_mean, labels = torch.cat([new_mean, far_mean]), torch.cat([labels, labels[rows.cpu()]])
        elif self.mix_alpha is None:
            return maps, labels, far_std
        if self.mix_alpha is not None:
            new_mean, new_std = mixed_statistics(new_mean, new_std, rng, alpha=self.mix_alpha)
        return restyled(maps, mean, std, new_mean=new_mean, new_std=new_std), labels, far_std

    def _explored(self, statistic: Tensor, rows: Tensor) -> Tensor:
        """Eqs. (4) and (5) for the oversampled `rows`, about mu_n(s^n) as printed or about the text's mu_n(s-hat^n)."""
        whole = torch.cat([statistic, statistic[rows]]) if self.explore_centre == "concatenated" else statistic
        return explored(statistic[rows], whole.mean(0, keepdim=True), level=self.exploration)


@dataclass(kw_only=True, eq=False)
class Passage:
    """One batch on its way through the network: its labels so far, on the CPU, and whether it was oversampled."""

    labels: Tensor
    balanced: BalancedPass | None
    enriched: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalLearning:
    """The objective of one client in one round; losses are those of all records, extra and oversampled ones included.

    `negative_stds` is the counter in the client's state, added to in place."""

    method: StableFDG
    draws: ClassDraws
    styles: StyleLaws | None
    negative_stds: Tensor
    rng: torch.Generator
    couples_records: bool = True  # batch statistics, mixed styles, and queries of partners

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give -log p(label) of every sample that reaches the head."""
        images, labels = self.completed(batch, model)
        passage = Passage(labels=labels, balanced=self.balanced_pass(model))
        logits = self.logits(model, model.maps(images, between=self._between(passage)), passage)
        return functional.cross_entropy(logits.float(), passage.labels.to(logits.device), reduction="none")

    def _between(self, passage: Passage) -> Between:
        """Say where in the network something happens to the maps."""
        places = {self.method.stage} if self.styles is not None else set[str]()
        places |= set(self.method.explore_at) if self.method.style else set()
        return {place: partial(self._act, place, passage) for place in places}

    def _act(self, place: str, passage: Passage, maps: Tensor) -> Tensor:
        """Shift at the end of `stage` and enrich at each stage of `explore_at`, each with `probability`."""
        if place == self.method.stage and self.styles is not None and self._fires():
            maps = self.method.shifted(maps, self.styles, self.rng)
        if place not in self.method.explore_at or not self._fires():
            return maps
        size = 0
        if not (passage.enriched and self.method.explore_once):
            size = round(self.method.oversampling * len(maps))
            if passage.balanced is not None:
                maps, size = self._joined(place, maps, passage, passage.balanced, size)
        passage.enriched = True
        maps, passage.labels, stds = self.method.enriched(maps, passage.labels, self.rng, size=size)
        self.negative_stds.add_(torch.tensor([int((stds < 0).sum()), stds.numel()]))
        return maps

    def _fires(self) -> bool:
        return float(torch.rand((), generator=self.rng)) < self.method.probability

    def logits(self, model: Classifier, maps: Tensor, passage: Passage) -> Tensor:
        """Section 3.2: highlight by the queries of partners of the same class (eqs. 7 and 8), and classify."""
        if not isinstance(model, HighlightedClassifier):
            return cast(Tensor, model.head(model.neck(maps)))
        queries, partners = model.highlighter.queries(maps), class_partners(passage.labels)
        if passage.balanced is not None:
            queries = passage.balanced.lent(queries, passage.labels)
        mixed = mixed_queries(queries, partners.to(queries.device), similarity=self.method.similarity)
        return cast(Tensor, model.head(model.highlighted(maps, mixed)))

    def completed(self, batch: Batch, model: Classifier) -> tuple[Tensor, Tensor]:
        """Appendix G: let another image of its class join where a sample of the batch has no partner.

        Gives the images and, on the CPU, the labels. A class with one image in the client's data stays alone."""
        idle = self.method.singletons != "extra" or self.method.similarity == "self"
        if idle or not isinstance(model, HighlightedClassifier):
            return batch.images, batch.labels.cpu()
        return self.draws.completed(batch, model)

    def balanced_pass(self, model: Classifier) -> BalancedPass | None:
        """Run the released code's second pass: one image per class that the client has, in random order."""
        if not isinstance(model, HighlightedClassifier) or self.method.singletons != "released":
            return None
        return BalancedPass.of(model, self.draws, stages=self.method.explore_at)

    def _joined(
        self, place: str, maps: Tensor, passage: Passage, balanced: BalancedPass, size: int
    ) -> tuple[Tensor, int]:
        """Append the balanced pass's maps of classes that occur once, at most `size`; give what is left of `size`."""
        made, passage.labels = balanced.joining(place, maps, passage.labels, most=size, rng=self.rng)
        return made, size - (len(made) - len(maps))
