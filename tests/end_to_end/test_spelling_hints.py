"""British spellings of names are answered with the American ones that fdgsec uses."""

import pytest

from fdgsec.cli import main


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("attack --defense quantise:bits=4", "quantize"),
        ("attack --defense guards:centre=median", "center"),
        ("attack --defense private-styles:neighbours=add-remove", "neighbors"),
        ("attack --attack optimisation-inversion", "optimization-inversion"),
        ("train --set method.keep_optimiser=true", "keep_optimizer"),
        ("train --set method.plan.optimiser=adam", "optimizer"),
        ("bench --protocol stablefdg-centralised", "stablefdg-centralized"),
    ],
)
def test_a_british_spelling_is_answered_with_the_american_one(
    command: str, meant: str, capsys: pytest.CaptureFixture[str]
):
    assert main(command.split()) == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err
