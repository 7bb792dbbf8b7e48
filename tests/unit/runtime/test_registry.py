"""Whatever a package brings by entry points is listed, resolved, built and hinted at like what is bundled."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fdgsec.cli.print_listings import LISTS
from fdgsec.data.catalog import dataset_entry, dataset_names
from fdgsec.experiments.explain import explain
from fdgsec.experiments.run_config import RunConfig, attack_settings, made, resolve_settings, target_method
from fdgsec.experiments.setup.run_inputs import attacked_method, method_of
from fdgsec.federation.artifacts import decode, kind_named
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.encoders import encoder_names, load_encoder
from fdgsec.runtime import registry
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import Target, name_of, names, resolve, target_named, targets
from tests.support.plugin import installed

CODE = '''"""A package from elsewhere.

Its second paragraph."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fdgsec.attacks.membership.attack import Membership
from fdgsec.data.dataset_specs import FolderSpec
from fdgsec.data.catalog import DatasetEntry
from fdgsec.defenses.quantize import Quantize
from fdgsec.federation.artifacts import Artifact
from fdgsec.methods.ccst import CCST
from fdgsec.nn.styles.encoders import Pixels
from fdgsec.runtime.registry import Target


@dataclass(frozen=True, kw_only=True)
class Theirs(CCST):
    """CCST from elsewhere."""

    strength: float = 0.5


@dataclass(frozen=True, kw_only=True)
class TheirAttack(Membership):
    """Membership from elsewhere."""

    name: ClassVar[str] = "their-attack"


@dataclass(frozen=True, kw_only=True)
class TheirDefense(Quantize):
    """Quantization from elsewhere."""

    bits: int = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class TheirKind(Artifact):
    """One number."""

    kind: ClassVar[str] = "TheirKind"
    value: torch.Tensor


class TheirEncoder(Pixels):
    """Pixels from elsewhere."""

    def __init__(self):
        super().__init__()
        self.name = "their-encoder"


