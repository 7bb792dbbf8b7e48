"""The Inception v3 that FID is defined with (Heusel et al., NeurIPS 2017), as in pytorch-fid.

It is torchvision's with 1008 classes and without the auxiliary head, except for the pooling of some blocks, which
follows TensorFlow: averages leave the padding out, and the last block uses max pooling. Pooling has no parameters, so
the published file fits both."""

from typing import cast

from torch import nn


def inception_fid() -> nn.Module:
    """Build the network without weights; pytorch-fid's constructor would download them."""
    from pytorch_fid import inception as blocks
    from torchvision.models import inception_v3  # as slow to import as torch

    network = cast(nn.Module, inception_v3(weights=None, num_classes=1008, aux_logits=False, init_weights=False))
    for name, width, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        setattr(network, name, blocks.FIDInceptionA(width, pool_features=pool))
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        setattr(network, name, blocks.FIDInceptionC(768, channels_7x7=width))
    network.Mixed_7b = cast(nn.Module, blocks.FIDInceptionE_1(1280))
    network.Mixed_7c = cast(nn.Module, blocks.FIDInceptionE_2(2048))
    return network
