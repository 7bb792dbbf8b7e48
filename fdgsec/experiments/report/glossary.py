"""The words of a report: every measurement by name, slice entries, controls and verdicts, each in a sentence or two.

docs/metrics.md has the definitions with their intervals."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdgsec.experiments.report.schema import AttackReport

MEASUREMENTS: Mapping[str, str] = {
    "auc": "Area under the ROC curve: how often a member scores above a non-member. Guessing has .5, certainty 1.",
    "exposed_auc": "AUC for those images that a client's release depends on most.",
    "exposed_tpr_at_1pct_fpr": "TPR@1%FPR for those images that a client's release depends on most.",
    "tpr_at_1pct_fpr": "TPR@1%FPR: the share of members found when 1% of the non-members are taken for members.",
    "tpr_at_01pct_fpr": "TPR@0.1%FPR: the share of members found when one non-member in 1,000 is taken for a member.",
    "one_candidate_auc": "The AUC that a test of one candidate at a time can be expected to have.",
    "d_eff": "Effective dimension: how many independent numbers a release amounts to.",
    "exact_list": "The share of clients whose list of images is named without a single error.",
    "precision": "The share of members among the images that the attack names.",
    "top1": "How often the true candidate (or client) is the nearest. The baseline is 1 in the number of candidates.",
    "top5": "How often the true candidate is among the five nearest.",
    "median_rank": "The median rank of the true candidate; 1 is best.",
    "balanced_accuracy": "The mean over classes of the share told right. The baseline is 1 in the number of classes.",
    "accuracy": "The share of correct answers. The baseline is the same answers in random order.",
    "majority_share": "The share of the most frequent class: the accuracy of always naming it.",
    "relative_error": "The size of the error relative to the true value; 0 is perfect.",
    "mae": "Mean absolute error of estimated shares; 0 is perfect.",
    "psnr": "Peak signal-to-noise ratio of a reconstruction, in dB: higher is closer to the true image.",
    "psnr_gain": "PSNR above that of a control without the victim's release (slice `over`), in dB.",
    "ssim": "Structural similarity of reconstruction and true image; 1 is identical.",
    "ssim_gain": "SSIM above that of a control without the victim's release.",
    "perceptual_mini": "Distance of reconstruction and true image in the features of the encoder mini.",
    "perceptual_mini_gain": "That distance compared with a control's; above 0 is closer to the true image.",
    "lpips_alex": "LPIPS, a perceptual distance (AlexNet).",
    "lpips_alex_gain": "LPIPS compared with a control's; above 0 is closer to the true image.",
    "gallery_top1": "How often the true image is the nearest to its reconstruction among the images of its domain.",
    "gallery_top5": "How often the true image is among the five nearest to its reconstruction.",
    "recognized_public": "The share of reconstructions of which a classifier trained on public images tells the class.",
    "exposed_fraction": "The share of a client's images that are identified as published.",
    "expected_exposed_fraction": "The share of a client's images that so many rounds publish on average.",
    "distinct_fraction": "The number of distinct published rows over the number of a client's images.",
    "palette_emd": "Earth mover's distance between inferred and true color palettes.",
    "palette_emd_gain": "That distance compared with a control's.",
    "lag1_autocorrelation": "Similarity of neighboring published rows.",
    "lag1_p_value": "How often a random order has as much similarity between neighbors.",
    "between_client_sd": "Standard deviation of styles between clients: the unit of a noise axis.",
    "influence": "How far one client moves the published style.",
    "largest_influence": "How far the most influential client moves the published style.",
    "outlier_influence": "How far an outlying client moves the published style.",
    "clients_in_pairs": "Clients whose cluster has one other member.",
    "clusters": "The number of clusters of clients' vectors.",
    "smallest_cluster": "The size of the smallest cluster.",
    "largest_cluster": "The size of the largest cluster.",
    "singleton_clusters": "Clusters of a single client, whose vector is published.",
    "verbatim_fraction": "The share of published numbers that equal a client's bit by bit.",
    "largest_source_fraction": "The largest share of published numbers that are copied from one client or cluster.",
    "style_residual": "How far the style of an optimized picture remains from its target.",
    "converged_fraction": "The share of optimizations that converged.",
    "restart_spread": "How much pictures from different starts differ.",
    "restart_share": "The share of the spread between pictures that comes from the start.",
    "reference_accuracy": "What a reference run leads one to expect of the accuracy.",
    "gradient_distance": "Distance between the fitted gradient and the released one.",
    "honest_accuracy_drop": "Accuracy without a forged message minus accuracy with it, paired by seed.",
    "refused": "The share of runs that ended with an error that names the forger.",
    "ended": "The share of runs that a forged message ended otherwise; without one they finish.",
    "not_finite": "The share of runs that finished with a NaN or an infinity.",
    "displacement": "How far a forged message moves what honest clients receive.",
    "forger_weight": "The forger's weight in the mean of models.",
    "picked_share": "How often the forger's rows are drawn from pools.",
    "picked_in_cluster": "How often the forger's rows are drawn, of draws from the same clusters.",
    "fid": "Frechet distance of Inception features between sets of images; realism, not identity.",
    "kid": "Kernel distance of Inception features between sets of images; realism, not identity.",
    "inception_score": "How confident and varied a classifier's answers about a set of images are.",
    "log_inception_score": "The logarithm of the inception score.",
    "rank_percentile": "The rank of the truth as a share of all candidates; .5 without information.",
    "differing_runs": "The share of runs with an honest message that differ from those without a forgery.",
}
"""Measurements by their names in reports."""

PATTERNS: Mapping[str, str] = {
    r"frechet_.+": "Frechet distance of the named network's features between sets of images.",
    r"kernel_.+": "Kernel distance of the named network's features between sets of images.",
    r"lpips_.+": "LPIPS, a perceptual distance, with the named network.",
}

WORDS: Mapping[str, str] = {
    "baseline": "What the same attack reaches without the victim's message: exact, or measured by the same attack.",
    "95% interval": "Where the true value lies with 95% confidence, over clients or images; docs/metrics.md says how.",
    "leaks slightly": "The interval excludes the baseline, also after Holm's correction over the report.",
    "leaks": "It also excludes the baseline plus a margin (.05 for AUC; the baseline again for hit rates).",
    "leaks strongly": "It lies half way or more from the baseline to a perfect attack.",
    "no leak shown": "The interval reaches nothing beyond the margin: it holds the baseline, or lies on its safe side.",
    "undecided": "The interval contains both the baseline and a leak, the leak does not pass Holm's correction, or "
    "answers are wrong more often than the baseline.",
    "no evidence of protection": "The attack may not read the release, or ignores a defense: silence says nothing.",
    "not applicable": "The attack reads nothing that was sent, or nothing that this adversary sees or knows.",
    "not asked of this adversary": "The question's attacks need another one (--adversary); it is no all-clear.",
    "could not run": "The attack applies, but lacks images, models or runs that it asks for: it says nothing.",
    "positive control": "Planted information that the attack must find.",
    "control of a single variant": "A positive control that speaks for one way to draw pictures: where it failed, only "
    "this variant's rows about what was planted are no evidence.",
    "negative control": "Exchanged messages, in which the attack must find nothing.",
    "mean auxiliary image": "A guess without the message (B0 in report.json): the mean of the adversary's images.",
    "random auxiliary image": "A guess without the message (B1 in report.json): one of the adversary's images.",
    "nearest auxiliary image": "The adversary's image whose style is nearest to the message (B2 in report.json).",
    "unrelated reconstruction": "What the same attack draws from another image's style, or with an untrained generator "
    "(B3 in report.json).",
    "reconstruction of noise": "What the same attack draws from noise (B4 in report.json).",
    "auxiliary images": "Labeled images of the clients' domains that the adversary has and no client trains on.",
    "artifacts": "The target of a report on vectors of your own (`fdgsec attack --artifacts`).",
    "held-out domain": "The domain that no client has, on which the trained model is tested.",
}
"""Words of a report that are no measurements."""

SLICES: Mapping[str, str] = {
    "domain": "Images and clients of this domain.",
    "n_per_client": "Images per client.",
    "gallery": "Candidates, of which some are the client's.",
    "held": "Share of a client's images that are among the candidates.",
    "rows": "`released` by this run; `as_if_released`: made in the same way of images that were held out.",
    "transform": "Whether the adversary knows how images are prepared.",
    "prior": "Images that the adversary learns from: of the same domain (intra), of another client's (inter), of none.",
    "loss": "What the reconstruction was trained to minimize.",
    "over": "The control that a gain is measured against.",
    "distance": "How candidates are compared with the reconstruction or release.",
    "clients": "How clients were drawn: iid, or by the run's partition.",
    "data": "`the same`: both releases are of the same images.",
    "noise": "Noise that was added to the releases before linking them.",
    "asked": "How many of all clients were asked about, each among all of them.",
    "matching": "`hungarian`: all clients that are asked about are linked at once, one to one.",
    "question": "Whether the image was released, or is the client's.",
    "test": "The statistic of the attack.",
    "auxiliary": "Number of auxiliary images per domain that this weaker adversary has.",
    "added": "Number of images that a client added between two releases.",
    "artifact": "The kind of artifact that was read.",
    "bias": "Which way the distance is off, where sets are small.",
    "by": "What rows are compared by.",
    "chosen": "The forgery that did most harm on other seeds.",
    "class_from": "Where the answer about the class was taken from.",
    "cluster_size": "Number of images in the member's cluster.",
    "column": "The set of pictures that the row is about.",
    "columns": "Which of the published numbers were compared.",
    "copied_from": "Whose numbers the published ones are compared with.",
    "definition": "How the unit of the noise was computed.",
    "drawn": "How the picture was drawn.",
    "extraction": "How images were cropped before they were encoded.",
    "forgery": "What the malicious client sent.",
    "guard": "The check or bound that acted on received messages.",
    "half": "Which half of the client's images was released.",
    "hostile": "Number of malicious clients.",
    "images": "Which images the row is about, or how many.",
    "joins": "What the two releases differ by.",
    "learned_on": "The shadow clients that the attack learned from.",
    "line": "Where the expected value comes from.",
    "look": "Whether candidates are whole images or crops.",
    "median": "How the middle of an even number of clusters was taken.",
    "model": "Whose model was read: a client's, the global one, a peer's.",
    "noise_on": "Which of two releases was noised.",
    "noisy": "The formula of the noise.",
    "not answered": "The question that the attack could not answer.",
    "of": "What the row is about, where an attack infers several things.",
    "on": "The images on which accuracy was measured.",
    "partition": "Which partition of FINCH was used.",
    "queries": "Number of augmented copies on which a model was asked.",
    "reading": "How a gradient was read.",
    "received": "What the adversary received.",
    "references": "Number of reference models.",
    "release": "What the release consists of.",
    "restarts": "Which of several restarts the row is about.",
    "rounding": "How the release was rounded.",
    "rounds": "Number of rounds that were read.",
    "run": "With or without the forged message.",
    "s": "Standard deviation of the noise.",
    "sent": "What was sent in place of the whole model.",
    "set": "The set of pictures, or the number of images that are members together.",
    "side": "Side of the pictures, in pixels.",
    "size": "Number of images or clients.",
    "sizes": "Sizes of the clusters.",
    "style": "Which style was published.",
    "too large": "The question about clients of more images than the dataset has for them.",
    "worst of": "The number of forgeries of which the worst is reported.",
}
"""Entries of a measurement's slice."""


def meaning(name: str) -> str:
    """What a measurement is, in a sentence; empty for one of a plug-in."""
    patterns = (text for pattern, text in PATTERNS.items() if re.fullmatch(pattern, name))
    return MEASUREMENTS.get(name) or next(patterns, "")


def glossary(report: "AttackReport") -> Mapping[str, str]:
    """The measurements and slice entries that a report has, with their meanings, after the words of all reports."""
    rows = [row for attack in report.attacks for row in attack.measurements]
    rows += [c.measurement for attack in report.attacks for found in attack.controls.values() for c in found]
    named = {name: meaning(name) for name in _distinct(row.name for row in rows)}
    keys = {key: SLICES[key] for key in _distinct(key for row in rows for key in row.slice) if key in SLICES}
    return {**WORDS, **{name: text or "defined by the attack's own page" for name, text in named.items()}, **keys}


def _distinct(names: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(names))