DATA = DatasetEntry(
    title="Theirs", target_domain="b", image_size=32, folders=("theirs",),
    files=FolderSpec(title="Theirs", domains={"a": (), "b": ()}, classes=("x", "y")),
)
VARIANT = Target(method="theirs", options={"style": "single"}, summary="single styles from elsewhere")
'''
POINTS = {
    "methods": {"theirs": "from_elsewhere:Theirs", "broken": "from_elsewhere:Missing"},
    "attacks": {"their-attack": "from_elsewhere:TheirAttack"},
    "defenses": {"their-defense": "from_elsewhere:TheirDefense"},
    "artifacts": {"TheirKind": "from_elsewhere:TheirKind"},
    "encoders": {"their-encoder": "from_elsewhere:TheirEncoder"},
    "datasets": {"their-data": "from_elsewhere:DATA"},
    "targets": {"theirs-single": "from_elsewhere:VARIANT"},
}


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "from_elsewhere.py").write_text(CODE)
    with installed(folder, POINTS, name="from_elsewhere"):
        yield
    del sys.modules["from_elsewhere"]


def test_a_plugin_is_listed_behind_what_is_bundled():
    for group in ("methods", "attacks", "defenses"):
        assert names(group)[0] in ("fedavg", "reidentification", "dp-fedavg")
        assert set(POINTS[group]) <= set(names(group)[-2:])
    for what in ("methods", "attacks", "defenses", "encoders", "datasets", "targets", "artifacts"):
        listed = {row[0] for row in LISTS[what][1]()}
        assert POINTS[what].keys() <= listed


def test_packages_are_searched_again_only_where_some_may_have_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    searches = list[int]()
    search = registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda: searches.append(1) or search())
    monkeypatch.setattr(registry, "SETTLED", -3600)  # all folders are taken to be complete
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "late" not in names("methods")
    first = len(searches)
    assert "late" not in [*names("methods"), *names("attacks"), name_of("methods", object())]
    assert len(searches) == first

    with installed(tmp_path, {"methods": {"late": "late_method:Late"}}, name="late"):
        assert "late" in names("methods")
    assert "late" in names("methods")  # its folder stays on the path
    shutil.rmtree(tmp_path / "late-1.0.dist-info")
    assert "late" not in names("methods")


def test_a_package_that_is_seen_before_its_entry_points_are_written_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    about = tmp_path / "slow-1.0.dist-info"
    monkeypatch.syspath_prepend(str(tmp_path))
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    assert "slow" not in names("methods")

    (about / "entry_points.txt").write_text("[fdgsec.methods]\nslow = slow_method:Slow\n")

    assert "slow" in names("methods")


def test_a_plugin_method_is_a_target_and_so_is_its_variant():
    assert {"theirs", "theirs-single"} <= set(targets())
    assert target_method(target_named("theirs")).released_kinds == {"StyleStatistics", "StyleBank"}
    assert attack_settings("theirs-single", {}).options["style"] == "single"
    config = attack_settings("theirs", {}, assignments=["method.strength=0.25"])
    assert config.method == "theirs"
    assert attacked_method(config).released_kinds == {"StyleStatistics", "StyleBank"}
    assert name_of("methods", method_of(config)) == "theirs"


def test_a_plugin_defense_is_accepted_and_built():
    config = resolve_settings({"defenses": ("their-defense:bits=4",)}, preset=None, defaults={"method": "theirs"})

    (defense,) = config.defenses

    assert type(defense).__name__ == "TheirDefense"


@pytest.mark.parametrize("name", ["their-attack", "their-defense"])
def test_a_plugin_is_explained(name: str):
    assert explain(name).title == "A package from elsewhere."


def test_an_artifact_of_a_plugins_kind_comes_back_from_its_bytes():
    cls = kind_named("TheirKind")
    assert cls is not None

    made_here = cls(value=torch.ones(1))  # type: ignore[call-arg]

    assert type(decode(made_here.encode())) is cls


def test_a_plugins_encoder_and_dataset_are_found_by_name():
    assert load_encoder("their-encoder").name == "their-encoder"
    assert encoder_names()[-1] == "their-encoder"
    assert dataset_entry("their-data").target_domain == "b"
    assert dataset_names()[-1] == "their-data"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: resolve("methods", "their"), "did you mean 'theirs'"),
        (lambda: target_named("theirs-singel"), "did you mean 'theirs-single'"),
        (lambda: resolve("attacks", "their-atack"), "did you mean 'their-attack'"),
        (lambda: load_encoder("their-encodr"), "did you mean 'their-encoder'"),
        (lambda: dataset_entry("their-dta"), "did you mean 'their-data'"),
        (
            lambda: resolve_settings({"defenses": ("their-defens",)}, preset=None, defaults={"method": "ccst"}),
            "did you mean 'their-defense'",
        ),
        (lambda: resolve("methods", "broken"), "from_elsewhere:Missing of from_elsewhere, which cannot be imported"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest_plugin(ask, said: str):  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=said):
        ask()


@dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    """A method of a script."""

    strength: float = 0.5


def test_classes_and_objects_of_ones_own_are_taken_as_they_are():
    assert resolve("methods", Own) is Own
    assert made("methods", Own, {"strength": 0.1}, where="method") == Own(strength=0.1)
    assert made("methods", Own(strength=0.2), {}, where="method") == Own(strength=0.2)
    assert made("methods", Own(strength=0.2), {"strength": 0.3}, where="method") == Own(strength=0.3)
    assert target_method(target_named(Own(strength=0.2))) == Own(strength=0.2)
    assert target_method(Target(method=Own, summary="", options={"strength": 0.4})) == Own(strength=0.4)
    assert name_of("methods", Own()) == "Own"
    with pytest.raises(UsageError, match="did you mean 'strength'"):
        made("methods", Own(), {"strenth": 0.3}, where="method")


def test_a_run_without_a_target_has_the_methods_own_settings():
    assert method_of(RunConfig(method="theirs", options={"strength": 0.75})).strength == 0.75  # type: ignore[attr-defined]


@pytest.mark.parametrize(("called", "known_as"), [("quantize", f"{__name__}.quantize"), ("Coarse", "Coarse")])
def test_a_class_is_not_taken_for_the_bundled_one_whose_name_it_has(called: str, known_as: str):
    own = type(called, (), {"__module__": __name__, "__qualname__": called})

    assert name_of("defenses", own()) == known_as
