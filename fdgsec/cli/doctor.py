"""`fdgsec doctor`: is this machine ready?"""


def command() -> int:
    """Print versions, threads, caches, datasets and weights that were found."""
    from fdgsec.cli.print_listings import print_doctor

    print_doctor()
    return 0
