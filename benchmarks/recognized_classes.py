"""What does a reconstruction show of an image's class, by the prior's images and by what reconstructs?

    python -m benchmarks.recognized_classes --domain photo --auxiliary 150 500 1300

Rows of single images of one domain of a dataset, as `ccst-single` would release them, equally many of every class.
Style inversion reconstructs them with nested priors of auxiliary images of that domain, and its recognizer names a
class in each picture (docs/attacks/style-inversion.md). No controls are run. Printed are the classes recognized, and
gains in PSNR. `--pictures` stores a sheet: true images, those of the nearest styles, and each loss with each prior."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.data.catalog import load_dataset
from fdgsec.data.domains import DomainDataset, downsample, join
from fdgsec.data.roles import split_roles
from fdgsec.data.sampling import stratified
from fdgsec.experiments.simulated_runs.simulator import blinded
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Labels, Prediction, Reconstructions
from fdgsec.threats.attack import Answers, Case, Truth
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload

SHARES = (0.10, 0.10, 0.80)
"""Images of the domain from which rows are drawn (the first two), and auxiliary ones."""
SHOWN = 8
"""Rows on the sheet."""
KEYS = ("name", "auxiliary", "loss", "class_from", "of", "over")


def asked(images: DomainDataset, encoder: str, seed: int) -> tuple[Case, Truth]:
    """The rows of `images`, with the truth about them."""
    mean, std = statistics(encoder, images).style(unbiased=True)
    order = torch.randperm(len(images), generator=stream(seed, "world", "order"))
    domain = str(images.domain_names[int(images.domains[0])])
    case = Case(
        question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),), victim="client:0",
        records=len(images), domain=domain, slice={"domain": domain}, candidates=blinded(images.subset(order)),
    )  # fmt: skip
    truth = Truth(rows=order.argsort(), images=images.pixels(), labels=images.labels, domains=images.domains)
    return case, truth


def sheet(true: Tensor, answers: Answers) -> Image.Image:
    """One column per row of the case: the true image, control B2, and every reconstruction."""
    drawn = [answer for answer in answers if isinstance(answer, Reconstructions)]
    side = int(drawn[0].images.shape[-1])
    chosen = torch.linspace(0, len(true) - 1, SHOWN).long()
    lines = [downsample(true, (side, side))]
    for number, answer in enumerate(drawn):
        lines += [answer.controls["B2"], answer.images] if not number else [answer.images]
    stacked = torch.stack([line[chosen] for line in lines])
    flat = (stacked.permute(0, 3, 1, 4, 2).reshape(len(lines) * side, SHOWN * side, 3) * 255).round().to(torch.uint8)
    return Image.fromarray(flat.numpy())


def table(rows: Sequence[Measurement]) -> str:
    """The measured rows that answer the question, one a line."""
    lines = []
    for row in rows:
        kept = row.name in ("balanced_accuracy", "style_residual", "recognized_public") or (
            row.name == "psnr_gain" and row.slice["over"] in ("B0", "B2", "B3")
        )
        if kept and row.value is not None:
            interval = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
            where = ", ".join(str(row.slice[key]) for key in KEYS[1:] if key in row.slice)
            lines.append(f"{row.name:18} {where:45} {row.value:.3f}{interval} n={row.n}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="pacs")
    parser.add_argument("--domain", default="photo")
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--losses", nargs="+", default=["mse", "retrieved"])
    parser.add_argument("--auxiliary", nargs="*", type=int, default=[150, 500])
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--refinement", type=int, default=None)
    parser.add_argument("--per-class", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, default=None)
    given = parser.parse_args()
    dataset = load_dataset(given.dataset, image_size=given.image_size, seed=given.seed).of_domain(given.domain)
    roles = split_roles(dataset, rng=stream(given.seed, "world", "roles"), fractions=SHARES)
    victims = join([roles.federation, roles.held_out])
    victims = stratified(victims, given.per_class, stream(given.seed, "world", "rows"))
    knowledge = Knowledge(
        statistics=lambda dataset: statistics(given.encoder, dataset), encoder=given.encoder,
        class_names=dataset.class_names, domain_names=dataset.domain_names, auxiliary=roles.auxiliary, unseen=None,
        own=None,
    )  # fmt: skip
    attack = StyleInversion(
        losses=tuple(given.losses), priors=("intra",), auxiliary=tuple(given.auxiliary), draws=given.draws,
        refinement=given.refinement,
    )  # fmt: skip
    case, truth = asked(victims, given.encoder, given.seed)
    print(f"{len(victims)} rows; {len(roles.auxiliary)} auxiliary images of {given.domain}", flush=True)
    found = attack.run([case], knowledge, stream(given.seed, "attack", attack.name))
    answers = [answer for answer in found if isinstance(answer, Labels | Prediction | Reconstructions)]
    print(table(Judge().measure(answers, [case], [truth], stream(given.seed, "world", "judge"))), flush=True)
    if given.pictures is not None:
        sheet(victims.pixels(), answers).save(given.pictures)


if __name__ == "__main__":
    main()
