"""A kept attack is an entry of the cache: only who can read the cache's secret can write one."""

import hashlib
from pathlib import Path

from fdgsec.experiments.attack.kept_outcomes import read_kept, write_kept


def test_a_kept_attack_that_was_edited_is_not_read_whatever_hash_is_written_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "attacks" / f"{'0' * 64}.json"
    write_kept(path, {"result": {"measurements": [{"name": "auc", "value": 0.98}]}})
    edited = path.read_text().partition("\n")[2].replace("0.98", "0.50")
    digest = hashlib.sha256(f"{path.stem}\n{edited}".encode()).hexdigest()
    path.write_text(f"{digest}\n{edited}")

    assert read_kept(path) is None
