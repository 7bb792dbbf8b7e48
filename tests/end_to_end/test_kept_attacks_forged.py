"""A kept attack is an entry of the cache: only who can read the cache's secret can write one."""

from pathlib import Path

from fdgsec.experiments.attack.kept_outcomes import read_kept, write_kept


def test_a_kept_attack_that_was_edited_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "attacks" / f"{'0' * 64}.json"
    write_kept(path, {"result": {"measurements": [{"name": "auc", "value": 0.98}]}})
    content = path.read_bytes()
    edited = content.replace(b"0.98", b"0.50")
    assert edited != content
    path.write_bytes(edited)

    assert read_kept(path) is None
