"""Files of vectors and of what is known about them, and every way in which they can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgsec.experiments.attack_vectors.read_arrays import candidates_of, numbers_of
from fdgsec.experiments.attack_vectors.read_vectors import check_channels, read_truth, read_vectors
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, ModelState, StyleBank, StyleStatistics
from fdgsec.runtime.errors import DataError, FdgsecError
from tests.support.own_vectors import own

ROWS = torch.tensor([[0.5, 1.0, 2.0, 0.25, 0.5, 1.0], [1.5, 2.0, 3.0, 0.5, 1.0, 2.0]], dtype=torch.float64)
MEAN, STD = ROWS.chunk(2, dim=1)


def read(path: Path) -> dict[str, Artifact]:
    return {name: sent.artifact for name, sent in read_vectors(path).items()}


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def styles(sent: Artifact) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(sent, ImageStyles | StyleStatistics)
    return sent.mean, sent.std


@pytest.mark.parametrize("header", ["", "mean_r,mean_g,mean_b,std_r,std_g,std_b\n"])
def test_rows_of_a_table_are_means_then_stds(tmp_path: Path, header: str):
    lines = "\n".join(",".join(str(float(value)) for value in row) for row in ROWS)

    (sent,) = read(text(tmp_path / "rows.csv", f"{header}{lines}\n")).values()

    assert torch.equal(styles(sent)[0], MEAN)
    assert torch.equal(styles(sent)[1], STD)


def test_an_array_is_read_like_a_table(tmp_path: Path):
    np.save(tmp_path / "rows.npy", ROWS.numpy())

    (sent,) = read(tmp_path / "rows.npy").values()

    assert isinstance(sent, ImageStyles)
    assert torch.equal(sent.mean, MEAN)


def test_an_artifact_is_read_as_it_was_sent(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(StyleStatistics(mean=MEAN[0], std=STD[0]).encode())

    sent = read_vectors(tmp_path / "a.safetensors")

    assert list(sent) == ["client:1"]
    assert sent["client:1"].pooled
    assert torch.equal(styles(sent["client:1"].artifact)[0], MEAN[0])


def test_a_bank_is_parted_by_owners_who_keep_their_places_in_the_file(tmp_path: Path):
    owner = torch.tensor([4, 2, 4])
    bank = StyleBank(mean=torch.arange(9.0).view(3, 3), std=torch.ones(3, 3), owner=owner)
    (tmp_path / "bank.safetensors").write_bytes(bank.encode())

    sent = read_vectors(tmp_path / "bank.safetensors")

    assert {name: part.rows.tolist() for name, part in sent.items()} == {"client:2": [1], "client:4": [0, 2]}
    assert torch.equal(styles(sent["client:4"].artifact)[0], torch.tensor([[0.0, 1, 2], [6, 7, 8]]))
    assert not any(part.pooled for part in sent.values())


def test_a_bank_of_one_row_each_is_of_pooled_styles(tmp_path: Path):
    bank = StyleBank(mean=MEAN, std=STD, owner=torch.tensor([1, 0]))
    (tmp_path / "bank.safetensors").write_bytes(bank.encode())

    sent = read_vectors(tmp_path / "bank.safetensors")

    assert all(part.pooled and isinstance(part.artifact, StyleStatistics) for part in sent.values())
    assert torch.equal(styles(sent["client:0"].artifact)[0], MEAN[1])


def test_spectra_are_parted_by_owners_too(tmp_path: Path):
    spectra = Amplitudes(values=torch.rand(3, 3, 4, 3), owner=torch.tensor([0, 1, 0]))
    (tmp_path / "s.safetensors").write_bytes(spectra.encode())

    sent = read_vectors(tmp_path / "s.safetensors")

    assert [part.rows.tolist() for part in sent.values()] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.txt", "1,2", "must end in .safetensors, .csv, .npy"),
        ("rows.csv", "", "must have rows of 2 C numbers"),
        ("rows.csv", "1,2,3\n", "must have rows of 2 C numbers"),
        ("rows.csv", "1,2,3,4\n1,2\n", "rows of 2 and of 4 numbers"),
        ("rows.csv", "1,2,x,4\n", "row 1: 'x' is not a number"),
        ("rows.csv", "a,b\n1,2\n", "its header begins a, b"),
        ("rows.csv", "1,2,3,-4\n", "std must be >= 0"),
        ("rows.csv", "1,nan,3,4\n", "not finite"),
        ("rows.csv", '"1,2', "cannot be read as CSV"),
        ("rows.npy", "no array", "cannot be read as .npy"),
        ("rows.safetensors", "no artifact", "is not an fdgsec artifact"),
    ],
)
def test_vectors_that_are_none_are_refused_with_the_reason(tmp_path: Path, name: str, content: str, said: str):
    with pytest.raises(FdgsecError) as caught:
        read(text(tmp_path / name, content))

    assert said in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_vectors_of_another_encoder_are_refused(tmp_path: Path):
    sent = read_vectors(text(tmp_path / "rows.csv", "1,2,3,4\n"))

    with pytest.raises(FdgsecError, match=r"rows\.csv has 2 channels, encoder pixels has 3"):
        check_channels(sent, channels=3, encoder="pixels", where="rows.csv")


@pytest.mark.parametrize(
    "array", [np.zeros(6), np.array([["a", "b"]]), np.zeros((2, 3, 4))], ids=["one row", "words", "three axes"]
)
def test_arrays_of_another_shape_are_refused(
    tmp_path: Path, array: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
):
    np.save(tmp_path / "rows.npy", array)

    with pytest.raises(FdgsecError, match=r"must hold numbers \(rows, 2 C\)"):
        read(tmp_path / "rows.npy")


def test_an_array_of_objects_is_not_unpacked(tmp_path: Path):
    with (tmp_path / "rows.npy").open("wb") as file:  # a header that announces objects, and no pickle behind it
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        file.write(b"cos\nsystem\n")

    with pytest.raises(FdgsecError, match=r"cannot be read as \.npy"):
        read(tmp_path / "rows.npy")


def test_a_model_is_no_vector(tmp_path: Path):
    (tmp_path / "m.safetensors").write_bytes(ModelState(state={"w": MEAN}).encode())

    with pytest.raises(FdgsecError, match="is a ModelState"):
        read(tmp_path / "m.safetensors")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(FdgsecError, match=r"nothing\.csv is not a file"):
        read(tmp_path / "nothing.csv")


def test_the_truth_is_read_as_it_is_written(tmp_path: Path):
    vectors = own(tmp_path, images=6)

    truth = read_truth(vectors.truth(), image_size=None)

    assert torch.equal(truth.images.pixels(), vectors.pictures.pixels())
    assert truth.behind.tolist() == [0, 1, 2]
    assert [truth.images.class_names[int(label)] for label in truth.images.labels] == [
        line[1] for line in vectors.listed
    ]
    assert truth.images.domain_names == ("photo",)
    assert truth.images.ids[0] == "img/000.png"
    assert truth.labeled
    assert truth.placed


def test_without_a_column_nothing_is_known_and_every_image_is_behind_a_row(tmp_path: Path):
    truth = read_truth(own(tmp_path, images=6).truth(["image"]), image_size=None)

    assert truth.members is None
    assert truth.behind.tolist() == [0, 1, 2]
    assert not truth.labeled
    assert not truth.placed


def test_names_are_numbered_as_the_public_images_number_them(tmp_path: Path):
    vectors = own(tmp_path, images=6)

    truth = read_truth(vectors.truth(), image_size=8, classes=vectors.pictures.class_names, domains=("sketch", "photo"))

    assert torch.equal(truth.images.labels, vectors.pictures.labels)
    assert truth.images.domains.tolist() == [1] * 6
    assert truth.images.image_size == (8, 8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must have a header with a column image"),
        ("image\n", "got 0 lines"),
        ("label\nsquare\n", "must have a header with a column image"),
        ("image,lable\nimg/000.png,square\n", "did you mean 'label'"),
        ("image,label\nimg/000.png\n", "line 2: 2 cells are needed"),
        ("image,label\nimg/000.png,\n", "none of them empty"),
        ("image\nimg/999.png\n", "line 2: there is no image"),
        ("image\nimg/000.png\nimg/000.png\n", "names img/000.png twice"),
        ("image,member\nimg/000.png,yes\n", "line 2: member must be 0 or 1"),
        ("image,label\nimg/000.png,sqare\n", "did you mean 'square'"),
        ("image,domain\nimg/000.png,sea\n", "leave the column domain out"),
        ("image\nimg/broken.png\n", "cannot be decoded"),
        ("image\nimg/000.png\nimg/wide.png\n", "not of one square size"),
    ],
)
def test_a_truth_that_makes_no_sense_is_refused_with_the_line(tmp_path: Path, content: str, said: str):
    vectors = own(tmp_path, images=6)
    (tmp_path / "img" / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (20, 16)).save(tmp_path / "img" / "wide.png")

    with pytest.raises(FdgsecError) as caught:
        read_truth(text(tmp_path / "truth.csv", content), image_size=None, classes=vectors.pictures.class_names,
                   domains=("photo", "sketch"))  # fmt: skip

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_broken_image_is_named_where_sizes_are_given(tmp_path: Path):
    own(tmp_path, images=6)
    (tmp_path / "img" / "broken.png").write_bytes(b"no image")

    with pytest.raises(FdgsecError, match=r"img/broken\.png cannot be decoded"):
        read_truth(text(tmp_path / "truth.csv", "image\nimg/broken.png\n"), image_size=16)


@pytest.mark.parametrize("truth", [["A", "A", "B"], [[1], [1, 2], [0]], [None, 1, 2], [0.5, 1.0, 0.0], [-1, 0, 1]])
def test_a_truth_that_is_no_number_per_candidate_is_refused_in_words(truth: list[object]):
    with pytest.raises(DataError, match="one bool or one number for each of them"):
        candidates_of(np.ones((3, 4)), truth)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8])
def test_numbers_of_any_type_stay_what_they_are(dtype: torch.dtype):
    given = torch.tensor([[0.0, 1.0], [3.0, 7.0]], dtype=dtype, requires_grad=dtype.is_floating_point)

    assert numbers_of(given, "here").tolist() == [[0.0, 1.0], [3.0, 7.0]]


@pytest.mark.parametrize(
    "given", [torch.eye(3).to_sparse(), torch.eye(3).to(torch.complex64), [[1.0], [1.0, 2.0]], [["A"]]]
)
def test_what_is_no_array_of_numbers_is_refused_in_words(given: object):
    with pytest.raises(DataError, match="here must"):
        numbers_of(given, "here")


def test_masked_entries_are_refused_in_words():
    masked = np.ma.masked_array(np.ones((3, 4)), mask=np.eye(3, 4) > 0)

    with pytest.raises(DataError, match=r"--artifacts has 3 masked entries.*fill them"):
        numbers_of(masked, "--artifacts")
    with pytest.raises(DataError, match="candidates has 3 masked entries"):
        candidates_of(masked, None)
    with pytest.raises(DataError, match="one bool or one number for each of them"):
        candidates_of(np.ones((3, 4)), np.ma.masked_array([1, 0, 1], mask=[True, False, False]))


def test_a_masked_array_without_a_masked_entry_is_an_array():
    assert numbers_of(np.ma.masked_array(np.ones((2, 2)), mask=False), "here").tolist() == [[1.0, 1.0], [1.0, 1.0]]
