"""`fdgsec gate`: whether a finished run keeps within limits, for continuous integration."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fdgsec.cli import options as o

Run = Annotated[Path, typer.Argument(help="A run's folder (or its report.json).", metavar="RUN")]
Most = Annotated[
    list[str] | None,
    typer.Option(
        "--max", metavar="ATTACK.MEASUREMENT=LIMIT",
        help="No row of this measurement may exceed the limit, e.g. membership.auc=.55; repeatable. "
        "[KEY=VALUE,...] before = names the rows; guarantee.epsilon=8 the guarantee.",
    ),
]  # fmt: skip
Least = Annotated[
    list[str] | None,
    typer.Option(
        "--min", metavar="ATTACK.MEASUREMENT=LIMIT",
        help="No row may fall below it, e.g. differencing.relative_error=.5 or accuracy.unseen=.6; repeatable.",
    ),
]  # fmt: skip
By = Annotated[
    str,
    o.one_of(
        "interval", "value", flags=["--by"], panel="Options",
        help="What must keep the limit: the end of the 95% interval on its side, or the value.",
    ),
]  # fmt: skip
Inapplicable = Annotated[
    bool,
    typer.Option(
        "--allow-not-applicable", help="Skip attacks that do not apply to what the target sends; else they fail."
    ),
]
Junit = Annotated[
    Path | None, typer.Option("--junit", help="Write the result as JUnit XML to this file.", rich_help_panel="Output")
]
Sarif = Annotated[
    Path | None, typer.Option("--sarif", help="Write the result as SARIF 2.1.0 to this file.", rich_help_panel="Output")
]


def command(
    run: Run,
    most: Most = None,
    least: Least = None,
    by: By = "interval",
    allow_not_applicable: Inapplicable = False,
    junit: Junit = None,
    sarif: Sarif = None,
    as_json: o.AsJson = False,
) -> int:
    """Hold a finished run against limits: exit code 0 where all are kept, 1 where one is not or cannot be judged."""
    from typing import cast

    from fdgsec.cli.tables import console, print_table
    from fdgsec.experiments.gate import result_files
    from fdgsec.experiments.gate.judge_gate import Judge, gate
    from fdgsec.experiments.gate.thresholds import thresholds_of
    from fdgsec.runtime.cache_files import write_atomic
    from fdgsec.runtime.disk_room import ROOM, check_room
    from fdgsec.runtime.errors import UsageError
    from fdgsec.runtime.progress import output

    limits = thresholds_of(most or (), least or ())
    inside = run if run.is_dir() else run.parent
    if (junit is not None and junit == sarif) or any(
        path is not None and path.absolute().is_relative_to(inside.absolute()) and path.exists()
        for path in (junit, sarif)
    ):
        raise UsageError("--junit and --sarif need another file each, and none that the run has.")
    for path, option in ((junit, "--junit"), (sarif, "--sarif")):
        if path is not None:
            check_room(path.absolute().parent, needed=ROOM, option=option)
    found = gate(run, limits, judged_by=cast(Judge, by), allow_inapplicable=allow_not_applicable)
    if junit is not None:
        write_atomic(junit, result_files.junit(found))
    if sarif is not None:
        write_atomic(sarif, result_files.sarif(found))
    if as_json:
        typer.echo(json.dumps(found.document(), indent=1))
    else:
        console().print(found.sentence, highlight=False, markup=False)
        if not output().quiet:
            rows = [(check.outcome, check.threshold.text, check.row, check.said) for check in found.checks]
            print_table("", ("outcome", "limit", "row", "why"), rows)
    return 0 if found.passed else 1
