"""The folder of an attacked run: its report, settings and transcript."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fdgsec.experiments.report.attack_report import report_files
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.federation.run_folder import new_folder
from fdgsec.federation.wire import Transcript


def write_report(
    report: AttackReport,
    out: Path,
    *,
    config: RunConfig,
    transcript: Transcript,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write report.json, report.html, measurements.csv, figures, settings, transcript and `files`, all or none."""
    written = report_files(report, settings=config.document())
    with new_folder(out) as draft:
        (draft / "config.json").write_text(json.dumps(config.document(), indent=1, default=str) + "\n")
        for name, content in {**written, **files}.items():
            (draft / name).write_bytes(content)
        transcript.save(draft)
