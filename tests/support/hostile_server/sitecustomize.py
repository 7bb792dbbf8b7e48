"""A server that does not keep to the run: on PYTHONPATH, its server app asks one node for what it must not get."""

import sys
from dataclasses import replace


def _install_questions() -> None:
    from flwr.app import Message

    from fdgsec.experiments.flower import apps
    from fdgsec.federation.engines.flower.codec import packed_request, packed_whoami, read_introduction, read_reply
    from fdgsec.federation.engines.flower.grid import VERB, exchange
    from fdgsec.federation.engines.state import NEVER
    from fdgsec.federation.method import Clock, StepRequest
    from fdgsec.runtime.errors import FdgsecError

    def questions(job, grid, folder, status):  # type: ignore[no-untyped-def]
        (node,) = grid.get_node_ids()
        clock = Clock(round=0, rounds=job.config.rounds, participants=("client:0", "client:1"))
        share = packed_request(
            "share", StepRequest(clock=clock, model=None, inbox={}), settings=job.settings(), known=NEVER, model=None,
            held="",
        )  # fmt: skip
        undefended = replace(job, config=replace(job.config, defenses=()))
        longer = replace(job, config=replace(job.config, rounds=50, seed=1))

        def told(content, read, kind=VERB):  # type: ignore[no-untyped-def]
            message = Message(content=content, dst_node_id=node, message_type=kind, ttl=600)
            try:
                return f"answered: {read(exchange(grid, [message], timeout=120).of(node).content)!r}"
            except FdgsecError as error:
                return str(error)

        status.note(answers={
            "share": told(share, read_reply)[:9],
            "share again": told(share, read_reply),
            "undefended": told(packed_whoami(undefended.settings()), read_introduction),
            "longer": told(packed_whoami(longer.settings()), read_introduction),
            "another verb": told(share, read_reply, "train"),
        })  # fmt: skip

    apps._run_job = questions


if any("serverapp" in word for word in sys.argv[:1]):
    _install_questions()
