import torch
import torchvision.models
from pytorch_fid.inception import FIDInceptionA, FIDInceptionC, FIDInceptionE_1, FIDInceptionE_2

from fdgsec.published import CATALOG


def test_every_published_file_name_carries_the_expected_hash_or_the_catalogue_has_it_whole():
    for entry in CATALOG.values():
        assert entry.url.startswith("https://")
        assert len(entry.sha256) == 64 or entry.file_name.removesuffix(".pth").endswith(entry.sha256)


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

    assert {name: CATALOG[name].url for name in own} == {n: w.IMAGENET1K_V1.url for n, w in own.items()}


def test_the_adain_encoder_has_the_keys_of_the_published_layout():
    channels = {0: (3, 3, 1), 2: (64, 3, 3), 5: (64, 64, 3), 9: (128, 64, 3), 12: (128, 128, 3), 16: (256, 128, 3)}
    channels |= {19: (256, 256, 3), 22: (256, 256, 3), 25: (256, 256, 3), 29: (512, 256, 3)}

    expected = {f"{number}.weight": (o, i, k, k) for number, (o, i, k) in channels.items()}
    expected |= {f"{number}.bias": (o,) for number, (o, _, _) in channels.items()}

    assert CATALOG["adain_vgg"].shapes() == expected


def test_the_adain_decoder_has_the_keys_of_the_published_layout():
    channels = {1: (256, 512), 5: (256, 256), 8: (256, 256), 11: (256, 256), 14: (128, 256)}
    channels |= {18: (128, 128), 21: (64, 128), 25: (64, 64), 28: (3, 64)}

    expected = {f"{number}.weight": (o, i, 3, 3) for number, (o, i) in channels.items()}
    expected |= {f"{number}.bias": (o,) for number, (o, _) in channels.items()}

    assert CATALOG["adain_decoder"].shapes() == expected


def test_inception_is_the_network_of_pytorch_fid():
    with torch.device("meta"):
        network = torchvision.models.inception_v3(weights=None, num_classes=1008, aux_logits=False, init_weights=False)
        network.Mixed_5b = FIDInceptionA(192, pool_features=32)
        network.Mixed_5c = FIDInceptionA(256, pool_features=64)
        network.Mixed_5d = FIDInceptionA(288, pool_features=64)
        network.Mixed_6b = FIDInceptionC(768, channels_7x7=128)
        network.Mixed_6c = FIDInceptionC(768, channels_7x7=160)
        network.Mixed_6d = FIDInceptionC(768, channels_7x7=160)
        network.Mixed_6e = FIDInceptionC(768, channels_7x7=192)
        network.Mixed_7b = FIDInceptionE_1(1280)
        network.Mixed_7c = FIDInceptionE_2(2048)

    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    assert CATALOG["inception_fid"].shapes() == expected
