"""The app that Flower ships to the nodes: a few lines that import the installed fdgsec; no data, paths or settings."""

from pathlib import Path

from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.version import __version__

MODULE = "fdgsec_flower_app"

PYPROJECT = f"""\
[project]
name = "fdgsec-flower-app"
version = "{__version__}"
description = "Runs the job that the server names, by the fdgsec that every machine has installed."
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "fdgsec"

[tool.flwr.app.components]
serverapp = "{MODULE}:server"
clientapp = "{MODULE}:client"

[tool.flwr.app.config]
job = ""
"""

CODE = '''\
"""The two apps of an installed fdgsec."""

from fdgsec.experiments.flower import apps

server = apps.server
client = apps.client
'''


def write_app(folder: Path) -> Path:
    """Write the app into `folder`, created where missing, and give `folder`; its bytes are the same everywhere."""
    write_atomic(folder / "pyproject.toml", PYPROJECT)
    write_atomic(folder / f"{MODULE}.py", CODE)
    return folder
