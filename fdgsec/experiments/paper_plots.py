"""The papers' figures for one's own model, drawn from a finished run: `fdgsec plot KIND RUN`."""

from collections.abc import Callable, Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.experiments.attack_run.finished_run import Finished
from fdgsec.federation.global_model import GlobalModel
from fdgsec.nn.networks.attention import attention_scores
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.nn.training.training_loop import logits
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

SHOWN = 8
PER_DOMAIN = 150
GRID = 13


def attention(run: Finished) -> Canvas:
    """Attention score maps over images of the unseen domain (StableFDG figures 5 and 6).

    Raises UsageError for a network without a highlighter."""
    images = _some(run.world.unseen(), SHOWN, run).pixels()
    scores = attention_scores(run.model.module().cpu(), as_float(images))
    spread = functional.interpolate(scores.unsqueeze(1), size=images.shape[2:], mode="bilinear", align_corners=False)
    canvas = Canvas(figsize=(1.5 * len(images), 3.4), layout="constrained")
    grid = canvas.subplots(2, len(images), squeeze=False)
    for column, (image, heat) in enumerate(zip(images, spread[:, 0], strict=True)):
        for row in (0, 1):
            grid[row, column].imshow(image.permute(1, 2, 0).numpy())
            grid[row, column].set_axis_off()
        grid[1, column].imshow(heat.numpy(), cmap="jet", alpha=0.5)
    canvas.suptitle(f"attention scores on {run.world.target_name}, which no client has seen", fontsize=9)
    return canvas


