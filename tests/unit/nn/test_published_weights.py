import re

import torchvision.models

from fdgsec.nn.networks.published_weights import CATALOG


def test_every_published_file_comes_by_https_or_in_a_release_of_a_package_and_its_hash_agrees_with_the_one_in_its_name():
    for entry in (entry for entry in CATALOG.values() if not entry.script):
        named = re.search(r"-([0-9a-f]{8})\.pth$", entry.file_name)

        assert entry.url.startswith("https://") != (entry.package is not None)
        assert len(entry.sha256) == 64 or (named and entry.sha256 == named[1])
        assert named is None or entry.sha256.startswith(named[1])


def test_catalogue_addresses_are_torchvisions_own():
    own = {
        "resnet18": torchvision.models.ResNet18_Weights,
        "resnet50": torchvision.models.ResNet50_Weights,
        "mobilenet_v3_large": torchvision.models.MobileNet_V3_Large_Weights,
        "squeezenet1_0": torchvision.models.SqueezeNet1_0_Weights,
        "densenet121": torchvision.models.DenseNet121_Weights,
        "alexnet": torchvision.models.AlexNet_Weights,
        "vgg16": torchvision.models.VGG16_Weights,
        "squeezenet1_1": torchvision.models.SqueezeNet1_1_Weights,
    }

    expected = {name: known.IMAGENET1K_V1.url for name, known in own.items()}
    # the DEFAULT of torchvision, which FedAlign's and FedCCRL's codes ask for
    expected["mobilenet_v3_large"] = torchvision.models.MobileNet_V3_Large_Weights.DEFAULT.url
    assert {name: CATALOG[name].url for name in own} == expected
