"""How the images behind given vectors were pooled: over all pixels, or as the mean of every image's mean and std.

Both are linear in whose images are behind a vector, each in a statistic of its own, and a vector does not say which it
is. It shows: the std over all pixels has the spread between images in it, so that under the wrong statistic no
candidates explain a vector as well as under the right one."""

import math
from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable
from fdgsec.experiments.attack_vectors.read_vectors import Sent
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.released_statistics import MeanStyles, PooledStyles, ReleasedStatistic

READ = 50
"""Vectors that are read, the first ones; the one that candidates explain best decides, for others may be of images that
are none of them."""
EXPLAINED = 1e-5
"""Residual up to which candidates explain a vector, as one image explains itself under both."""
CLEARLY = 0.5
"""Share of the pooled style's residual below which vectors are taken for means of styles."""
SUM = 100.0
"""Weight of the equation that weights have the sum 1."""


def pooling_of(sent: Mapping[str, Sent], table: CandidateTable) -> ReleasedStatistic:
    """The statistic of which vectors are means, if candidates of `table` are behind them; PooledStyles where candidates
    explain them alike under both, as when there are more candidates than numbers."""
    pooled, averaged = PooledStyles(), MeanStyles()
    artifacts = [one.artifact for one in sent.values()][:READ]
    left = {how: [residual(artifact, table, how) for artifact in artifacts] for how in (pooled, averaged)}
    far, near = min(left[pooled]), min(left[averaged])
    return averaged if far > EXPLAINED and near < CLEARLY * far else pooled


def residual(artifact: Artifact, table: CandidateTable, statistic: ReleasedStatistic) -> float:
    """What nonnegative weights of the candidates leave of a vector, root mean square over numbers, in units of each
    number's spread over candidates."""
    records = statistic.records(table.moments)
    center = records.mean(0)
    rows, target = (statistic.about(part, center) for part in (records, statistic.release(artifact)))
    scale = rows.std(0)
    varies = scale > 1e-9 * scale.max()
    about = rows.mean(0)
    matrix = ((rows - about) / scale)[:, varies].T.numpy()
    wanted = ((target[0] - about) / scale)[varies].numpy()
    count = matrix.shape[1]
    try:
        _, length = nnls(np.concatenate([matrix, np.full((1, count), SUM)]), np.append(wanted, SUM), maxiter=20 * count)
    except RuntimeError:  # of scipy: no solution in so many steps
        return math.inf
    return float(length) / math.sqrt(len(wanted))