def tsne(run: Finished) -> Canvas:
    """Penultimate features in two dimensions, by domain and by class (FedAlign figure 3, FISC figure 9)."""
    dataset = run.world.dataset
    parts = [_some(dataset.of_domain(domain), PER_DOMAIN, run) for domain in (*run.world.sources, run.world.target)]
    features = torch.cat([_features(run.model, part) for part in parts])
    labels = torch.cat([part.labels for part in parts])
    domains = torch.cat([part.domains for part in parts])
    if len(features) < 10:
        raise UsageError(f"t-SNE needs at least 10 images; got {len(features)}.")
    perplexity = min(30.0, (len(features) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=run.config.seed).fit_transform(features.numpy())
    canvas = Canvas(figsize=(9, 4.2), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for axes, values, names, title in (
        (left, domains, dataset.domain_names, f"by domain ({run.world.target_name} unseen)"),
        (right, labels, dataset.class_names, "by class"),
    ):
        for number in torch.unique(values).tolist():
            chosen = (values == number).numpy()
            axes.scatter(placed[chosen, 0], placed[chosen, 1], s=7, alpha=0.7, label=str(names[number]))
        axes.set_title(title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        if len(torch.unique(values)) <= 12:
            axes.legend(fontsize=7, markerscale=1.5, loc="upper right")
    return canvas


def loss_surface(run: Finished) -> Canvas:
    """The loss in the plane through the global model and two clients' models, on sources and unseen (FISC figure 1)."""
    names, models = zip(*sorted(run.updates().items()), strict=True)
    if len(models) < 2:
        raise UsageError("a plane needs two clients' models beside the global one; this run has one client.")
    first, second = _furthest(models)
    u, v, places = plane(run.model.state.tensors(), models[first].state.tensors(), models[second].state.tensors())
    reach = 1.5 * float(torch.tensor(places).abs().max())
    ticks = torch.linspace(-reach, reach, GRID).tolist()
    sources = run.world.seen()
    canvas = Canvas(figsize=(9, 4.2), layout="constrained")
    for axes, data, title in zip(
        canvas.subplots(1, 2), (sources, run.world.unseen()), ("source domains", run.world.target_name), strict=True
    ):
        chosen = _some(data, 128, run)
        heights = [[_loss(_moved(run.model, u, v, x, y), chosen) for x in ticks] for y in ticks]
        drawn = axes.contourf(ticks, ticks, torch.tensor(heights).log10().numpy(), levels=18, cmap="coolwarm")
        canvas.colorbar(drawn, ax=axes, label="log10 of the mean loss")
        marked = {"global": (0.0, 0.0), names[first]: places[0], names[second]: places[1]}
        for name, (x, y) in marked.items():
            axes.plot(x, y, "k*" if name == "global" else "ko")
            axes.annotate(name, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)
        axes.set_title(f"loss on {title}", fontsize=9)
        axes.set_xlabel("distance from the global model")
    return canvas


def domain_gap(run: Finished) -> Canvas:
    """Distance between clients' styles: Gram matrices of encoder features (FedDAG figure 13, after Gatys et al.)."""
    shown = run.clients[:20]
    encoder = encoder_named(run.config.encoder)
    grams = []
    for client in shown:
        with torch.inference_mode():
            maps = torch.cat(
                [encoder.encode(as_float(part)) for part in _some(client.data, 64, run).pixels().split(16)]
            )
        rows = maps.flatten(2)
        grams.append((rows @ rows.transpose(1, 2) / rows.shape[2]).mean(0))
    gaps = torch.tensor([[float((one - other).norm()) for other in grams] for one in grams])
    names = [f"{client.name.removeprefix('client:')} {_domains_of(client.data)}" for client in shown]
    canvas = Canvas(figsize=(1.8 + 0.5 * len(shown), 1.4 + 0.5 * len(shown)), layout="constrained")
    axes = canvas.subplots()
    drawn = axes.imshow(gaps.numpy(), cmap="viridis")
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    canvas.colorbar(drawn, ax=axes, label=f"distance of mean Gram matrices ({run.config.encoder})")
    axes.set_title("domain gap between clients", fontsize=9)
    return canvas


def style_histogram(run: Finished) -> Canvas:
    """Channel means and stds of a client's images, before and after transfer (CCST, FISC).

    Raises UsageError for a method that transfers no style."""
    client = run.clients[0]
    before, after = transferred(run)
    encoder = encoder_named(run.config.encoder)
    canvas = Canvas(figsize=(9, 3.6), layout="constrained")
    panels: Sequence[Axes] = canvas.subplots(1, 2)
    with torch.inference_mode():
        styles = [[encoder.encode(as_float(part)) for part in images.split(16)] for images in (before, after)]
    for label, maps in zip(("before transfer", "after transfer"), styles, strict=True):
        rows = torch.cat(maps).flatten(2)
        for axes, values in zip(panels, (rows.mean(2), rows.std(2)), strict=True):
            axes.hist(values.flatten().numpy(), bins=60, density=True, alpha=0.5, label=label)
    for axes, name in zip(panels, ("mean", "std"), strict=True):
        axes.set_xlabel(f"channel {name} ({run.config.encoder})")
        axes.set_ylabel("density")
        axes.legend(fontsize=8, loc="upper right")
    canvas.suptitle(f"styles of {client.name} ({_domains_of(client.data)})", fontsize=9)
    return canvas


def transferred(run: Finished) -> tuple[Tensor, Tensor]:
    """Images of the first client, and what its method makes of them, both (n, 3, H, W) uint8.

    Raises UsageError for a method that transfers no style."""
    client = run.clients[0]
    rng = stream(run.config.seed, "world", "fit", 0, client.name)
    training_set = getattr(run.method, "training_set", None)
    made = None if training_set is None else training_set(client, inbox=run.inbox(client.name), state={}, rng=rng)[0]
    if made is not None and made.partners is not None:
        return made.images, made.partners
    if made is None or torch.equal(made.images, client.data.pixels()):
        raise UsageError(f"{run.config.method} transfers no style before it trains; ccst and fisc do.")
    return client.data.pixels(), made.images


PLOTS: Mapping[str, Callable[[Finished], Canvas]] = {
    "attention": attention,
    "tsne": tsne,
    "loss-surface": loss_surface,
    "domain-gap": domain_gap,
    "style-histogram": style_histogram,
}


def plane(
    origin: Mapping[str, Tensor], first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[tuple[float, float]]]:
    """Span a plane by two states seen from `origin`: orthonormal directions by name, and where the two states lie in
    it."""
    names = [name for name, value in origin.items() if value.is_floating_point()]
    a = {name: (first[name] - origin[name]).double() for name in names}
    b = {name: (second[name] - origin[name]).double() for name in names}

    def inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
        return float(sum((one[name] * other[name]).sum() for name in names))

    length = inner(a, a) ** 0.5
    u = {name: value / max(length, 1e-12) for name, value in a.items()}
    along = inner(b, u)
    rest = {name: b[name] - along * u[name] for name in names}
    height = inner(rest, rest) ** 0.5
    v = {name: value / max(height, 1e-12) for name, value in rest.items()}
    return u, v, [(length, 0.0), (along, height)]


def _moved(model: GlobalModel, u: Mapping[str, Tensor], v: Mapping[str, Tensor], x: float, y: float) -> GlobalModel:
    state = model.state.tensors()
    return model.with_state(
        {
            name: (value + x * u[name] + y * v[name]).to(value.dtype) if name in u else value
            for name, value in state.items()
        }
    )


def _loss(model: GlobalModel, data: DomainDataset) -> float:
    return float(functional.cross_entropy(logits(model.module(), data.pixels()), data.labels).clamp(1e-6, 1e6))


def _furthest(models: Sequence[GlobalModel]) -> tuple[int, int]:
    """The two clients whose heads lie furthest apart."""
    heads = torch.stack([model.state.tensors()["head.weight"].flatten() for model in models])
    gaps = torch.cdist(heads, heads)
    first, second = divmod(int(gaps.argmax()), len(models))
    return first, second


def _features(model: GlobalModel, data: DomainDataset) -> Tensor:
    network = model.module().cpu().eval()
    with torch.inference_mode():
        return torch.cat([network.features(as_float(part)) for part in data.pixels().split(64)])


def _some(data: DomainDataset, count: int, run: Finished) -> DomainDataset:
    order = torch.randperm(len(data), generator=stream(run.config.seed, "world", "plot"))
    return data.subset(order[:count])


def _domains_of(data: DomainDataset) -> str:
    return "+".join(str(data.domain_names[number]) for number in torch.unique(data.domains).tolist())
