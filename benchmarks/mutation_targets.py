"""What `benchmarks.mutants` mutates, and the fast tests that have to notice."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """Modules, and the test files that run on each of their mutants, the quickest first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS: Mapping[str, Target] = {
    "ledger": Target(
        modules=("fdgsec/privacy/ledger.py",),
        tests=("tests/unit/privacy/test_ledger_properties.py", "tests/unit/privacy/test_guarantees.py"),
    ),
    "accounting": Target(
        modules=("fdgsec/privacy/accounting.py",),
        tests=("tests/unit/privacy/test_accounting.py",),
    ),
    "mechanisms": Target(
        modules=("fdgsec/privacy/mechanisms.py",),
        tests=("tests/unit/privacy/test_mechanisms.py",),
    ),
    "clipping": Target(
        modules=("fdgsec/privacy/clipping.py", "fdgsec/federation/public_clip_bounds.py"),
        tests=("tests/property/test_sensitivities.py",),
    ),
    "composition": Target(
        modules=("fdgsec/privacy/composition.py",),
        tests=("tests/unit/privacy/test_accounting.py",),
    ),
    "discrete_gaussian": Target(
        modules=("fdgsec/privacy/discrete_gaussian.py",),
        tests=("tests/unit/privacy/test_discrete_gaussian.py",),
    ),
    "secret_streams": Target(
        modules=("fdgsec/runtime/secret_streams.py",),
        tests=("tests/unit/runtime/test_secret_streams.py",),
    ),
}  # fmt: skip
