"""The measurements that stand for each attack, declared before any run: one question, and an order to look them up in.

Of the rows that fit, in this order, the first that is flagged stands for the attack, else the first: attacks list first
what they hold to be strongest. No size of a value decides, and since rows are flagged after Holm's correction over the
whole report, looking at all of them adds no false alarms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows of one measurement: their slices have all of `where` and none of the entries `without`.

    `says` is what such a row means in words, with the fields {rate}, {hits}, {n}, {numbers} and {among}."""

    measurement: str
    says: str
    where: Slice = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def fits(self, row: Measurement) -> bool:
        """Tell whether a row is one of these."""
        held = all(row.slice.get(key) == said for key, said in self.where.items())
        return row.name == self.measurement and held and not any(key in row.slice for key in self.without)


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The question that an attack answers, and its measurements in the order in which they stand for it."""

    question: Asked
    choices: Sequence[Choice]


_MEMBERS = "tells members from non-members, AUC {numbers}"
_NEAREST = "draws pictures of which {rate} are nearest to the true image{among} ({numbers})"
_CLOSER = "draws pictures closer to the true image than those drawn without its release, by {numbers}"
_LINKED = "links two releases of the same client, {rate} of {n} ({numbers})"
_PICTURES = (
    Choice(measurement="gallery_top1", where={"distance": "mse"}, says=_NEAREST),
    Choice(measurement="psnr_gain", where={"over": "B3"}, says=_CLOSER),
    Choice(measurement="psnr_gain", where={"over": "B0"}, says=_CLOSER),
)
_LABELS = "tells the class of an image within its domain, balanced accuracy {numbers}"
_FULL = ("auxiliary",)  # rows of an adversary with fewer auxiliary images are weaker variants

HEADLINES: Mapping[str, Headline] = {
    "set-reconstruction": Headline(question="who", choices=(
        Choice(measurement="exact_list", says="names every image of {hits} of {n} clients{among} ({numbers})"),
        Choice(measurement="precision", says="names a client's images{among}, precision {numbers}"),
        Choice(measurement="auc", says=_MEMBERS),
    )),
    "reidentification": Headline(question="who", choices=(
        Choice(measurement="top1", where={"rows": "as_if_released", "transform": "known"},
               says="finds the image behind {rate} of {n} styles{among} ({numbers})"),
        Choice(measurement="top1", says="finds the image behind {rate} of {n} styles{among} ({numbers})"),
    )),
    "membership": Headline(question="who", choices=(
        Choice(measurement="auc", without=_FULL, says=_MEMBERS),
        Choice(measurement="exposed_auc", says=_MEMBERS),
    )),
    "linkage": Headline(question="who", choices=(
        Choice(measurement="top1", without=("data", "noise", "matching"),
               says="links releases of the same client from different images, {rate} of {n} ({numbers})"),
        Choice(measurement="top1", without=("noise", "matching"), says=_LINKED),  # not: noise that the attack adds
    )),
    "differencing": Headline(question="who", choices=(
        Choice(measurement="top1",
               says="finds the image that was added between two releases, {rate} of {n}{among} ({numbers})"),
        Choice(measurement="relative_error",
               says="recovers the style that was added between two releases, relative error {numbers}"),
    )),
    "pool-exposure": Headline(question="who", choices=(
        Choice(measurement="exposed_fraction", says="identifies {rate} of a client's images as published ({numbers})"),
        Choice(measurement="auc", says=_MEMBERS),
        Choice(measurement="relative_error", says="infers how many images a client has, relative error {numbers}"),
        Choice(measurement="median_rank", says="finds the image behind a row, median rank {numbers}"),
    )),
    "interpolation-leakage": Headline(question="who", choices=(
        Choice(measurement="auc", says="tells clients that took part from others, AUC {numbers}"),
        Choice(measurement="top1", says="tells which federation published a style, {rate} of {n} ({numbers})"),
    )),
    "generator-leakage": Headline(question="who", choices=(
        Choice(measurement="auc", says=_MEMBERS),
    )),
    "model-membership": Headline(question="who", choices=(
        Choice(measurement="auc", without=("set",), says=_MEMBERS),
        Choice(measurement="auc", says="tells sets of members from sets of non-members, AUC {numbers}"),
    )),
    "label-inference": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", where={"rows": "as_if_released"}, without=_FULL, says=_LABELS),
        Choice(measurement="balanced_accuracy", without=_FULL, says=_LABELS),
    )),
    "property-inference": Headline(question="what", choices=(
        Choice(measurement="auc", without=_FULL, says="tells which classes or domains a client has, AUC {numbers}"),
        Choice(measurement="mae", without=_FULL, says="estimates shares of classes or domains, mean error {numbers}"),
    )),
    "domain-inference": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", without=_FULL, says="tells the domain, balanced accuracy {numbers}"),
    )),
    "inter-client": Headline(question="what", choices=(
        Choice(measurement="balanced_accuracy", says="tells classes of others' images, balanced accuracy {numbers}"),
        Choice(measurement="top1", says="finds the image behind other clients' rows, {rate} of {n}{among} ({numbers})"),
        *_PICTURES,
    )),
    "style-inversion": Headline(question="look", choices=_PICTURES),
    "optimization-inversion": Headline(question="look", choices=_PICTURES),
    "gradient-inversion": Headline(question="look", choices=(
        *_PICTURES,
        Choice(measurement="mae", says="estimates a batch's classes, mean error {numbers}"),
    )),
    "poisoning": Headline(question="harm", choices=(
        Choice(measurement="honest_accuracy_drop", says="lowers the accuracy of honest clients' models by {numbers}"),
        Choice(measurement="ended", says="ends {hits} of {n} runs by a forged message that nobody refuses ({numbers})"),
    )),
}  # fmt: skip
"""By attack. The attacks of a question stand in the order in which they answer it."""


def chosen(attack: str, rows: Sequence[Measurement]) -> tuple[Measurement, Choice] | None:
    """The judged row that stands for an attack: of those in the table, in its order, the first that is flagged, else
    the first; of an attack that is not in it, the same of all rows. None without such a row: what an attack of the
    table measures besides may be about something that nobody sent."""
    judged = [row for row in rows if row.judged]
    if attack in HEADLINES:
        fitting = [(row, choice) for choice in HEADLINES[attack].choices for row in judged if choice.fits(row)]
    else:
        fitting = [(row, Choice(measurement=row.name, says="{name} {numbers}")) for row in judged]
    return next((found for found in fitting if found[0].leaks), next(iter(fitting), None))
