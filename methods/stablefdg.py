"""StableFDG: style and attention based learning for federated domain generalization.

Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227. Section 3.1 is the style half: sharing (step 1, eqs. 1 to
3), selective shifting (step 2), feature-level oversampling (step 3, appendix G), exploration (step 4, eqs. 4 and 5)
and MixStyle (step 5). Section 3.2 is the attention half (eqs. 6 to 8), in fdgsec/nn/networks/attention.py; the
operations on a batch of maps are in fdgsec/nn/styles/feature_styles.py, draws of images by class in
fdgsec/nn/training/class_balanced_batches.py. Extends methods/style_sharing.py, which is step 1.

Shares, every round, before training: each participant sends the four vectors Phi_n of eq. (3), computed by the current
global model up to `stage`; the server sends each participant those of `received` others, without names. A single
participant receives nothing and shifts nothing: the centralized setting of table 4 trains with steps 3 to 5 and
attention.
Differs from the paper where its formula cannot be intended: a shifted style follows N(center, Sigma) of its sender,
where step 2 multiplies by Sigma once more (`shift_law="printed"` does too); steps 3 and 4 happen once per forward pass,
and later stages only mix, since three "independent" stages could make the batch eight times as large
(`explore_once=False`). By default sigma divides by HW - 1, and queries and keys have length 1, as in the authors' code
(the preset `stablefdg-paper`, and with it every arm of its protocols, takes eqs. 1 and 8 as printed; the paper does not
say how theta_q and theta_k are drawn, and with the code's law, which is for cosines, one position would get all of the
softmax). Where the paper is silent, that code decides: explored stds may be negative (counted in the client's state,
see NEGATIVE_STDS), the gradient flows through the statistics that normalize and not through the new ones, models are
averaged uniformly. Its other deviations from the paper are options, which the preset `stablefdg-released` sets. Not
reproduced, as neither is a rule of the method and both are habits of the library below that code: the last short batch
is dropped, and the class-balanced batch is drawn once per epoch. There all clients send their styles, also those that
do not take part; here, as in Algorithm 1, line 5, participants do."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, Update
from fdgsec.methods.style_sharing import DISTRIBUTION, STAGES, StyleSharing
from fdgsec.nn.networks.attention import (
    HighlightedClassifier,
    Similarity,
    add_highlighter,
    class_partners,
    mixed_queries,
)
from fdgsec.nn.networks.classifiers import Classifier, StageHooks
from fdgsec.nn.styles.feature_styles import (
    StyleLaws,
    apply_style,
    explored,
    greedy_seeds,
    instance_statistics,
    kmeans_step,
    mixed_statistics,
    oversampled_rows,
)
from fdgsec.nn.training.batches import Batch, TrainingSet, to_device
from fdgsec.nn.training.class_balanced_batches import BalancedPass, ClassDraws
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import child

__all__ = ["DISTRIBUTION", "NEGATIVE_STDS", "ForwardPass", "LocalLearning", "StableFDG"]

NEGATIVE_STDS = "negative_stds"
"""Client-state entry: the numbers of negative and of all explored stds in its last round, (2,) int64."""


@dataclass(frozen=True, kw_only=True)
class StableFDG(StyleSharing):
    """StableFDG with its options; the preset `stablefdg-paper` sets those of the optimizer.

    `style` and `attention` switch the two halves; step 1 and its options are those of `StyleSharing`. Step 2 starts in
    round `shift_from`; half of a batch keeps its style, chosen by `selection` ("centroids": its first half, which
    takes the styles of cluster centers, as released). `probability` is that of step 2 and, at each stage of
    `explore_at`, of steps 3 to 5. `oversampling` is the number of added maps as a multiple of the batch, `oversample`
    the choice of rows; `exploration` is alpha, about `explore_center` (the mean of the batch before or after
    oversampling); `mix_alpha` is MixStyle's (None: none); `gradient` selects the statistics that pass gradients.

    Attention: `embedding` is d; `cosine` and `attention_bias` are the released code's, as are the `unused_parameters`;
    `similarity` is eq. (8) or one of its halves. `singletons` selects the query for a sample that is alone in its
    class: that of another image of the class from the client's data, which is added to the batch ("extra", appendix
    G); its own ("self"); or, as released, one of a second pass over one image per class, whose maps may be added in
    step 3 and whose queries, wrongly ordered, replace its own."""

    weights: Literal["size", "uniform"] = "uniform"
    attention: bool = True
    shift_from: int = 0
    selection: Literal["k-means++", "random", "centroids"] = "k-means++"
    probability: float = 0.5
    explore_at: tuple[str, ...] = ("stage1", "stage2", "stage3")
    explore_once: bool = True
    oversampling: float = 1.0
    oversample: Literal["balanced", "random"] = "balanced"
    exploration: float = 3.0
    explore_center: Literal["batch", "concatenated"] = "batch"
    clamp_explored: bool = False
    mix_alpha: float | None = 0.1
    gradient: Literal["normalization", "none", "all"] = "normalization"
    embedding: int = 30
    cosine: bool = True
    attention_bias: bool = False
    unused_parameters: bool = False
    similarity: Similarity = "mixed"
    singletons: Literal["extra", "self", "released"] = "extra"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not set(self.explore_at) <= set(STAGES):
            raise UsageError(f"stablefdg acts at {', '.join(STAGES)}; got explore_at = {self.explore_at!r}.")
        if not 0 <= self.probability <= 1 or min(self.oversampling, self.shift_from) < 0:
            raise UsageError(
                "stablefdg needs probability in [0, 1], and oversampling, shift_from of at least 0; got "
                f"{self.probability}, {self.oversampling}, {self.shift_from}."
            )
        if self.embedding < 1 or (self.mix_alpha is not None and self.mix_alpha <= 0):
            raise UsageError(
                "stablefdg needs embedding >= 1 and mix_alpha > 0 (or none: no MixStyle); got "
                f"{self.embedding}, {self.mix_alpha}."
            )

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method, whose objective would be ignored."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("stablefdg has its own local objective; leave the local method out.")

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """Section 3.2: the attention highlighter and a head for the joined features."""
        if not self.attention:
            return network
        return add_highlighter(
            network, embedding=self.embedding, cosine=self.cosine, bias=self.attention_bias,
            unused=self.unused_parameters, rng=rng,
        )  # fmt: skip

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        """The client's own images; resets the count of negative stds."""
        counted = torch.zeros_like(state.get(NEGATIVE_STDS, torch.zeros(2, dtype=torch.int64)))
        return TrainingSet.of(client.data), {**state, NEGATIVE_STDS: counted}

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """FedAvg's, with negative stds counted on the network's device: no step waits for the count."""
        counted = torch.zeros(2, dtype=torch.int64, device=model.blueprint.device)
        state = {**state, NEGATIVE_STDS: counted}
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        return update, {**state, NEGATIVE_STDS: state[NEGATIVE_STDS].cpu()}

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Algorithm 1, stage 2: cross-entropy after style shifting, exploration and attention."""
        if not self.style and not self.attention:
            return super().objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        shifting = self.style and clock.round >= self.shift_from
        own = child(rng, "stablefdg")  # keeps the order of batches as in FedAvg
        return LocalLearning(
            method=self, draws=ClassDraws(data=client.data, plan=self.plan, rng=own), rng=own,
            styles=self.new_styles(inbox, state) if shifting else None,
            negative_stds=state.get(NEGATIVE_STDS, torch.zeros(2, dtype=torch.int64)),
        )  # fmt: skip

    def shift_styles(self, maps: Tensor, styles: StyleLaws, rng: torch.Generator) -> Tensor:
        """Step 2: half of the maps (B, C, H, W) keep their styles, the others get new ones.

        Neither the new styles nor the statistics that they replace pass gradients. Raises ArtifactError where channels
        differ."""
        count, channels = maps.shape[:2]
        if styles.mean.shape[1] != channels:
            raise ArtifactError(
                f"a StyleDistribution of {channels} channels is expected at {self.stage}; got {styles.mean.shape[1]}."
            )
        mean, std = instance_statistics(maps.detach(), eps=self.eps, unbiased=self.unbiased)
        points = torch.cat([mean, std], 1).flatten(1)
        keeping = (count + 1) // 2
        new_mean, new_std = styles.drawn(count - keeping, rng, like=mean)
        if self.selection == "random":
            kept = torch.randperm(count, generator=rng)[:keeping]
        else:
            kept = greedy_seeds(points, keeping, rng)
        if self.selection == "centroids":
            center_mean, center_std = kmeans_step(points, kept)[..., None, None].chunk(2, 1)
            new_mean, new_std = torch.cat([center_mean, new_mean]), torch.cat([center_std, new_std])
            return apply_style(maps, mean, std, new_mean=new_mean, new_std=new_std)
        moving = torch.ones(count, dtype=torch.bool).index_fill(0, kept, False).nonzero().flatten()
        moving = to_device(moving, maps.device)
        moved = apply_style(maps[moving], mean[moving], std[moving], new_mean=new_mean, new_std=new_std)
        return maps.index_put((moving,), moved)  # keeps channels_last, which index_copy does not

    def explore_styles(
        self, maps: Tensor, labels: Tensor, rng: torch.Generator, *, size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Steps 3 to 5: append `size` maps in extrapolated styles, then mix the styles of all.

        `labels` (B,) are on the CPU. Returns maps (B + size, ...), their labels, and the explored stds (size, C, 1, 1).
        One AdaIN to the final style replaces both AdaINs, as released: explored stds are mixed with their sign. With a
        negative std two AdaINs would differ, because the result of the first is flipped and has the positive std."""
        source = maps.detach() if self.gradient == "none" else maps
        mean, std = instance_statistics(source, eps=self.eps, unbiased=self.unbiased)
        new_mean, new_std = (mean, std) if self.gradient == "all" else (mean.detach(), std.detach())
        drawn = oversampled_rows(labels, size, rng, balanced=self.oversample == "balanced")
        rows = to_device(drawn, maps.device)
        far_mean, far_std = (self._explore(statistic, rows) for statistic in (new_mean, new_std))
        if size:
            maps, mean, std = (torch.cat([whole, whole[rows]]) for whole in (maps, mean, std))
            new_std = torch.cat([new_std, far_std.clamp_min(0) if self.clamp_explored else far_std])
            new_mean, labels = torch.cat([new_mean, far_mean]), torch.cat([labels, labels[drawn]])
        elif self.mix_alpha is None:
            return maps, labels, far_std
        if self.mix_alpha is not None:
            new_mean, new_std = mixed_statistics(new_mean, new_std, rng, alpha=self.mix_alpha)
        return apply_style(maps, mean, std, new_mean=new_mean, new_std=new_std), labels, far_std

    def _explore(self, statistic: Tensor, rows: Tensor) -> Tensor:
        """Eqs. (4) and (5) for the oversampled `rows`, about mu_n(s^n) as printed or mu_n(s-hat^n) as in the text."""
        whole = torch.cat([statistic, statistic[rows]]) if self.explore_center == "concatenated" else statistic
        return explored(statistic[rows], whole.mean(0, keepdim=True), level=self.exploration)


