"""Finished training runs that are used again: a stamp beside a run's folder says what decided its bytes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.stored import stored_report
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.checked_files import check_sums
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.progress import warn


@dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """The finished run in `folder`, made under `key`: settings, images, code, versions, and the engine.

    The stamp, FOLDER.key, also has the hash of the report that was written."""

    folder: Path
    key: str

    @property
    def _stamp(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.key"

    def read(self) -> AttackReport | None:
        """The report of the run; None where there is none under this key. One with altered files is not used."""
        try:
            if not self._stamp.is_file() or self._stamp.read_text(errors="replace") != self._stamped():
                return None
            check_sums(self.folder)
            report = stored_report(self.folder)
        except (OSError, FdgsecError) as error:
            warn(f"{self.folder} is not used, it is trained anew: {error}")
            return None
        warn(f"{self.folder} is finished and used again; --fresh trains anew")
        return report

    def keep(self) -> None:
        """Stamp the folder that was written."""
        write_atomic(self._stamp, self._stamped())

    def _stamped(self) -> str:
        report = (self.folder / "report.json").read_bytes()
        return f"{hashlib.sha256(self.key.encode()).hexdigest()} {hashlib.sha256(report).hexdigest()}"
