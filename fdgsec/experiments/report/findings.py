"""The findings of a report: one sentence, one answer per question, and what was not tested.

Nothing is chosen by the size of its value: `headlines` orders the rows that may stand for an attack, of which the first
that is flagged does, else the first, and an answer is that of the first attack of its question that is flagged, else of
the first that ran. "Flagged" is after Holm's correction over all rows of the report, so that the choice adds no false
alarms. A flagged row whose negative control failed counts for nothing. A question is cleared ("no leak shown") only
where every attack of it shows none in the rows that stand for it, and has no other row flagged or worse than chance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fdgsec.experiments.report.headlines import HEADLINES, QUESTIONS, Asked, Choice, chosen
from fdgsec.experiments.report.schema import COULD_NOT_RUN, AttackReport, AttackResult
from fdgsec.experiments.report.text import undecided_by
from fdgsec.experiments.report.words import (
    ADVERSARY_WORDS,
    behind_in_words,
    listed,
    measured,
    numbers,
    percent,
    released_words,
    scope_in_words,
    share,
    short,
)
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.registry import ATTACKS, METHODS

PROCEDURAL = ("shapes", "swatches")
"""Datasets that are drawn by a program: what is measured on them says that the machinery works, and nothing else."""
NO_LEAK = "no leak shown"
NOT_APPLICABLE = "not applicable"
NOT_OF_THIS_ADVERSARY = "not asked of this adversary"
NOT_RUN = "not run"
STOPPED = "could not run"
FAILED = "failed"
OPEN = "left questions open"
PLACES = ("domain", "n_per_client", "gallery")
"""The slice entries that say for which clients a measurement is; others say how it was made."""
ORDER = tuple(HEADLINES)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The row that stands for one attack, and how many of the attack's rows are flagged, or worse than chance.

    `alike` counts the rows of the same measurement that differ in domain and size alone, `alike_open` those of them
    that neither are flagged nor show no leak, and `unlike_open` those of other measurements. `over` says in words what
    the row is a gain over, if anything, and `unbeaten` which of its controls other rows show no gain over. `faults` are
    the failed controls in words; `spoiled` says that one of them is negative or through the target."""

    attack: str
    row: Measurement
    choice: Choice
    alike: int
    alike_flagged: int
    alike_open: int
    unlike_open: int
    judged: int
    flagged: int
    worse: int
    over: str
    unbeaten: str
    faults: tuple[str, ...]
    spoiled: bool

    def alike_to(self, row: Measurement) -> bool:
        """Tell whether a row is the same measurement of other clients."""
        return row.judged and row.name == self.row.name and _apart_from_place(row) == _apart_from_place(self.row)

    @property
    def holds(self) -> bool:
        """Whether the row is flagged, also beside its other controls, and no negative control of the attack failed."""
        return self.row.leaks and not self.unbeaten and not self.spoiled

    @property
    def verdict(self) -> str:
        """The row's verdict, or why it counts for nothing: a failed control, or what the attack's other rows say."""
        if self.spoiled and self.row.leaks:
            return f"unreliable: {'; '.join(self.faults)}"
        if self.row.leaks and self.unbeaten:
            return f"undecided: no gain over {self.unbeaten}"
        if self.row.verdict == NO_LEAK and self._contradicted:
            return f"undecided: {self._contradicted}"
        return self.row.verdict

    @property
    def _contradicted(self) -> str:
        """What other rows of the attack say that is no all-clear."""
        counted = {"flagged": self.flagged, "worse than chance": self.worse}
        others = [f"{n} of {self.judged - 1} other measurements are {what}" for what, n in counted.items() if n]
        alike = f"{self.alike_open} of {self.alike} domains and sizes are not decided" if self.alike_open else ""
        return "; ".join(filter(None, [*others, alike]))

    @property
    def size(self) -> str:
        """The verdict's first words: leaks strongly, leaks, leaks slightly, undecided, no leak shown, ..."""
        if self.row.leaks or self.verdict == NO_LEAK:
            return self.verdict.partition(":")[0]
        if self.row.not_adapted_to and "not adapted" in self.row.verdict:
            return "attack not adapted"
        return "undecided" if self.verdict.startswith("undecided") else "no evidence"

    @property
    def phrase(self) -> str:
        """What the adversary achieves, in words: `tells members from non-members, AUC .88 [.87, .89], baseline .50`."""
        row = self.row
        gallery = row.slice.get("gallery")
        if gallery is None and row.name in ("top1", "gallery_top1") and row.chance:
            gallery = round(1 / row.chance)
        shown = f"{gallery:,}" if isinstance(gallery, int) else gallery or ""
        added = row.slice.get("rows") == "difference"
        said = self.choice.says.format(
            rate=percent(row.value), share=share(row), hits=round((row.value or 0) * row.n), n=f"{row.n:,}",
            numbers=numbers(row), among=_among(shown, row.slice.get("held")), name=row.name,
            controls=self.over or "its controls",
            true="an image that was added between two releases" if added else "the true image",
        )  # fmt: skip
        return f"{said}; flagged in {self.alike_flagged} of {self.alike} domains and sizes" if self.alike > 1 else said


