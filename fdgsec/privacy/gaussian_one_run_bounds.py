"""A lower bound on mu of a Gaussian mechanism from a single run with many canaries, each included at random.

Mahloujifar, Melis & Chaudhuri, ICML 2025, https://arxiv.org/abs/2410.22235 (the audit of a hypothesized trade-off
function, with a fixed number of guesses and abstentions). As in fdgsec.privacy.one_run_bounds, m canaries are included
with probability 1/2 each, and the auditor guesses about r of them. Let p_t be the probability of t right guesses, and

    R_i = sum_{t >= i} t p_t / m,    H_i = sum_{t >= i} (r - t) p_t / m:

the probabilities that a guess about a random canary is right or wrong, with i or more right in all. The wrong guess of
one canary is the right one had its coin fallen otherwise, with all others unchanged. So under mu-Gaussian differential
privacy

    R_i <= G(H_{i-1}),    G(x) = 1 - f_mu(x) = Phi(Phi^-1(x) + mu);

G is concave, so the inequality holds for the average over canaries and coins. The largest P[t >= v] that these
constraints and R_0 + H_0 = r / m allow is a p-value of v right guesses. It has all of its mass above v - 1 at v, which
makes R smallest and H largest, and below v no more than the constraints need, from the top down.

The bound is the least mu at which that p-value is 1 - confidence. It is about the whole trade-off curve, where the
(epsilon, delta) bound is about one point of it. It holds for releases that are Gaussian and unsampled, jointly."""

from scipy import optimize, special

from fdgsec.privacy import mechanisms
from fdgsec.runtime.errors import UsageError

FINEST = 1e-9  # precision of a bound; the lower end is given
TALLEST_MU = 100.0


def is_possible(m: int, guesses: int, correct: int, probability: float, *, mu: float) -> bool:
    """Whether `correct` or more of `guesses` can be right with this `probability` under mu-Gaussian privacy.

    Raises UsageError unless 0 <= correct <= guesses <= m, guesses >= 1, 0 <= probability <= 1 and mu >= 0."""
    _check(m, guesses, correct, probability, mu)
    total = guesses / m
    right, wrong = probability * correct / m, probability * (guesses - correct) / m
    for count in range(correct - 1, -1, -1):
        needed = float(special.ndtr(special.ndtri(right) - mu))  # H_count >= G^-1(R_{count + 1})
        if needed <= wrong:
            break  # no mass is needed here, and nothing changes further down
        right += count / (guesses - count) * (needed - wrong)
        wrong = needed
        if right + wrong > total:
            return False
    return right + wrong <= total


def gaussian_p_value(m: int, guesses: int, correct: int, *, mu: float) -> float:
    """Bound the probability of `correct` or more right of `guesses` about `m` canaries under mu-Gaussian privacy.

    From above, to `FINEST`. Raises UsageError as `is_possible` does."""
    low, high = 0.0, 1.0
    if is_possible(m, guesses, correct, high, mu=mu):
        return 1.0
    while high - low > FINEST * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(m, guesses, correct, middle, mu=mu) else (low, middle)
        if high < FINEST * FINEST:
            break
    return high


def one_run_mu_lower_bound(m: int, guesses: int, correct: int, confidence: float = 0.95) -> float:
    """Bound mu from below with `correct` right of `guesses` about `m` canaries; 0 without evidence.

    Valid with probability `confidence`. Raises UsageError for arguments out of range (see `is_possible`)."""
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must lie strictly between 0 and 1; got {confidence}.")
    if is_possible(m, guesses, correct, 1 - confidence, mu=0.0):
        return 0.0

    def spare(mu: float) -> float:
        return 1.0 if is_possible(m, guesses, correct, 1 - confidence, mu=mu) else -1.0

    return max(0.0, float(optimize.bisect(spare, 0.0, TALLEST_MU, xtol=FINEST)) - 2 * FINEST)


def one_run_gaussian_lower_bound(m: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Bound epsilon at `delta` from below, by the mu of a Gaussian mechanism; 0 without evidence.

    Raises UsageError for arguments out of range."""
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie strictly between 0 and 1; got {delta}.")
    mu = one_run_mu_lower_bound(m, guesses, correct, confidence)
    return mechanisms.epsilon_of(1 / mu, delta) if mu > 0 else 0.0


def gaussian_ceiling(m: int, guesses: int, delta: float, confidence: float = 0.95) -> float:
    """Compute the epsilon bound if all `guesses` were right: the largest bound that the audit can prove."""
    return one_run_gaussian_lower_bound(m, guesses, guesses, delta, confidence)


def _check(m: int, guesses: int, correct: int, probability: float, mu: float) -> None:
    if not 0 <= correct <= guesses <= m or guesses < 1:
        raise UsageError(f"an audit needs 0 <= right <= guesses <= canaries; got {correct}, {guesses} and {m}.")
    if not 0 <= probability <= 1 or not mu >= 0:
        raise UsageError(f"a probability lies in [0, 1] and mu is at least 0; got {probability} and {mu}.")
