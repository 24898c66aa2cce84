"""FedAvg in plain PyTorch without a framework: the baseline of `round_loop.py`.

The loop holds all images in one float tensor and selects batches by index. It trains with SGD in one thread, averages
the state dicts, and evaluates the global model on the global test set and on the sites' test sets. It is not optimised:
it uses the default memory layout and a single process.
"""

from __future__ import annotations

import copy
import time

import torch
from torch import nn


class PlainCNN(nn.Module):
    """CNN with two convolutional and two linear layers, in the usual order: convolution, ReLU, pooling.

    Args:
        in_channels: Number of image channels.
        num_classes: Number of outputs.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, num_classes) of images (B, C, 28, 28)."""
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class PlainLoop:
    """FedAvg with all images in memory.

    Args:
        images: Images of all sites and test sets, shape (N, C, 28, 28), float32.
        labels: Labels of the images, shape (N,).
        train: Indices of the training images of each site.
        tests: Indices of the test images of each site.
        server_test: Indices of the images of the global test set.
        epochs: Number of local epochs.
        batch_size: Batch size of local training.
        seed: Seed of the weights and of the batches.

    Attributes:
        model: Global model.
        seconds: CPU seconds so far of training (key ``train``) and of evaluation (key ``evaluate``).
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        train: list[torch.Tensor],
        tests: list[torch.Tensor],
        server_test: torch.Tensor,
        epochs: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.images, self.labels = images, labels
        self.train, self.tests, self.server_test = train, tests, server_test
        self.epochs, self.batch_size = epochs, batch_size
        torch.manual_seed(seed)
        self.model = PlainCNN(images.shape[1], int(labels.max()) + 1)
        self.seconds = {"train": 0.0, "evaluate": 0.0}

    def round(self, participants: list[int]) -> list[float]:
        """Run one round with the given sites and update the global model in place.

        Args:
            participants: Indices of the sites that train.

        Returns:
            The accuracies on the global test set and on the sites' test sets.
        """
        start = time.process_time()
        states, sizes = [], []
        for site in participants:
            states.append(self.fit(self.train[site]))
            sizes.append(len(self.train[site]))
        total = sum(sizes)
        mean = {k: sum(s[k] * (n / total) for s, n in zip(states, sizes, strict=True)) for k in states[0]}
        self.model.load_state_dict(mean)
        middle = time.process_time()
        scores = [self.accuracy(rows) for rows in [self.server_test, *self.tests] if len(rows)]
        self.seconds["train"] += middle - start
        self.seconds["evaluate"] += time.process_time() - middle
        return scores

    def fit(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Train a copy of the global model on the given images and return its state dict."""
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
        """Return the accuracy of the global model on the given images."""
        self.model.eval()
        correct = 0
        for batch in rows.split(256):
            correct += int((self.model(self.images[batch]).argmax(1) == self.labels[batch]).sum())
        return correct / max(1, len(rows))