def _among(gallery: str, held: object) -> str:
    """Which candidates a row is about; of a gallery, members and others, the adversary may have a share alone."""
    if gallery and held not in (None, "100%"):
        return f" in a gallery of {gallery}, of which it has {held}"
    return f" among {gallery} candidates{' that include them all' if held else ''}" if gallery else ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question: its findings in their declared order, or the reason why there is none."""

    question: Asked
    findings: tuple[Finding, ...]
    reason: str = ""
    lacking: str = ""
    """Which of its attacks could not run, failed or left something open, in words."""

    @property
    def asks(self) -> str:
        """The question in words."""
        return QUESTIONS[self.question]

    @property
    def lead(self) -> Finding | None:
        """The first finding that is flagged, else the first."""
        return next((one for one in self.findings if one.holds), next(iter(self.findings), None))

    @property
    def verdict(self) -> str:
        """The lead's verdict, or what keeps the question from being cleared; without a finding "not applicable",
        "could not run", "not run" or "failed"."""
        if self.lead is None:
            return self.reason
        return f"undecided: {self.doubts}" if self._doubted else self.lead.verdict

    @property
    def size(self) -> str:
        """The first words of the verdict."""
        if self.lead is None:
            return self.reason
        return "undecided" if self._doubted else self.lead.size

    @property
    def doubts(self) -> str:
        """Why the question is not cleared though an attack shows no leak: what others found, and those that lack."""
        others = [f"{one.attack} ({one.verdict})" for one in self.findings if one.size != NO_LEAK]
        return "; ".join(filter(None, [*others, self.lacking]))

    @property
    def _doubted(self) -> bool:
        return self.lead is not None and self.lead.size == NO_LEAK and bool(self.doubts)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a report says: the sentence, the answers, and what was not tested."""

    sentence: str
    answers: tuple[Answer, ...]
    inapplicable: Mapping[str, str]
    stopped: Mapping[str, str]
    failed: Mapping[str, str]
    untested: tuple[str, ...]

    @property
    def yes(self) -> bool:
        """Whether any question is answered by a flagged finding."""
        return any(answer.lead is not None and answer.lead.holds for answer in self.answers)


def findings_of(report: AttackReport) -> Findings:
    """The findings of a report, in words. Deterministic: equal reports give equal words."""
    answers = tuple(_answer(question, report.attacks) for question in QUESTIONS)
    answers = tuple(one for one in answers if one.question != "other" or one.findings)
    return Findings(
        sentence=_sentence(report, answers), answers=answers,
        inapplicable={
            each.name: each.reason for each in report.attacks if each.status == "skipped" and not each.could_not_run
        },
        stopped={each.name: each.reason.removeprefix(COULD_NOT_RUN) for each in report.attacks if each.could_not_run},
        failed={each.name: each.reason for each in report.attacks if each.status == "failed"},
        untested=_untested(report),
    )  # fmt: skip


def finding_of(result: AttackResult) -> Finding | None:
    """The finding of one attack; None where it has no row that could be flagged."""
    found = chosen(result.name, result.measurements)
    if found is None:
        return None
    row, choice = found
    judged = [each for each in result.measurements if each.judged]
    alike = [each for each in judged if each.name == row.name and _apart_from_place(each) == _apart_from_place(row)]
    still_open = [each for each in judged if not (each.leaks or each.worse_than_chance or each.verdict == NO_LEAK)]
    alike_open = sum(each in alike for each in still_open)
    failed = {kind: sum(not one.passed for one in controls) for kind, controls in result.controls.items()}
    return Finding(
        attack=result.name, row=row, choice=choice, alike=len(alike),
        alike_flagged=sum(each.leaks for each in alike),
        alike_open=alike_open, unlike_open=len(still_open) - alike_open, judged=len(judged),
        flagged=sum(each.leaks for each in judged),
        worse=sum(each.worse_than_chance for each in judged if each is not row),
        over=choice.controls(row, result.measurements), unbeaten=choice.unbeaten(row, result.measurements),
        faults=tuple(
            f"{count} of {len(result.controls[kind])} {kind.replace('-', ' ')} controls failed"
            for kind, count in failed.items() if count
        ),
        spoiled=bool(failed.get("negative") or failed.get("through-the-target")),
    )  # fmt: skip


