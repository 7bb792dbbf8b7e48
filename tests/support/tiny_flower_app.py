"""An app for tests of Flower's processes alone: every node says who it is, and the server app writes that down.

What lies in the job's file `order` may make the server app raise or hang instead."""

import json
import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    job = Path(str(context.run_config["job"]))
    order = (job / "order").read_text() if (job / "order").exists() else ""
    if order == "raise":
        raise ValueError("by order")
    while order == "hang":
        time.sleep(1)
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    asked = [
        Message(content=RecordDict({"told": ConfigRecord()}), message_type="query.who", dst_node_id=node)
        for node in nodes
    ]
    answers = [
        dict(reply.content["told"]) if reply.has_content() else {"error": reply.error.reason}
        for reply in grid.send_and_receive(asked)  # the job's own limit ends it
    ]
    document = {"status": "done", "answers": answers, "threads": os.environ["OMP_NUM_THREADS"]}
    (job / "status.tmp").write_text(json.dumps(document))
    (job / "status.tmp").replace(job / "status.json")


@client.query("who")
def _who(message: Message, context: Context) -> Message:
    told = {
        "partition": int(context.node_config["partition-id"]),
        "of": int(context.node_config["num-partitions"]),
        "given": os.environ.get("FDGSEC_GIVEN", ""),
        "threads": os.environ["OMP_NUM_THREADS"],
        "telemetry": os.environ["FLWR_TELEMETRY_ENABLED"],
    }
    return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)
