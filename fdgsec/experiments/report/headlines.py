"""The measurements that stand for each attack, declared before any run: one question, and an order to look them up in.

Of the rows that fit, in this order, the first that is flagged stands for the attack, else the first: attacks list first
what they hold to be strongest. A gain over one control stands only where the gains over the others are flagged too. No
size of a value decides, and since rows are flagged after Holm's correction over the whole report, looking at all of
them adds no false alarms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdgsec.experiments.report.words import CONTROL_WORDS, listed
from fdgsec.metrics.measurement import Measurement, Slice

Asked = Literal["who", "what", "look", "harm", "other"]
QUESTIONS: Mapping[Asked, str] = {
    "who": "Whose data is it?",
    "what": "What is in the data?",
    "look": "What does it look like?",
    "harm": "What harm can a client do?",
    "other": "What do other attacks find?",
}
"""The questions of a report in their order, by short name."""


NONE = "none"
"""The entry of a slice that says that nothing was done: no noise was added."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows of one measurement: their slices have all of `where`, and none of the entries `without` but as NONE.

    `says` is what such a row means in words, with the fields {rate}, {share}, {hits}, {n}, {numbers}, {among} and
    {true}: the true image, or the one that was added between two releases; {controls}: what the row's control is, and
    those of the rows `beside` it. A flagged row stands for an attack only where the rows that differ from it by one of
    `beside` are flagged too, as far as they have a value: a gain of 0 in every case has no interval, and is none."""

    measurement: str
    says: str
    where: Slice = field(default_factory=dict)
    without: tuple[str, ...] = ()
    beside: Sequence[Slice] = ()

    def fits(self, row: Measurement) -> bool:
        """Tell whether a row is one of these."""
        held = all(row.slice.get(key) == said for key, said in self.where.items())
        return row.name == self.measurement and held and all(row.slice.get(key, NONE) == NONE for key in self.without)

    def upheld(self, row: Measurement, rows: Sequence[Measurement]) -> bool:
        """Tell whether a flagged row is upheld by those `beside` it, of all `rows` of the attack."""
        return not self.unbeaten(row, rows)

    def controls(self, row: Measurement, rows: Sequence[Measurement]) -> str:
        """What an upheld row, of all `rows` of the attack, and those beside it are gains over, in words."""
        return _in_words([row, *self._measured_beside(row, rows)])

    def unbeaten(self, row: Measurement, rows: Sequence[Measurement]) -> str:
        """What those beside a row, of all `rows` of the attack, are no gains over, in words; empty if it is upheld."""
        return _in_words([other for other in self._measured_beside(row, rows) if not other.leaks])

    def _measured_beside(self, row: Measurement, rows: Sequence[Measurement]) -> Sequence[Measurement]:
        wanted = [{**row.slice, **entries} for entries in self.beside]
        return [other for other in rows if other.value is not None and other.name == row.name and other.slice in wanted]


def _in_words(gains: Sequence[Measurement]) -> str:
    """What rows are gains over."""
    over = sorted({str(row.slice.get("over")) for row in gains} & CONTROL_WORDS.keys())
    return listed([f"the {CONTROL_WORDS[control]}" for control in over])


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The question that an attack answers, and its measurements in the order in which they stand for it."""

    question: Asked
    choices: Sequence[Choice]


_LISTED = "names every image of {hits} of {n} clients{among} ({numbers})"
_MEMBERS = "tells members from non-members, AUC {numbers}"
_NEAREST = "draws pictures of which {rate} are nearest to {true}{among} ({numbers})"
_CLOSER = "draws pictures closer to {true} than {controls}, by {numbers}"
_LINKED = "links two releases of the same client, {share} ({numbers})"
_LIKER = "draws pictures more like {true} than {controls} ({name} {numbers})"
_CONTROLS: Sequence[Slice] = ({"over": "B3"}, {"over": "B0"}, {"over": "B2"})
_PICTURES = (
    Choice(measurement="gallery_top1", where={"distance": "mse"}, says=_NEAREST),
    *(Choice(measurement="psnr_gain", where=control, says=_CLOSER, beside=_CONTROLS) for control in _CONTROLS),
    Choice(measurement="gallery_top1", says=_NEAREST),
    Choice(measurement="gallery_top5", says="draws pictures of which {rate} have {true} among the five nearest "
                                            "({numbers})"),
    Choice(measurement="median_rank", says="draws pictures by which {true} is found, median rank {numbers}"),
    *(
        Choice(measurement=f"{name}_gain", says=_LIKER, beside=_CONTROLS)
        for name in ("psnr", "ssim", "perceptual_mini", "lpips_alex")
    ),
)  # fmt: skip
_LABELS = "tells the class of an image within its domain, balanced accuracy {numbers}"
_FULL = ("auxiliary",)  # rows of an adversary with fewer auxiliary images are weaker variants