def _apart_from_place(row: Measurement) -> Mapping[str, object]:
    return {key: said for key, said in row.slice.items() if key not in PLACES}


def _asked(attack: str) -> Asked:
    return HEADLINES[attack].question if attack in HEADLINES else "other"


def _answer(question: Asked, results: Sequence[AttackResult]) -> Answer:
    mine = [result for result in results if _asked(result.name) == question]
    mine.sort(key=lambda result: ORDER.index(result.name) if result.name in ORDER else len(ORDER))
    findings = tuple(found for result in mine if (found := finding_of(result)) is not None)
    status = {result.status for result in mine}
    skipped = NOT_OF_THIS_ADVERSARY if any("(--adversary " in one.reason for one in mine) else NOT_APPLICABLE
    skipped = STOPPED if any(one.could_not_run for one in mine) else skipped
    reason = NOT_RUN if not mine else FAILED if "failed" in status else skipped if status == {"skipped"} else ""
    incomplete = {
        STOPPED: [result.name for result in mine if result.could_not_run],
        FAILED: [result.name for result in mine if result.status == "failed"],
        OPEN: [result.name for result in mine if result.unanswered],
    }
    lacking = [f"{listed(names)} {said}" for said, names in incomplete.items() if names]
    return Answer(
        question=question, findings=findings, reason="" if findings else reason or "no measurement",
        lacking="; ".join(lacking),
    )  # fmt: skip


def _sentence(report: AttackReport, answers: Sequence[Answer]) -> str:
    if not report.attacks:
        return _trained(report)
    said = _said(report, answers)
    if str(report.dataset["name"]) in PROCEDURAL:
        drawn = f"{report.dataset['name']} is procedural, so this is no finding about a method"
        return f"Mechanics only: {drawn}; on it, {said[0].lower()}{said[1:]}"
    return said


def _trained(report: AttackReport) -> str:
    if report.accuracy is None:
        return f"Not tested: {report.method}{behind_in_words(report)} trained nothing, and no attack was run."
    found = report.accuracy
    bounds = f"[{short(_float(found, 'low'))}, {short(_float(found, 'high'))}]"
    about = f"{short(_float(found, 'value'))} {bounds} accuracy on the unseen domain {found['unseen_domain']}"
    mechanics = " (procedural images: no finding)" if str(report.dataset["name"]) in PROCEDURAL else ""
    constant = majority_in_words(found)
    return (
        f"{report.method}{behind_in_words(report)} reaches {about}, n = {found['n']}{mechanics}{constant}; privacy was "
        "not tested: no attack was run."
    )


def majority_in_words(score: Mapping[str, object]) -> str:
    """The accuracy of a constant answer beside `score`: "; always naming the most frequent class reaches .19".

    Empty for reports of versions that did not record it."""
    if "majority_share" not in score:
        return ""
    return f"; always naming the most frequent class reaches {short(_float(score, 'majority_share'))}"


def _float(table: Mapping[str, object], key: str) -> float:
    value = table[key]
    assert isinstance(value, int | float)
    return float(value)


def _said(report: AttackReport, answers: Sequence[Answer]) -> str:
    flagged = [answer for answer in answers if answer.lead is not None and answer.lead.holds]
    leads = [answer.lead for answer in answers if answer.lead is not None]
    if flagged:
        return _leak(report, flagged)
    failures = [result.name for result in report.attacks if result.status == "failed"]
    if not leads:
        if failures:
            told = "".join(f"; {clause}" for clause in _stopped(report))
            return f"Not known: {listed(failures)} failed, and no other attack measured anything{told}."
        ran = [result for result in report.attacks if result.status == "done"]
        if ran:
            told = "".join(f"; {clause}" for clause in _stopped(report))
            return f"Undecided for {_name(report)}: {undecided_by(ran)}{told}."
        stopped = _stopped(report)
        if stopped:
            return f"Not tested: {'; '.join(stopped)}."
        sends = f"{report.target} sends{behind_in_words(report)}"
        return f"Not tested: none of the attacks ({len(report.attacks)}) applies to what {sends}."
    return _no_leak(report, [finding for answer in answers for finding in answer.findings], failures)


def _stopped(report: AttackReport) -> list[str]:
    """Clauses about attacks that apply and could not be run, or only in part; none where there are none."""
    stopped = {each.name: [each.reason.removeprefix(COULD_NOT_RUN)] for each in report.attacks if each.could_not_run}
    partly = {each.name: each.unanswered.values() for each in report.attacks if each.unanswered}
    return [
        f"{listed(list(reasons))} {said}: {_each_once(reasons.values())}"
        for reasons, said in ((stopped, STOPPED), (partly, OPEN))
        if reasons
    ]


