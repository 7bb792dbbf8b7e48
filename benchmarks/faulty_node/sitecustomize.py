"""A faulty node: on PYTHONPATH, it corrupts the client app's replies as the file $FDGSEC_FAULT says."""

import os
import signal
import sys
import time
from pathlib import Path


def _corrupted(tensors, fault):  # type: ignore[no-untyped-def]
    import torch

    first = next(name for name, value in tensors.items() if value.is_floating_point())
    if fault == "nan":
        tensors[first] = torch.full_like(tensors[first], float("nan"))
    elif fault == "wrong shape":
        tensors[first] = tensors[first][:1].clone()
    elif fault == "missing key":
        del tensors[first]
    return tensors


def _install_faults() -> None:
    from dataclasses import replace

    from fdgsec.federation.artifacts import ModelState
    from fdgsec.federation.engines.flower import handler

    honest = handler.run_client_step

    def changed(reply, tensors):  # type: ignore[no-untyped-def]
        spoiled = object.__new__(ModelState)  # bypasses the constructor's checks, as a malicious node would
        object.__setattr__(spoiled, "state", tensors)
        return replace(reply, artifacts={**reply.artifacts, "model": spoiled})

    def dishonest(method, client, step, request, state, seed, defense_stack):  # type: ignore[no-untyped-def]
        fault = Path(os.environ["FDGSEC_FAULT"]).read_text().strip()
        if step != "fit" or not fault:
            return honest(method, client, step, request, state, seed, defense_stack)
        if fault == "exception":
            raise RuntimeError("the disk is full")
        if fault == "sleep":
            time.sleep(40)
        if fault == "sigkill":
            os.kill(int(Path(os.environ["FDGSEC_FAULT"] + ".pid").read_text()), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        reply, after = honest(method, client, step, request, state, seed, defense_stack)
        if fault == "bad weight":
            return replace(reply, weight=-3.0), after
        return changed(reply, _corrupted(dict(reply.artifacts["model"].tensors()), fault)), after

    handler.run_client_step = dishonest


if "FDGSEC_FAULT" in os.environ and any("clientapp" in word for word in sys.argv[:1]):
    _install_faults()
