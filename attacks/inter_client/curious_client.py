"""An honest-but-curious client: predicts classes, colors and images from received styles, using its own images only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeCV
from threadpoolctl import threadpool_limits
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import RowMetric, noisy_rows, row_metric
from fdgsec.attacks.statistics.standardization import standardizing_scale
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import InterpolationStyle, StyleBank
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.image_styles import encoder_named, style_transfer
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import derangement, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, GeneratedSets, Labels, Ranking, Reconstructions
from fdgsec.threats.attack import Case

ROWS = ("released", "as_if_released")
FEW_ROWS = 30  # minimum received rows whose own mean and spread beat those of another domain's images
SAME_STYLE = 1e-5  # relative distance below which a row counts as one of the client's own styles, sent as float32
AT_ONCE = 32
SIDE = 16  # pixels of a plain color: the smallest image that the judges accept
RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4)


def decoding_encoder(name: str) -> StyleEncoder | None:
    """The encoder with a decoder for styles of the encoder called `name`, if there is one."""
    encoder = encoder_named(name.removesuffix("-pre-relu"))
    return encoder if encoder.has_decoder else None


def _with_log_std(styles: Tensor) -> Tensor:
    mean, std = styles.chunk(2, dim=1)
    return torch.cat([mean, std.clamp_min(1e-6).log()], dim=1)  # rounding may leave 0


def _standardize(features: Tensor, reference: Tensor) -> NDArray[np.float64]:
    """Standardize by the mean and spread of `reference`, with a lower bound on the spread of constant coordinates."""
    return ((features - reference.mean(0)) / standardizing_scale(reference)).numpy()


def _predict(palette: RidgeCV, rows: Tensor, reference: Tensor) -> Tensor:
    found = cast("NDArray[np.float64]", palette.predict(_standardize(rows, reference)))
    return torch.from_numpy(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class StyleReader:
    """Models fitted on the client's own rows (n, 2C): class and mean color of a row, and the metric between rows.

    Where a defense acts, its noise is added to the training rows (fdgsec.attacks.statistics.defense_noise)."""

    rows: Tensor
    metric: RowMetric
    classes: LogisticRegression | None
    palette: RidgeCV
    clean: RidgeCV
    noisy: bool

    def colors(self, rows: Tensor, own: Tensor) -> Tensor:
        """Predict the mean colors (R, 3) of rows; `own` are the clean rows of the client's own images.

        Under noise, many rows are predicted in two steps, because others' images may be lighter or darker than the
        client's own: their mean, in which noise averages out, as a clean row, and each row's difference from it as a
        noisy row."""
        defense_noise = self.metric.defense_noise
        if defense_noise is None or len(rows) < FEW_ROWS:
            return _predict(self.palette, rows, self.rows)
        center, middle = rows.mean(0), self.rows.mean(0)
        differing = _predict(self.palette, rows - center + middle, self.rows)
        together = _predict(self.clean, (center - defense_noise.shift).unsqueeze(0), own)
        return differing - _predict(self.palette, middle.unsqueeze(0), self.rows) + together

    def features(self, rows: Tensor) -> Tensor:
        """The classifier's features: log stds, or plain stds where noise makes them scatter near 0."""
        return rows if self.noisy else _with_log_std(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class CuriousClient:
    """A client with the styles (n, 2C) and mean colors (n, 3) of its own images."""

    knowledge: Knowledge
    own: DomainDataset
    styles: Tensor
    colors: Tensor
    galleries: dict[int, tuple[DomainDataset, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, knowledge: Knowledge) -> "CuriousClient":
        """Encode the client's own images. Raises UsageError where there are fewer than two."""
        own = knowledge.own
        if own is None or len(own) < 2:
            raise UsageError("inter-client learns from the client's own images; it needs at least 2.")
        styles = torch.cat(knowledge.statistics(own).style(unbiased=True), dim=1)
        colors = torch.cat([
            as_float(own.pixels(rows)).mean((2, 3)) for rows in torch.arange(len(own)).split(256)
        ])  # fmt: skip
        return cls(knowledge=knowledge, own=own, styles=styles, colors=colors)

    @cached_property
    def style_reader(self) -> StyleReader:
        """Models fitted on the client's own images, when rows of single images are first read."""
        rng = stream(0, "attack", "noise on rows")  # public: describes the noise distribution only
        mean, std = self.styles.chunk(2, dim=1)
        mean, std, copies = noisy_rows(self.knowledge, self.own, mean, std, rng)
        metric = row_metric(self.knowledge, self.own, whiten=fit_whitening(self.styles))
        labels, rows = self.own.labels.repeat(copies), torch.cat([mean, std], dim=1)
        noisy, classes = self.knowledge.defended is not None, None
        with threadpool_limits(limits=1):
            if len(torch.unique(labels)) > 1:
                features = rows if noisy else _with_log_std(rows)
                classes = LogisticRegression(C=0.1, tol=1e-2, max_iter=2000, class_weight="balanced")
                classes.fit(_standardize(features, features), labels.numpy())
            clean, palette = RidgeCV(alphas=RIDGES), RidgeCV(alphas=RIDGES)
            clean.fit(_standardize(self.styles, self.styles), self.colors.double().numpy())
            palette.fit(_standardize(rows, rows), self.colors.repeat(copies, 1).double().numpy())
        return StyleReader(rows=rows, metric=metric, classes=classes, palette=palette, clean=clean, noisy=noisy)

    def rows(self, case: Case) -> Tensor | None:
        """The victim's rows of single images (R, 2C); None where the case has no candidates or shows the client's own
        images."""
        if case.question not in ROWS or case.candidates is None:
            return None
        seen = case.views[0].styles(case.victim)
        if seen is None:
            return None
        rows = torch.cat(seen, dim=1).double()
        return None if self._shows_own_images(rows, case) else rows

    def _shows_own_images(self, rows: Tensor, case: Case) -> bool:
        """Whether rows are of the client's own images: by their styles or, under a defense, by the candidates."""
        if self.knowledge.defended is not None:
            if case.question != "as_if_released" or case.candidates is None:
                return False
            rows = torch.cat(self.knowledge.statistics(case.candidates).style(unbiased=True), dim=1)
        apart = torch.cdist(rows, self.styles, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        return bool((apart <= SAME_STYLE * rows.norm(dim=1)).any())

    def read(self, number: int, case: Case, rows: Tensor, rng: torch.Generator) -> list[Answer]:
        """Predict the class, image and color of every row."""
        where, style_reader = {"rows": case.question}, self.style_reader
        answers: list[Answer] = [
            Ranking(
                case=number, slice=where, distances=torch.cdist(style_reader.metric.seen(rows), self._gallery(case))
            ),
            self._colors(number, rows, where, rng),
        ]
        if style_reader.classes is not None:
            reference = style_reader.features(rows if len(rows) >= FEW_ROWS else style_reader.rows)
            features = _standardize(style_reader.features(rows), reference)
            found = cast("NDArray[np.int64]", style_reader.classes.predict(features))
            predicted = torch.from_numpy(found).to(torch.int64)
            names = len(self.knowledge.class_names)
            answers.append(Labels(case=number, slice=where, predicted=predicted, of="labels", classes=names))
        return answers

    def _gallery(self, case: Case) -> Tensor:
        """The whitened styles of a case's candidates, (G, 2C), cached for all cases that share them."""
        gallery = case.candidates
        assert gallery is not None
        if id(gallery) not in self.galleries:
            styles = torch.cat(self.knowledge.statistics(gallery).style(unbiased=True), dim=1)
            self.galleries[id(gallery)] = (
                gallery,
                self.style_reader.metric.placed(styles),
            )  # the reference keeps the id unique
        return self.galleries[id(gallery)][1]

    def _colors(self, number: int, rows: Tensor, where: Mapping[str, str | int], rng: torch.Generator) -> Answer:
        """Every image's mean color by ridge regression, with controls from the client's own: mean, random, nearest in
        style."""
        style_reader = self.style_reader
        read = style_reader.colors(rows, self.styles).float().clamp(0, 1)
        near = torch.cdist(style_reader.metric.seen(rows), style_reader.metric.placed(self.styles)).argmin(1)
        drawn = torch.randint(len(self.colors), (len(rows),), generator=rng)
        others = read[derangement(len(rows), rng)] if len(rows) > 1 else self.colors[drawn]
        controls = {
            "B0": self.colors.mean(0).expand_as(read), "B1": self.colors[drawn], "B2": self.colors[near],
            "B3": others,
        }  # fmt: skip
        return Reconstructions(
            case=number, slice={**where, "drawn": "mean color"}, images=_solid_colors(read),
            controls={name: _solid_colors(colors) for name, colors in controls.items()},
        )  # fmt: skip

    def restyle(self, number: int, case: Case, rng: torch.Generator, *, images: int) -> list[Answer]:
        """The client's own images in the victim's received style, in that of another client, and unchanged."""
        encoder = decoding_encoder(self.knowledge.encoder)
        if case.question not in ROWS or encoder is None:
            return []
        bank, one = case.views[0].latest(StyleBank), case.views[0].latest(InterpolationStyle)
        styles: dict[str, Tensor] = {}
        if bank is not None:
            rows, mine = torch.cat([bank.mean, bank.std], dim=1), bank.owner == int(case.victim.partition(":")[2])
            if not bool(mine.any()) or self._shows_own_images(rows[mine].double(), case):
                return []
            foreign = ~mine & (bank.owner != 0)  # the adversary is client 0
            styles = {"stylized": rows[mine], "stylized as another": rows[foreign]}
        elif one is not None:
            styles = {"stylized": torch.cat([one.mean, one.std]).unsqueeze(0)}
        content = as_float(self.own.pixels(torch.randperm(len(self.own), generator=rng)[:images]))
        made = {name: _restyle(encoder, content, rows, rng) for name, rows in styles.items() if len(rows)}
        where = {"rows": case.question, "received": (InterpolationStyle if bank is None else StyleBank).kind}
        sets = {**made, "own images": content} if made else {}
        return [GeneratedSets(case=number, slice={**where, "set": n}, images=i, name=n) for n, i in sets.items()]


def _solid_colors(colors: Tensor) -> Tensor:
    """Images (R, 3, SIDE, SIDE) of one color each."""
    return colors.float()[:, :, None, None].expand(-1, -1, SIDE, SIDE).contiguous()


@torch.inference_mode()
def _restyle(encoder: StyleEncoder, images: Tensor, rows: Tensor, rng: torch.Generator) -> Tensor:
    """Give each image the style of a random row, (n, 3, H, W)."""
    drawn = rows[torch.randint(len(rows), (len(images),), generator=rng)]
    parts = [
        style_transfer(encoder, part, *style.chunk(2, dim=1))
        for part, style in zip(images.split(AT_ONCE), drawn.split(AT_ONCE), strict=True)
    ]
    return torch.cat(parts).clamp(0, 1).clone()
