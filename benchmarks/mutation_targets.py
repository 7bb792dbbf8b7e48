"""What `benchmarks.mutants` mutates, and the fast tests that have to notice."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """Modules, and the arguments of pytest that run on each of their mutants, the quickest tests first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


P, D, F, T = "tests/unit/privacy/", "tests/unit/defenses/", "tests/unit/federation/", "tests/unit/threats/"
JUDGED = ("rankings", "membership", "labels", "estimates", "controls", "permutation_tests", "judge", "groups")

TARGETS: Mapping[str, Target] = {
    "ledger": Target(
        modules=("fdgsec/privacy/ledger.py",), tests=(P + "test_ledger_properties.py", P + "test_guarantees.py")
    ),
    "accounting": Target(
        modules=("fdgsec/privacy/accounting.py",),
        tests=(P + "test_accounting_properties.py", P + "test_accounting.py"),
    ),
    "mechanisms": Target(
        modules=("fdgsec/privacy/mechanisms.py",),
        tests=(P + "test_mechanisms_against_tails.py", P + "test_mechanisms.py"),
    ),
    "clipping": Target(
        modules=("fdgsec/privacy/clipping.py",),
        tests=(P + "test_clipping.py", "tests/property/test_sensitivities.py"),
    ),
    "composition": Target(
        modules=("fdgsec/privacy/composition.py",),
        tests=(P + "test_composition.py", P + "test_accounting.py"),
    ),
    "discrete_gaussian": Target(
        modules=("fdgsec/privacy/discrete_gaussian.py",),
        tests=(P + "test_discrete_gaussian.py", P + "test_noise_precision.py"),
    ),
    "secret_streams": Target(
        modules=("fdgsec/runtime/secret_streams.py",),
        tests=("tests/unit/runtime/test_secret_streams.py", P + "test_noise_precision.py"),
    ),
    **{
        f"defenses/{name}": Target(
            modules=(f"defenses/{name}.py",), tests=(D + "test_defense_edges.py", *(D + f"{test}.py" for test in tests))
        )
        for name, tests in {
            "dp_fedavg": ("test_dp_fedavg",),
            "dp_sgd": ("test_dp_sgd",),
            "guards": ("test_guards", "test_guards_slots"),
            "k_anonymous": ("test_k_anonymous",),
            "private_scores": ("test_private_scores",),
            "private_styles": ("test_private_styles", "test_private_styles_noise"),
            "quantize": ("test_quantize",),
            "secure_aggregation": ("test_secure_aggregation",),
            "shuffle": ("test_shuffle",),
            "style_noise": ("test_style_noise",),
        }.items()
    },
    "views": Target(
        modules=("fdgsec/threats/adversary.py",), tests=(T + "test_adversary.py", F + "test_wire.py")
    ),
    "wire": Target(
        modules=("fdgsec/federation/wire.py",),
        tests=(F + "test_wire.py", F + "test_wire_properties.py", D + "test_shuffle.py"),
    ),
    "artifacts": Target(
        modules=("fdgsec/federation/artifacts.py",), tests=(F + "test_artifacts.py", F + "test_artifacts_kinds.py")
    ),
    "codec": Target(
        modules=("fdgsec/federation/engines/flower/codec.py",),
        tests=(F + "test_flower_codec.py", F + "test_flower_share_weights.py"),
    ),
    "judging": Target(
        modules=tuple(f"fdgsec/threats/judging/{name}.py" for name in JUDGED),
        tests=(
            T + "test_judging_by_hand.py", T + "test_permutations_by_hand.py", T + "test_membership_cluster_sizes.py",
            T + "test_judge.py", T + "test_controls.py",
            f"--deselect={T}test_judge.py::test_the_interval_of_tpr_at_a_low_rate_covers_across_clients",  # seconds
        ),
    ),
}  # fmt: skip
