"""The loop a researcher writes without a framework: the yardstick of `round_loop.py`.

One preloaded float tensor, index batches, SGD, a mean of state dicts, evaluation of the global model on the global test
set and on the sites' test sets, one thread. Nothing here is tuned: no memory layout, no processes.
"""

from __future__ import annotations

import copy
import time

import torch
from torch import nn


class PlainCNN(nn.Module):
    """The four-layer CNN as it is usually written: convolution, ReLU, pooling."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of images (B, C, 28, 28)."""
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class PlainLoop:
    """FedAvg in a few lines.

    Args:
        images: (N, C, 28, 28), float32, all images of all sites and tests.
        labels: (N,).
        train: Training rows of each site.
        tests: Test rows of each site.
        global_test: Rows of the global test set.
        epochs: Local epochs.
        batch_size: Images in a batch.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        train: list[torch.Tensor],
        tests: list[torch.Tensor],
        global_test: torch.Tensor,
        epochs: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.images, self.labels = images, labels
        self.train, self.tests, self.global_test = train, tests, global_test
        self.epochs, self.batch_size = epochs, batch_size
        torch.manual_seed(seed)
        self.model = PlainCNN(images.shape[1], int(labels.max()) + 1)
        self.seconds = {"train": 0.0, "evaluate": 0.0}

    def round(self, participants: list[int]) -> list[float]:
        """One round; returns the accuracies on the global and the sites' test sets."""
        start = time.process_time()
        states, sizes = [], []
        for site in participants:
            states.append(self.fit(self.train[site]))
            sizes.append(len(self.train[site]))
        total = sum(sizes)
        mean = {k: sum(s[k] * (n / total) for s, n in zip(states, sizes, strict=True)) for k in states[0]}
        self.model.load_state_dict(mean)
        middle = time.process_time()
        scores = [self.accuracy(rows) for rows in [self.global_test, *self.tests] if len(rows)]
        self.seconds["train"] += middle - start
        self.seconds["evaluate"] += time.process_time() - middle
        return scores

    def fit(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Local training from the global model."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model.train()
        for _ in range(self.epochs):
            for batch in rows[torch.randperm(len(rows))].split(self.batch_size):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(self.images[batch]), self.labels[batch])
                loss.backward()
                optimizer.step()
        return model.state_dict()

    @torch.no_grad()
    def accuracy(self, rows: torch.Tensor) -> float:
        """Accuracy of the global model on some rows."""
        self.model.eval()
        correct = 0
        for batch in rows.split(256):
            correct += int((self.model(self.images[batch]).argmax(1) == self.labels[batch]).sum())
        return correct / max(1, len(rows))