def _each_once(reasons: Iterable[Iterable[str]]) -> str:
    """Join reasons, each of which may be several, without repeating one."""
    return "; ".join(dict.fromkeys(part for several in reasons for one in several for part in one.split("; ")))


def _leak(report: AttackReport, flagged: Sequence[Answer]) -> str:
    first = flagged[0]
    lead = first.lead
    assert lead is not None
    begun = {"leaks slightly": "Yes, slightly: ", "leaks": "Yes: ", "leaks strongly": "Yes: "}[lead.row.verdict]
    clauses = [f"{_who(report)} {lead.phrase}"]
    second = next((one for one in first.findings if one.holds and one is not lead), None)
    if second is not None:
        clauses.append(f"{second.attack} {measured(second.row)}")
    others = [f"{found.attack} ({found.verdict})" for each in flagged[1:] if (found := each.lead) is not None]
    if others:
        clauses.append(f"also {listed(others)}")
    if lead.faults:
        clauses.append(f"but {'; '.join(lead.faults)} for {lead.attack}")
    return begun + "; ".join(clauses) + "."


def _name(report: AttackReport) -> str:
    return f"{scope_in_words(report)}{behind_in_words(report)}"


def _who(report: AttackReport) -> str:
    name = next((str(result.adversary.get("name", "")) for result in report.attacks), "")
    adversary = ADVERSARY_WORDS.get(name, f"the adversary {name}")
    return f"from {released_words(report)} ({scope_in_words(report)}){behind_in_words(report)}, {adversary}"


def _no_leak(report: AttackReport, findings: Sequence[Finding], failures: Sequence[str]) -> str:
    """The sentence where no finding holds: the weakest word that is true of all of them."""
    name = _name(report)
    spoiled = [one for one in findings if one.spoiled and one.row.leaks]
    by_size = {size: [one for one in findings if one.size == size] for size in dict.fromkeys(f.size for f in findings)}
    flagged = sum(one.flagged - one.row.leaks for one in findings)
    open_ones = [one.attack for one in findings if one.size != NO_LEAK]
    if spoiled:
        begun = f"Unreliable: {spoiled[0].attack} is flagged on {name}, but {'; '.join(spoiled[0].faults)}"
    elif set(by_size) == {NO_LEAK} and not (flagged or failures or _stopped(report)):
        begun = f"No leak shown: {len(findings)} of {len(findings)} attacks that apply to {name} found none"
    elif "attack not adapted" in by_size:
        begun = f"Not known: attacks on {name} do not take {listed(_ignored(findings))} into account"
    else:
        begun = f"Undecided for {name}"
    lead = findings[0]
    clauses = [begun, f"{lead.attack} {measured(lead.row)}"]
    if open_ones and not spoiled:
        clauses.append(f"not decided by {listed(open_ones)}")
    if flagged:
        clauses.append(f"{flagged} of {sum(one.judged - 1 for one in findings)} other measurements are flagged")
    elif begun.startswith("No leak shown") and (unlike_open := sum(one.unlike_open for one in findings)):
        clauses.append(f"{unlike_open} of {sum(one.judged - 1 for one in findings)} other measurements are not decided")
    if failures:
        clauses.append(f"{listed(failures)} failed")
    return "; ".join([*clauses, *_stopped(report)]) + "."


def _ignored(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(one.row.not_adapted_to for one in findings if one.row.not_adapted_to))


def _untested(report: AttackReport) -> tuple[str, ...]:
    """What the report says nothing about, in words."""
    ran = {result.name for result in report.attacks}
    left = [name for name in ATTACKS if name not in ran]
    names = {str(result.adversary.get("name")) for result in report.attacks} & set(ADVERSARY_WORDS)
    others = [name for name in ADVERSARY_WORDS if name not in names]
    gone = {
        f"{result.name} ({sum(row.value is None for row in result.measurements)} measurements)"
        for result in report.attacks if any(row.value is None for row in result.measurements)
    }  # fmt: skip
    found = [
        f"attacks that were not run: {listed(left)}" if left and report.attacks else "",
        "every attack: none was run" if not report.attacks else "",
        f"what the adversary saw and no attack read: {listed(report.unread_kinds)}" if report.unread_kinds else "",
        f"other adversaries: {listed(others)} (--adversary)" if others and report.attacks else "",
        "trained models: no round was run (--rounds)" if report.backbone is None and report.method in METHODS else "",
        "published networks: mini is fdgsec's own small encoder (--encoder)" if report.encoder == "mini" else "",
        f"unavailable: {listed(sorted(gone))}" if gone else "",
        f"other seeds than {report.seed}",
        "the full profile: numbers of clients and steps are capped" if report.profile == "quick" else "",
    ]
    return tuple(filter(None, found))