def _few(*without: str) -> tuple[Choice, ...]:
    """Beside an AUC, members that are known almost for sure (an average over all members may hide them), and those
    whose images were exposed."""
    return (
        Choice(measurement="tpr_at_1pct_fpr", without=without,
               says="recognizes {rate} of members with 1% of false alarms ({numbers})"),
        Choice(measurement="tpr_at_01pct_fpr", without=without,
               says="recognizes {rate} of members with 0.1% of false alarms ({numbers})"),
        Choice(measurement="exposed_auc", without=without, says=_MEMBERS),
        Choice(measurement="exposed_tpr_at_1pct_fpr", without=without,
               says="recognizes {rate} of the exposed members with 1% of false alarms ({numbers})"),
    )  # fmt: skip


def _found(what: str, *without: str) -> tuple[Choice, ...]:
    """Beside a top-1 rate, weaker signs that `what` is found."""
    return (
        Choice(measurement="top5", without=without, says=f"has {what} among the five nearest, {{rate}} ({{numbers}})"),
        Choice(measurement="median_rank", without=without, says=f"finds {what}, median rank {{numbers}}"),
    )


HEADLINES: Mapping[str, Headline] = {
    "set-reconstruction": Headline(question="who", choices=(
        Choice(measurement="exact_list", where={"held": "100%"}, says=_LISTED),
        Choice(measurement="exact_list", without=("held",), says=_LISTED),
        Choice(measurement="exact_list",
               says="names every image of {hits} of {n} clients that it has at all{among} ({numbers})"),
        Choice(measurement="precision", says="names a client's images{among}, precision {numbers}"),
        Choice(measurement="auc", says=_MEMBERS),
        *_few(),
    )),
    "reidentification": Headline(question="who", choices=(
        Choice(measurement="top1", where={"rows": "as_if_released", "transform": "known"},
               says="finds the image behind {share} styles made, as the run makes them, of held-out images{among} "
                    "({numbers})"),
        Choice(measurement="top1", says="finds the image behind {share} styles{among} ({numbers})"),
        *_found("the image behind a style"),
    )),
    "membership": Headline(question="who", choices=(
        Choice(measurement="auc", without=_FULL, says=_MEMBERS),
        Choice(measurement="exposed_auc", says=_MEMBERS),
        *_few(*_FULL),
    )),
    "linkage": Headline(question="who", choices=(
        Choice(measurement="top1", without=("data", "noise", "matching"),
               says="links releases of the same client from different images, {share} ({numbers})"),
        Choice(measurement="top1", without=("noise", "matching"), says=_LINKED),  # not: noise that the attack adds
        Choice(measurement="median_rank", without=("noise",),
               says="ranks a client's second release among those of others by its first, median rank {numbers}"),
    )),
    "differencing": Headline(question="who", choices=(
        Choice(measurement="top1",
               says="finds the image that was added between two releases, {share}{among} ({numbers})"),
        Choice(measurement="relative_error",
               says="recovers the style that was added between two releases, relative error {numbers}"),
        *_found("the image that was added between two releases"),
    )),
    "pool-exposure": Headline(question="who", choices=(
        Choice(measurement="exposed_fraction", says="identifies {rate} of a client's images as published ({numbers})"),
        Choice(measurement="auc", says=_MEMBERS),
        Choice(measurement="relative_error", says="infers how many images a client has, relative error {numbers}"),
        Choice(measurement="median_rank", says="finds the image behind a row, median rank {numbers}"),
        Choice(measurement="top1", says="finds the image behind {share} rows{among} ({numbers})"),
        *_found("the image behind a row"),
        Choice(measurement="palette_emd_gain", says="tells an image's colors better than public images do, {numbers}"),
    )),
    "interpolation-leakage": Headline(question="who", choices=(
        Choice(measurement="auc", says="tells clients that took part from others, AUC {numbers}"),
        Choice(measurement="top1", says="tells which federation published a style, {share} ({numbers})"),
        *_few(),
        Choice(measurement="median_rank", says="tells which federation published a style, median rank {numbers}"),
    )),
    "generator-leakage": Headline(question="who", choices=(
        Choice(measurement="auc", says=_MEMBERS),
        *_few(),
        Choice(measurement="balanced_accuracy", says="tells the domain of a generator, balanced accuracy {numbers}"),
        Choice(measurement="accuracy", says="tells the domain of a generator, {share} ({numbers})"),
        *_PICTURES,
    )),
    "model-membership": Headline(question="who", choices=(
        Choice(measurement="auc", without=("set",), says=_MEMBERS),
        Choice(measurement="auc", says="tells sets of members from sets of non-members, AUC {numbers}"),
        *_few(),
    )),
    "label-inference": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", where={"rows": "as_if_released"}, without=_FULL, says=_LABELS),
        Choice(measurement="balanced_accuracy", without=_FULL, says=_LABELS),
        Choice(measurement="accuracy", without=_FULL, says="tells the class of {share} images ({numbers})"),
    )),
    "property-inference": Headline(question="what", choices=(
        Choice(measurement="auc", without=_FULL, says="tells which classes or domains a client has, AUC {numbers}"),
        Choice(measurement="mae", without=_FULL, says="estimates shares of classes or domains, mean error {numbers}"),
    )),
    "domain-inference": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", without=_FULL, says="tells the domain, balanced accuracy {numbers}"),
        Choice(measurement="accuracy", without=_FULL, says="tells the domain of {share} releases ({numbers})"),
    )),
    "inter-client": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", says="tells classes of others' images, balanced accuracy {numbers}"),
        Choice(measurement="top1", says="finds the image behind other clients' rows, {share}{among} ({numbers})"),
        Choice(measurement="accuracy", says="tells the class of {share} images of others ({numbers})"),
        *_found("the image behind another client's row"),
        *_PICTURES,
    )),
    "style-inversion": Headline(question="look", choices=(
        *_PICTURES,
        Choice(measurement="auc", says="tells members from non-members by a picture, AUC {numbers}"),
        *_few(),
    )),
    "optimization-inversion": Headline(question="look", choices=_PICTURES),
    "gradient-inversion": Headline(question="look", choices=(
        *_PICTURES,
        Choice(measurement="mae", says="estimates a batch's classes, mean error {numbers}"),
        Choice(measurement="balanced_accuracy", says="tells the class of an image, balanced accuracy {numbers}"),
        Choice(measurement="accuracy", says="tells the class of {share} images ({numbers})"),
        Choice(measurement="top1", says="finds the image behind a step, {share}{among} ({numbers})"),
        *_found("the image behind a step"),
    )),
    "poisoning": Headline(question="harm", choices=(
        Choice(measurement="honest_accuracy_drop", says="lowers the accuracy of honest clients' models by {numbers}"),
        Choice(measurement="ended", says="ends {hits} of {n} runs by a forged message that nobody refuses ({numbers})"),
    )),
}  # fmt: skip
"""By attack. The attacks of a question stand in the order in which they answer it."""
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "": {
        name: "the gain over an unrelated reconstruction says the same"
        for name in ("psnr", "ssim", "perceptual_mini", "lpips_alex")
    },
    "style-inversion": {
        name: "classes are told from styles and from control pictures too; label-inference is asked for them"
        for name in ("balanced_accuracy", "accuracy")
    },
    "membership": {"exposed_fraction": "a share that was released, without a verdict"},
    "poisoning": {"accuracy": "honest_accuracy_drop is the difference of the two"},
}
"""Judged measurements that stand for no attack ("": for none that has them), and why. One that is flagged still takes
the all-clear away from its attack (findings.Finding)."""
DESCRIPTIVE = (
    "one_candidate_auc", "d_eff", "between_client_sd", "verbatim_fraction", "influence", "largest_influence",
    "outlier_influence", "clients_in_pairs", "clusters", "smallest_cluster", "largest_cluster", "singleton_clusters",
    "largest_source_fraction", "expected_exposed_fraction", "distinct_fraction", "palette_emd", "lag1_autocorrelation",
    "lag1_p_value", "recognized_public", "style_residual", "converged_fraction", "restart_spread", "restart_share",
    "reference_accuracy", "gradient_distance", "refused", "not_finite", "displacement", "forger_weight", "picked_share",
    "picked_in_cluster", "majority_share", "fid", "kid", "inception_score", "log_inception_score",
)  # fmt: skip
"""Measurements without a verdict, by name; distances of sets of images by other networks are descriptive too."""


