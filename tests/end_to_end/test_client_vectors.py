"""`fdgsec attack --artifacts --rows clients` as a user runs it: in a process of its own, with no weights at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.client_vectors import client_vectors


def test_a_hundred_clients_vectors_are_attacked_without_any_weights(tmp_path: Path):
    np.save(tmp_path / "styles.npy", client_vectors(100, 512).astype(np.float32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FDGSEC_")}
    environment |= {"FDGSEC_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    told = subprocess.run(
        [sys.executable, "-m", "fdgsec.cli", "attack", "--artifacts", "styles.npy", "--rows", "clients", "--out", "out",
         "--encoder", "vgg19", "--all"],
        check=False, capture_output=True, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip

    assert (told.returncode, told.stderr) == (0, "")
    assert not (tmp_path / "cache").exists()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    results = {one["name"]: one for one in report["attacks"]}
    assert {name for name, one in results.items() if one["status"] == "done"} == {"linkage", "interpolation-leakage"}
    noisy = {
        row["slice"]["noise"]: row["value"] for row in results["linkage"]["measurements"]
        if row["name"] == "top1" and row["slice"].get("noise_on") == "first" and "matching" not in row["slice"]
    }  # fmt: skip
    assert noisy["0.02"] == noisy["0.05"] == 1.0
    assert {"1 sd", "3 sd", "10 sd", "30 sd"} < set(noisy)
    partitions = {row["slice"].get("partition") for row in results["interpolation-leakage"]["measurements"]}
    assert partitions == {"first", "last"}
    assert {"report.html", "guesses.csv", "measurements.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert "clusters" in told.stdout
