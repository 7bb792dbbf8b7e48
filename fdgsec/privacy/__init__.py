"""Differential privacy: mechanisms, accounting, DP-SGD, and empirical lower bounds on epsilon."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.privacy.accounting import Accountant, Relation, Unit, Use, calibrated_noise
    from fdgsec.privacy.clipping import Ball, HalfDiscs, Region, ball_of, sensitivity_of_mean, sensitivity_of_rows
    from fdgsec.privacy.dp_sgd import PrivateTrainer, private_steps, sampling_rate
    from fdgsec.privacy.epsilon_bounds import AuditResult, audit_runs, multi_run_lower_bound
    from fdgsec.privacy.guarantees import PlannedGuarantee, RecordMixing, check_composable
    from fdgsec.privacy.ledger import Guarantee, Ledger
    from fdgsec.privacy.mechanisms import (
        Mechanism,
        Step,
        classical_multiplier,
        delta_of,
        epsilon_of,
        laplace_scale,
        noise_multiplier,
    )
    from fdgsec.privacy.one_run_bounds import audit_one_run, one_run_lower_bound
    from fdgsec.privacy.record_independence import BatchCouplingError, check_independence
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "Accountant", "AuditResult", "Ball", "BatchCouplingError", "Guarantee", "HalfDiscs", "Ledger", "Mechanism",
    "PlannedGuarantee", "PrivateTrainer", "RecordMixing", "Region", "Relation", "Step", "Unit", "Use", "audit_one_run",
    "audit_runs", "ball_of", "calibrated_noise", "check_composable", "check_independence", "classical_multiplier",
    "delta_of", "epsilon_of", "laplace_scale", "multi_run_lower_bound", "noise_multiplier", "one_run_lower_bound",
    "private_steps", "sampling_rate", "sensitivity_of_mean", "sensitivity_of_rows",
]  # fmt: skip
