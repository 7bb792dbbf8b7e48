from pathlib import Path

import pytest
import torch

from fdgsec.nn.networks import weights
from tests.support.published_files import ADAIN_VGG, FILES, INCEPTION, seeded_state

COUNTER = ".num_batches_tracked"  # BatchNorm's, which files as old as Inception's do not have
USED = {"adain_vgg": 2 * 10}  # of VGG-19's 17 convolutions those up to relu4_1


@pytest.mark.parametrize("name", FILES)
def test_what_fdgsec_expects_are_the_keys_and_shapes_of_the_public_file(name):
    public = dict(list(FILES[name].items())[: USED.get(name)])

    expected = {key: shape for key, shape in weights.expected_shapes(name).items() if not key.endswith(COUNTER)}

    assert expected == public


def test_the_tables_have_the_sizes_that_their_authors_state():
    parameters = {
        name: sum(torch.Size(shape).numel() for key, shape in table.items() if ".running_" not in key)
        for name, table in FILES.items()
    }

    assert parameters["alexnet"] == 61_100_840  # these three: torchvision's documentation
    assert parameters["vgg16"] == 138_357_544
    assert parameters["squeezenet1_1"] == 1_235_496
    # torchvision's Inception v3, less its auxiliary head, with 8 more classes of 2048 weights and a bias
    assert parameters["inception_fid"] == 27_161_264 - 3_326_696 + 8 * 2049
    # VGG-19's convolutions (Simonyan & Zisserman 2015: 143,667,240 less three dense layers) and the 1x1 in front
    assert parameters["adain_vgg"] == 143_667_240 - 123_642_856 + 12
    assert len(ADAIN_VGG) == 2 * 17
    assert len(INCEPTION) == 5 * 94 + 2


@pytest.mark.parametrize("name", ["adain_vgg", "adain_decoder", "squeezenet1_1", "inception_fid"])
@pytest.mark.medium
def test_a_file_with_these_keys_is_imported_tensor_for_tensor(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    state, file = seeded_state(name), tmp_path / "public.pth"
    torch.save(state, file, _use_new_zipfile_serialization=False)  # as all of these were saved

    weights.import_file(name, file)
    loaded = weights.load_state(name)

    used = list(state)[: USED.get(name)]
    assert {key for key in loaded if not key.endswith(COUNTER)} == set(used)
    assert all(torch.equal(loaded[key], state[key]) for key in used)
    assert all(int(tensor) == 0 for key, tensor in loaded.items() if key.endswith(COUNTER))
