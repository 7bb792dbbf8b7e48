"""`fdgsec doctor`: is this machine ready?"""

from fdgsec.cli.listings import print_doctor


def command() -> int:
    """Print versions, threads, caches, datasets and weights that were found."""
    print_doctor()
    return 0
