"""The local epoch of FedAlign in its authors' code, beside fdgsec's.

Their repository is built on FedCCRL's, and benchmarks/peers/fedccrl.py says what both rows have in common. The authors'
side is `FedAlignClient.train` of algorithm/client/fedalign.py: 3 forward passes per batch and one backward pass, and a
step of a discriminator on detached features. fdgsec's is `FedAlign.fit` with the options of the preset
fedalign-released, which follow that code: sequential views mixed inside the batch, a detached discriminator. The second
row has the same code of theirs without autograd's anomaly detection, which it turns on for the whole process when it is
imported; fdgsec and the bare passes run without it in both rows.

Not like for like, besides what holds for FedCCRL. Against the authors: anomaly detection, in the first row, and in
every epoch k-means on the pool and draws from it, although MixStyle then takes the batch's own statistics; fdgsec
leaves out what is never used. For them: fdgsec loads and returns the state of the discriminator and of its optimizer.

What is replaced is what is replaced for FedCCRL; their device is "cuda:2" here."""

from pathlib import Path

from benchmarks.method_speed import silent, subject_of
from benchmarks.peers import fedccrl
from benchmarks.peers.clones import Clone
from benchmarks.peers.comparison import Comparison, Row
from benchmarks.peers.formats import FORMATS
from benchmarks.peers.training_passes import TrainingPasses
from benchmarks.training_speed import Setting
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.style_banks import artifact_in
from fdgsec.methods.fedalign import FedAlign
from fdgsec.nn.training.training_plan import TrainingPlan

OPTION, REPOSITORY, COMMIT = "--fedalign", "varunav123/FedAlign", "f46b5f5eecb46a31d132980fb5678ec6175459d9"
CLIENT, CLASS = "algorithm/client/fedalign.py", "FedAlignClient"
BACKBONE = fedccrl.BACKBONE
OPTIONS = {"lambda3": 0.1, "n_clusters": 7}


def method_of(plan: TrainingPlan) -> FedAlign:
    """FedAlign as in its authors' code, but for the ratio of images whose statistics are shared."""
    return FedAlign(
        plan=plan, upload_ratio=fedccrl.RATIO, classification="sum", include_self=True, views="sequential",
        overflow="wrapped", pool="others", ignore_pool=True, discriminator="detached", keep_optimizer=True,
    )  # fmt: skip


def compared(clone: Clone, setting: Setting, *, scratch: Path) -> Comparison:
    """The jobs of both sides; the authors' with what importing their code turned on, and without."""
    peer, plan = fedccrl.Peer.of(clone, scratch, file=CLIENT), fedccrl.plan_of(setting)
    subject = subject_of(method_of(plan), setting)
    pool = artifact_in(subject.request.inbox, "pool", StyleBank, of=subject.client.name)
    assert subject.request.model is not None
    passes = TrainingPasses.of_views(subject.request.model, plan, setting, count=3)
    options, best = {**fedccrl.options_of(plan), **OPTIONS}, passes.fastest()
    theirs = {
        name: peer.epoch(peer.member(CLASS, options, setting, scratch), pool, scratch, detecting=detecting)
        for name, detecting in (("peer", peer.detecting), ("peer, undetected", False))
    }
    rows = {"fedalign": "peer", "fedalign, no anomaly detection": "peer, undetected"}
    return Comparison(
        network=setting.backbone, pixels=setting.image_size, images=setting.batch * setting.steps,
        jobs={
            **theirs, "ours": silent(subject.fit), "bare": passes.job(), "limit": passes.job(FORMATS[best]),
        },
        rows=[
            Row(name=name, peer=[job], ours=["ours"], bare=["bare"], limit=["limit"], limit_format=best)
            for name, job in rows.items()
        ],
    )  # fmt: skip
