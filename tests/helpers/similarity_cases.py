"""The similarity of rows of features by its equations, and feature maps."""

import torch
from torch.nn import functional as F


def by_the_book(h, k):
    """Eqs 6, 9 and 14 in float64 on rows of features (n, p)."""

    def similarity(rows):
        gram = rows.double() @ rows.double().T
        return F.normalize(gram, dim=1, eps=1e-300) * len(rows) ** 0.5

    return (similarity(h) - similarity(k)).square().sum() / len(h) ** 2


def pixel_rows(maps):
    return maps.movedim(1, -1).flatten(1, -2).transpose(0, 1).flatten(1)


def maps(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
