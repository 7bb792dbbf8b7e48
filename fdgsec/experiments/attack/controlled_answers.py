"""An attack's answers beside those of its negative control, and its rows under the controls of its variants."""

from collections.abc import Sequence
from dataclasses import replace

from fdgsec.experiments.attack.attack_setting import AttackSetting
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Answers, Attack, Case, ControlsVariants, SharesTraining
from fdgsec.threats.judging.controls import variant_controls, without_evidence


def with_variant_controls(
    attack: Attack, setting: AttackSetting, knowledge: Knowledge, rows: Sequence[Measurement]
) -> tuple[list[Measurement], list[Control]]:
    """The rows, those unread whose variant fails its control, and the controls; none is run that speaks for no row."""
    if not isinstance(attack, ControlsVariants):
        return [*rows], []
    seed = setting.seed
    control = attack.variant_control(knowledge, stream(seed, "attack", attack.name, "plant", "variants"))
    measured = () if control is None else [row.slice[control.key] for row in rows if control.speaks_for(row)]
    if control is None or not measured:
        return [*rows], []
    control = replace(control, variants=[name for name in control.variants if name in measured])
    answers = control.answers(stream(seed, "attack", attack.name, "planted", "variants"))
    found = variant_controls(control, answers, setting.judge, stream(seed, "world", "planted variants", attack.name))
    return without_evidence(rows, control, found), [one for each in found.values() for one in each]


def answers_of(
    attack: Attack, setting: AttackSetting, cases: Sequence[Case], knowledge: Knowledge
) -> tuple[Answers, Answers]:
    """The attack's answers, and those of its negative control, if controls are run."""
    rng = stream(setting.seed, "attack", attack.name)
    if not setting.controls:
        return attack.run(cases, knowledge, rng), ()
    shuffled = stream(setting.seed, "attack", attack.name, "shuffled")
    if isinstance(attack, SharesTraining):
        return attack.run_with_control(cases, knowledge, rng, shuffled)
    return attack.run(cases, knowledge, rng), attack.negative_control(cases, knowledge, shuffled)
