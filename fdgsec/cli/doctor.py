"""`fdgsec doctor`: is this machine ready?"""

from fdgsec.cli.options import AsJson


def command(as_json: AsJson = False) -> int:
    """Print versions, threads, caches, datasets and weights that were found."""
    from fdgsec.cli.print_listings import print_doctor

    print_doctor(as_json=as_json)
    return 0