def chosen(attack: str, rows: Sequence[Measurement]) -> tuple[Measurement, Choice] | None:
    """The judged row that stands for an attack: of those in the table, in its order, the first that is flagged and
    upheld (by the most telling distance), else the first that is not flagged; of an attack that is not in it, the same
    of all rows. None without such a row: what an attack of the table measures besides may be about something that
    nobody sent."""
    judged = [row for row in rows if row.judged]
    if attack in HEADLINES:
        fitting = [(row, choice) for choice in HEADLINES[attack].choices for row in judged if choice.fits(row)]
    else:
        fitting = [(row, Choice(measurement=row.name, says="{name} {numbers}")) for row in judged]
    upheld = [(row, choice) for row, choice in fitting if row.leaks and choice.upheld(row, rows)]
    if upheld:
        return _most_telling(upheld[0], upheld)
    return next((found for found in fitting if not found[0].leaks), next(iter(fitting), None))


def _most_telling(
    first: tuple[Measurement, Choice], fitting: Sequence[tuple[Measurement, Choice]]
) -> tuple[Measurement, Choice]:
    """Of rows that differ from the first flagged one in the distance alone, that whose interval is highest."""

    def but_distance(row: Measurement) -> Mapping[str, object]:
        return {name: value for name, value in row.slice.items() if name != "distance"}

    def telling(found: tuple[Measurement, Choice]) -> float:
        low, high = found[0].low or 0.0, found[0].high or 0.0
        return low if found[0].higher_is == "leak" else -high

    wanted, choice = first
    alike = [found for found in fitting if found[1] is choice and found[0].leaks and found[0].name == wanted.name]
    return max((found for found in alike if but_distance(found[0]) == but_distance(wanted)), key=telling)
