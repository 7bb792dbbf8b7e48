"""Datasets, roles and partitions: everything from files on disk to the images of each client."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.data.catalog import DATASETS, DatasetEntry, dataset_entry, load_dataset
    from fdgsec.data.domains import DomainDataset, as_float, downsample, join, shares_of
    from fdgsec.data.partition import (
        ClientData,
        DomainSplit,
        dirichlet_domain,
        lambda_split,
        lodo,
        ltdo,
        one_domain_per_client,
        single_domain,
        split_validation,
    )
    from fdgsec.data.roles import Roles, split_roles
    from fdgsec.data.sampling import skewed, stratified, uniform
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "DATASETS", "ClientData", "DatasetEntry", "DomainDataset", "DomainSplit", "Roles", "as_float", "dataset_entry",
    "dirichlet_domain", "downsample", "join", "lambda_split", "load_dataset", "lodo", "ltdo", "one_domain_per_client",
    "shares_of", "single_domain", "skewed", "split_roles", "split_validation", "stratified", "uniform",
]  # fmt: skip
