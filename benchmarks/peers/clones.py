"""Import modules of a clone that the user has, and leave no trace of them in this process or in the clone."""

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from itertools import accumulate
from pathlib import Path
from types import ModuleType

from torch import nn

from fdgsec.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Clone:
    """A folder that the user says holds `repository` at `commit`; the commit itself is not checked."""

    option: str
    repository: str
    commit: str
    folder: Path

    def file(self, name: str) -> Path:
        """The path of one of its files. Raises UsageError where it is missing."""
        path = self.folder / name
        if not path.is_file():
            raise UsageError(
                f"{self.option} {self.folder} has no {name}; expected a clone of {self.repository} at {self.commit}."
            )
        return path

    def attribute(self, owner: object, name: str, *, file: str) -> object:
        """What a module or an object from `file` calls `name`. Raises UsageError where it has no such thing."""
        if not hasattr(owner, name):
            raise UsageError(
                f"{file} of {self.option} {self.folder} defines no {name}; expected a clone of {self.repository} at "
                f"{self.commit}."
            )
        found: object = getattr(owner, name)
        return found

    def function(self, owner: object, name: str, *, file: str) -> Callable[..., object]:
        """The function, method or class called `name`. Raises UsageError where there is none."""
        found = self.attribute(owner, name, file=file)
        if not callable(found):
            raise UsageError(f"{name} in {file} of {self.option} {self.folder} cannot be called: it is {found!r}.")
        called: Callable[..., object] = found
        return called

    def network(self, owner: object, name: str, *, file: str) -> nn.Module:
        """The network called `name`. Raises UsageError where there is none."""
        found = self.attribute(owner, name, file=file)
        if not isinstance(found, nn.Module):
            raise UsageError(f"{name} in {file} of {self.option} {self.folder} is no network of torch: {found!r}.")
        return found


def stub(name: str, **members: object) -> ModuleType:
    """A module called `name` that has nothing but these members."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for member, value in members.items():
        setattr(module, member, value)
    return module


def package(name: str, folder: Path, **members: object) -> ModuleType:
    """A package called `name` with these members, whose modules are the files in `folder`; its __init__ is not run."""
    made = stub(name, **members)
    made.__path__ = [str(folder)]
    return made


@contextmanager
def isolation(clone: Clone, *, search: Sequence[str], stubs: Mapping[str, ModuleType]) -> Iterator[None]:
    """Import from the folders `search` of the clone, with `stubs` in place of the modules of these names.

    Modules of this process whose names the clone or `stubs` have too are hidden meanwhile. Afterwards sys.path and
    sys.modules have what they had before, except for installed packages that the clone imports. No byte code is
    written. An import that fails is a UsageError."""
    folders = [clone.folder / name for name in search]
    entries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    names = {entry.stem for entry in entries if entry.suffix == ".py" or entry.is_dir()} - {"__main__"}
    names |= set(stubs)
    path, written = list(sys.path), sys.dont_write_bytecode
    hidden = taken_out(names)
    sys.path[:0] = [str(folder) for folder in folders]
    sys.dont_write_bytecode = True
    sys.modules.update(stubs)
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{clone.option} {clone.folder} cannot be imported: {error}. Install what it needs, or check out "
            f"{clone.repository} at {clone.commit}."
        ) from error
    finally:
        sys.path[:], sys.dont_write_bytecode = path, written
        taken_out(names)
        sys.modules.update(hidden)


def taken_out(names: set[str]) -> dict[str, ModuleType]:
    """Remove the modules with these names, and those inside them, from sys.modules, and return them."""
    found = [name for name in sys.modules if not names.isdisjoint(accumulate(name.split("."), "{}.{}".format))]
    return {name: sys.modules.pop(name) for name in found}


@dataclass(frozen=True, kw_only=True)
class Script:
    """A file of a clone that does its work at import."""

    clone: Clone
    file: str
    path: Path

    @classmethod
    def of(cls, clone: Clone, file: str) -> "Script":
        """Find it. Raises UsageError where it is missing."""
        return cls(clone=clone, file=file, path=clone.file(file))

    def run(self, *, arguments: Sequence[str], search: Sequence[str], stubs: Mapping[str, ModuleType]) -> ModuleType:
        """Import it as a module of its own with these command-line `arguments`."""
        spec = spec_from_file_location(self.path.stem, self.path)
        assert spec is not None  # its name ends in .py
        assert spec.loader is not None
        module, given = module_from_spec(spec), sys.argv
        sys.argv = [self.file, *arguments]
        try:
            with isolation(self.clone, search=search, stubs=stubs):
                spec.loader.exec_module(module)
        finally:
            sys.argv = given
        return module


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Run the authors' code in `folder`, where it may write, without what it prints and without warnings."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
