"""Statistics of tensors: intervals, ROC curves, similarity of images, distances between feature distributions."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.metrics.feature_extractors import EXTRACTORS, Extractor, extractor_named
    from fdgsec.metrics.frechet_distance import frechet_interval, frechet_of
    from fdgsec.metrics.image_similarity import (
        EmbeddingDistance,
        LpipsDistance,
        PerceptualDistance,
        PerceptualEncoder,
        mse,
        psnr,
        ssim,
    )
    from fdgsec.metrics.interval import Interval
    from fdgsec.metrics.intervals import (
        cluster_auc_bootstrap,
        cluster_bootstrap,
        delong,
        mean,
        median,
        paired_bootstrap,
    )
    from fdgsec.metrics.kernel_distance import kernel_estimate
    from fdgsec.metrics.measurement import Control, Goal, Measurement, Slice
    from fdgsec.metrics.proportion_intervals import (
        balanced_accuracy_interval,
        clopper_pearson,
        clustered_proportion,
        wilson,
    )
    from fdgsec.metrics.roc import (
        RocCurve,
        auc,
        balanced_accuracy,
        confusion,
        majority_share,
        placements,
        ranks,
        roc_band,
        roc_curve,
        topk_credit,
        tpr_at_fpr,
    )
    from fdgsec.metrics.significance import holm, permutation_pvalue
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "EXTRACTORS", "Control", "EmbeddingDistance", "Extractor", "Goal", "Interval", "LpipsDistance", "Measurement",
    "PerceptualDistance", "PerceptualEncoder", "RocCurve", "Slice", "auc", "balanced_accuracy",
    "balanced_accuracy_interval", "clopper_pearson", "cluster_auc_bootstrap", "cluster_bootstrap",
    "clustered_proportion", "confusion", "delong", "extractor_named", "frechet_interval", "frechet_of",
    "holm", "kernel_estimate", "majority_share", "mean", "median", "mse", "paired_bootstrap",
    "permutation_pvalue", "placements", "psnr", "ranks", "roc_band", "roc_curve", "ssim",
    "topk_credit", "tpr_at_fpr", "wilson",
]  # fmt: skip
