"""The measurements of each attack, by their names in reports; docs/metrics.md defines them."""

from collections.abc import Mapping

PICTURES = (
    "psnr", "psnr_gain", "ssim", "ssim_gain", "perceptual_mini", "perceptual_mini_gain", "lpips_alex",
    "lpips_alex_gain",
    "gallery_top1", "gallery_top5", "median_rank",
)  # fmt: skip
SETS = (
    "frechet_mini", "kernel_mini", "frechet_efficientnet_lite0", "kernel_efficientnet_lite0", "fid", "kid",
    "inception_score", "log_inception_score",
)  # fmt: skip
RATES = ("auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "exposed_auc", "exposed_tpr_at_1pct_fpr")
LOOKED_UP = ("top1", "top5", "median_rank")
CLASSES = ("balanced_accuracy", "accuracy")
MEASUREMENTS: Mapping[str, tuple[str, ...]] = {
    "reidentification": LOOKED_UP,
    "membership": (*RATES, "one_candidate_auc", "d_eff", "exposed_fraction"),
    "set-reconstruction": ("exact_list", "precision", *RATES),
    "differencing": ("relative_error", *LOOKED_UP),
    "linkage": ("top1", "median_rank", "between_client_sd"),
    "label-inference": CLASSES,
    "domain-inference": CLASSES,
    "property-inference": ("mae", "auc"),
    "inter-client": (*CLASSES, *LOOKED_UP, *PICTURES[:-1], *SETS),
    "interpolation-leakage": (
        *RATES, "top1", "median_rank", "verbatim_fraction", "influence", "largest_influence", "outlier_influence",
        "clients_in_pairs", "clusters", "smallest_cluster", "largest_cluster", "singleton_clusters",
        "largest_source_fraction",
    ),
    "pool-exposure": (
        "exposed_fraction", "expected_exposed_fraction", "distinct_fraction", "relative_error", *LOOKED_UP,
        "palette_emd", "palette_emd_gain", "lag1_autocorrelation", "lag1_p_value",
    ),
    "style-inversion": (*PICTURES, *SETS, *RATES, *CLASSES, "recognized_public"),
    "optimization-inversion": (
        *PICTURES, *SETS, "style_residual", "converged_fraction", "restart_spread", "restart_share",
    ),
    "generator-leakage": (*RATES, *CLASSES, "reference_accuracy", *PICTURES, *SETS),
    "model-membership": RATES,
    "gradient-inversion": (*PICTURES, *SETS, *CLASSES, "mae", "top1", "top5", "gradient_distance"),
    "poisoning": (
        "refused", "ended", "not_finite", "honest_accuracy_drop", "accuracy", "displacement", "forger_weight",
        "picked_share", "picked_in_cluster",
    ),
}  # fmt: skip
"""The measurements of each attack, by their names in reports; docs/metrics.md defines them."""
