"""Options of the command line that come from the one declaration of the settings."""

from collections.abc import Mapping
from typing import Any

import pytest
import typer
from click.testing import CliRunner

from fdgsec.cli.app import main
from fdgsec.cli.options import takes

seen: list[tuple[str, Mapping[str, Any], int]] = []


@takes("per_domain", "pretrained", "local", "heterogeneity")
def command(*, method: str = "fedavg", given: Mapping[str, Any], seed: int = 0) -> int:
    seen.append((method, given, seed))
    return 0


def called(*arguments: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return CliRunner().invoke(typer.main.get_command(app), arguments)


def test_settings_reach_a_command_by_name_with_their_types_and_what_was_left_out_is_none():
    seen.clear()

    assert called("--per-domain", "5", "--no-pretrained", "--with", "mixstyle", "--seed", "3").exit_code == 0
    assert seen == [("fedavg", {"per_domain": 5, "pretrained": False, "local": "mixstyle", "heterogeneity": None}, 3)]


@pytest.mark.parametrize(
    ("option", "value"), [("--per-domain", "0"), ("--per-domain", "many"), ("--heterogeneity", "much")]
)
def test_values_of_another_type_or_below_the_least_are_refused(option: str, value: str):
    assert called(option, value).exit_code == 2


def test_options_of_settings_stand_in_their_groups_in_the_order_of_the_command(capsys: pytest.CaptureFixture[str]):
    main(["audit", "--help"])

    page = capsys.readouterr().out
    assert page.index("--seed") < page.index("--data-root") < page.index("--per-domain") < page.index("--encoder")
    assert "Maximum number of images per domain." in " ".join(page.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("attack", "--seed", "-1"), "--seed"),
        (("train", "--seed", "-1"), "--seed"),
        (("attack", "--lr", "0.1"), "--lr acts in training, and rounds is 0; add --rounds N, or leave it out."),
        (("attack", "--epochs", "2"), "--epochs acts in training, and rounds is 0"),
        (("attack", "--heterogeneity", "0.5"), "heterogeneity acts in partitions dirichlet and lambda"),
        (("attack", "--partition", "dirichlet", "--heterogeneity", "nan"), "heterogeneity cannot be NaN"),
        (("attack", "--attack", "linkage", "--set", "attacks.membership.candidatez=1"), "candidatez"),
        (("attack", "--defense", "private-styles:epsilon=1,epsilon=4"), "gives epsilon twice; give it once."),
        (("train", "--set", "method.k=1", "--set", "method.k=2"), "--set gives method.k twice; give it once."),
        (("train", "--rounds", "0", "--lr", "0.1"), "--lr acts in training, and rounds is 0"),
        (("attack", "--pretrained"), "nobody published weights of the backbone tiny"),
        (("train", "--backbone", "tiny", "--pretrained"), "nobody published weights of the backbone tiny"),
        (("attack", "--quiet", "--verbose"), "--quiet says less and --verbose says more; leave one out."),
    ],
)
def test_options_without_effect_are_refused(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
