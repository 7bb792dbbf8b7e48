"""What attacks ask, answered from vectors: client by client, once, and with the truth at its place among the candidates."""

from pathlib import Path

import pytest
import torch

from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.experiments.attack_vectors.questions import VectorQuestions
from fdgsec.experiments.attack_vectors.read_vectors import read_truth, read_vectors
from fdgsec.federation.artifacts import StyleBank
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.attack import Question
from tests.support.own_vectors import Own, own


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Own:
    return own(tmp_path_factory.mktemp("own"))


def questions(vectors: Own, bank: StyleBank, folder: Path) -> VectorQuestions:
    file = folder / "bank.safetensors"
    file.write_bytes(bank.encode())
    truth = read_truth(vectors.truth(), image_size=None)
    return VectorQuestions.of(read_vectors(file), truth, None, seed=0)


def test_rows_of_a_bank_are_asked_about_client_by_client(vectors: Own, tmp_path: Path):
    mean, std = vectors.rows.chunk(2, dim=1)
    bank = StyleBank(mean=mean.clone(), std=std.clone(), owner=torch.arange(20) % 2)
    asked = questions(vectors, bank, tmp_path)

    pairs = asked.cases(Question(kind="released", gallery=1000), Reidentification())
    members = asked.cases(Question(kind="rounds", count=50, records=130, rounds=1), Membership())

    assert [case.victim for case, _ in pairs] == ["client:0", "client:1"]
    assert asked.images is not None
    for number, (case, truth) in enumerate(pairs):
        assert truth.rows is not None
        assert [asked.images.ids[int(row)] for row in truth.rows] == [
            f"img/{2 * n + number:03d}.png" for n in range(10)
        ]
        assert case.candidates is not None
        assert not set(case.candidates.ids) & set(asked.images.ids)  # no telling names
        assert set(case.candidates.labels.tolist()) == {0}
    for (_, truth), (_, behind) in zip(members, pairs, strict=True):
        assert truth.members is not None
        assert behind.rows is not None
        assert truth.members.nonzero().flatten().tolist() == sorted(behind.rows.tolist())


def test_a_question_is_answered_once_whatever_sizes_are_asked_for(vectors: Own, tmp_path: Path):
    mean, std = vectors.rows.chunk(2, dim=1)
    asked = questions(vectors, StyleBank(mean=mean.clone(), std=std.clone(), owner=torch.arange(20) % 2), tmp_path)
    first, second = (Question(kind="rounds", count=50, records=size, rounds=1) for size in (40, 130))

    assert len(asked.cases(first, Membership())) == 2
    assert asked.cases(second, Membership()) == []
    assert len(asked.cases(first, Membership())) == 2
    assert asked.gap(second, Membership()) == ""
    assert asked.cases(Question(kind="rounds", count=10, records=40, rounds=3), PoolExposure()) == []


def test_pooled_styles_of_several_clients_have_no_common_truth(vectors: Own, tmp_path: Path):
    bank = StyleBank(mean=torch.ones(2, 3), std=2 * torch.ones(2, 3), owner=torch.arange(2))

    with pytest.raises(UsageError, match="Give one file per client"):
        questions(vectors, bank, tmp_path)