def count_negative(counted: Tensor, negative: Tensor, explored: Tensor | int) -> None:
    """Add to NEGATIVE_STDS, in place: how many stds are `negative`, of how many."""
    counted[0] += negative.sum().to(counted.device)
    counted[1] += explored.to(counted.device) if isinstance(explored, Tensor) else explored


@dataclass(kw_only=True, eq=False)
class ForwardPass:
    """The state of one batch in a forward pass: its current labels, on the CPU, and whether it was oversampled."""

    labels: Tensor
    balanced: BalancedPass | None
    enriched: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalLearning:
    """The objective of one client in one round; losses include those of extra and oversampled records.

    `negative_stds` is the counter in the client's state, updated in place."""

    method: StableFDG
    draws: ClassDraws
    styles: StyleLaws | None
    negative_stds: Tensor
    rng: torch.Generator
    couples_records: bool = True  # batch statistics, mixed styles, and queries of partners

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """-log p(label) of every sample at the head, (samples,)."""
        images, labels = self.with_partners(batch, model)
        passage = ForwardPass(labels=labels, balanced=self.balanced_pass(model))
        logits = self.logits(model, model.maps(images, between=self._between(passage)), passage)
        return functional.cross_entropy(logits.float(), to_device(passage.labels, logits.device), reduction="none")

    def _between(self, passage: ForwardPass) -> StageHooks:
        """The hooks by stage: those at which maps are shifted or explored."""
        places = {self.method.stage} if self.styles is not None else set[str]()
        places |= set(self.method.explore_at) if self.method.style else set()
        return {place: partial(self._apply_steps, place, passage) for place in places}

    def _apply_steps(self, place: str, passage: ForwardPass, maps: Tensor) -> Tensor:
        """Shift styles at the end of `stage` and explore at each stage of `explore_at`, each with `probability`."""
        if place == self.method.stage and self.styles is not None and self._occurs():
            maps = self.method.shift_styles(maps, self.styles, self.rng)
        if place not in self.method.explore_at or not self._occurs():
            return maps
        size = 0
        if not (passage.enriched and self.method.explore_once):
            size = round(self.method.oversampling * len(maps))
            if passage.balanced is not None:
                maps, size = self._append_balanced(place, maps, passage, passage.balanced, size)
        passage.enriched = True
        maps, passage.labels, stds = self.method.explore_styles(maps, passage.labels, self.rng, size=size)
        count_negative(self.negative_stds, stds < 0, stds.numel())
        return maps

    def _occurs(self) -> bool:
        return float(torch.rand((), generator=self.rng)) < self.method.probability

    def logits(self, model: Classifier, maps: Tensor, passage: ForwardPass) -> Tensor:
        """Section 3.2: apply attention with queries of partners of the same class (eqs. 7 and 8), and classify."""
        if not isinstance(model, HighlightedClassifier):
            return cast(Tensor, model.head(model.neck(maps)))
        queries, partners = model.highlighter.queries(maps), class_partners(passage.labels)
        if passage.balanced is not None:
            queries = passage.balanced.lent(queries, passage.labels)
        mixed = mixed_queries(queries, to_device(partners, queries.device), similarity=self.method.similarity)
        return cast(Tensor, model.head(model.highlighted(maps, mixed)))

    def with_partners(self, batch: Batch, model: Classifier) -> tuple[Tensor, Tensor]:
        """Appendix G: add another image of the class for each sample of the batch without a partner.

        Returns the images and, on the CPU, the labels. A class with a single image in the client's data gets none."""
        idle = self.method.singletons != "extra" or self.method.similarity == "self"
        if idle or not isinstance(model, HighlightedClassifier):
            return batch.images, batch.labels_on_cpu()
        return self.draws.completed(batch, model)

    def balanced_pass(self, model: Classifier) -> BalancedPass | None:
        """Run the released code's second pass: one image per class that the client has, in random order."""
        if not isinstance(model, HighlightedClassifier) or self.method.singletons != "released":
            return None
        return BalancedPass.of(model, self.draws, stages=self.method.explore_at)

    def _append_balanced(
        self, place: str, maps: Tensor, passage: ForwardPass, balanced: BalancedPass, size: int
    ) -> tuple[Tensor, int]:
        """Append the balanced pass's maps of classes that occur once, at most `size`; return the rest of `size`."""
        made, passage.labels = balanced.joining(place, maps, passage.labels, most=size, rng=self.rng)
        return made, size - (len(made) - len(maps))
