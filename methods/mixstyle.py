"""MixStyle: domain generalization with MixStyle.

Zhou, Yang, Qiao & Xiang, ICLR 2021, https://arxiv.org/abs/2104.02008. While training, the feature maps of an image get
a style mixed from its own and another image's: means and stds mixed with lambda ~ Beta(alpha, alpha) per image, then
AdaIN to them. Extends methods/fedavg.py; the operation is fdgsec.nn.styles.feature_styles.mixed_styles.

Shares: what FedAvg shares.
Differs from the paper: partners are drawn by a random permutation inside the client's own batch (the paper's variant
without domain labels, and what CCST and StableFDG compare with); its other variant mixes two domains of one batch,
which a client with one domain does not have. As in the authors' code the statistics carry no gradient, divide by HW - 1
and hold eps = 1e-6, and each place acts with `probability` on a whole batch, never at test time."""

from dataclasses import dataclass
from functools import partial

import torch

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.feature_styles import StageStyleObjective, check_places, mixed_styles
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class MixStyle(FedAvg):
    """MixStyle; `places` are the stages after which it acts (the authors': 1 to 3 for PACS, 1 and 2 for OfficeHome)."""

    places: tuple[str, ...] = ("stage1", "stage2", "stage3")
    probability: float = 0.5
    alpha: float = 0.1

    def __post_init__(self) -> None:
        check_places(self.places, method="mixstyle")
        if not 0 <= self.probability <= 1 or self.alpha <= 0:
            raise UsageError(
                f"mixstyle needs probability in [0, 1] and alpha > 0; got {self.probability} and {self.alpha}."
            )
        if self.local is not None:
            raise UsageError("mixstyle has its own local objective; leave the local method out.")

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """Cross-entropy under mixed styles."""
        return StageStyleObjective(self.places, self.probability, partial(mixed_styles, alpha=self.alpha), rng)
