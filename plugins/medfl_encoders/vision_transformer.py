"""ViT-S/14 as in DINOv2: a vision transformer with LayerScale and interpolated position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from medfl.types import Tensors
from medfl_encoders import IMAGENET_MEAN, IMAGENET_STD
from medfl_encoders.image_input import ImageInput
from medfl_encoders.tensor_names import from_vit

PATCH = 14
"""Edge of a patch in pixels."""

GRID = 37
"""Number of patches along an edge for which the weights have position embeddings (518 pixels)."""


class Attention(nn.Module):
    """Multi-head self-attention.

    Args:
        width: Number of numbers of a token.
        heads: Number of heads, which divides `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens (B, N, width) that attend to tokens (B, N, width)."""
        batch, count, width = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        out: torch.Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, count, width))
        return out


class Perceptron(nn.Module):
    """Two linear layers with GELU between them, applied to each token.

    Args:
        width: Number of numbers of a token.
        hidden: Width of the hidden layer.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens (B, N, width) of tokens (B, N, width)."""
        out: torch.Tensor = self.fc2(self.act(self.fc1(tokens)))
        return out


class LayerScale(nn.Module):
    """Multiplication of each of a token's numbers by a trained factor.

    Args:
        width: Number of numbers of a token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scaled tokens (B, N, width)."""
        return tokens * self.gamma


class Block(nn.Module):
    """Transformer block: attention and perceptron, each with layer norm before it and a shortcut around it.

    Args:
        width: Number of numbers of a token.
        heads: Number of heads of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(width, eps=1e-6), Attention(width, heads), LayerScale(width)
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(width, eps=1e-6), Perceptron(width, 4 * width), LayerScale(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens (B, N, width) of tokens (B, N, width)."""
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        out: torch.Tensor = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return out


class PatchEmbedding(nn.Module):
    """Linear map of each patch of an image to a token.

    Args:
        width: Number of numbers of a token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, PATCH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return tokens (B, H / 14 * W / 14, width) of images (B, 3, H, W)."""
        tokens: torch.Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


class VisionTransformerBody(nn.Module):
    """Feature extractor whose parameters have the names of DINOv2's own file.

    Args:
        image_input: Conversion of the images, to a size that is divisible by 14.
        width: Number of numbers of a token, which are the features.
        depth: Number of blocks.
        heads: Number of heads of each attention.
    """

    def __init__(self, image_input: ImageInput, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.image_input = image_input
        self.patch_embed = PatchEmbedding(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID * GRID, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.resize = nn.Buffer(interpolation_matrix(image_input.size // PATCH), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute features (B, width) of images (B, C, H, W), or mean features of the slices of volumes.

        The features of an image are the normalised class token after the last block.
        """
        patches = self.patch_embed(self.image_input(images)) + torch.matmul(self.resize, self.pos_embed[:, 1:])
        first = (self.cls_token + self.pos_embed[:, :1]).expand(patches.shape[0], -1, -1)
        tokens = self.blocks(torch.cat([first, patches], dim=1))
        return self.image_input.mean_of_slices(self.norm(tokens)[:, 0])


class ViTS14(nn.Module):
    """ViT-S/14 as in DINOv2 (Oquab et al., TMLR 2024), without register tokens, for images of any size.

    Images in [0, 1] are resized and normalised by the network itself (`medfl_encoders.image_input.ImageInput`), so a
    bundle must not normalise them before. Position embeddings are interpolated to the grid of patches.

    Args:
        in_channels: Number of image channels, 1 or 3; one channel is repeated three times.
        num_classes: Number of outputs: classes, findings, predicted numbers, or 1 for a risk; >= 1.
        spatial_dims: 2 for images; 3 for volumes, of which slices are encoded and their features averaged.
        size: Edge in pixels to which images are resized, divisible by 14, >= 42.
        mean: Mean of the three channels on the scale [0, 1], which belongs to the weights.
        std: Standard deviation of the three channels, which belongs to the weights.

    Attributes:
        body: Feature extractor from images (B, in_channels, H, W) to features (B, 384), the normalised class token.
        head: Linear classifier from features to logits (B, num_classes).

    Raises:
        SettingsError: If an argument is invalid.
    """

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 2,
        spatial_dims: int = 2,
        size: int = 224,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        image_input = ImageInput("ViTS14", in_channels, spatial_dims, size, PATCH, mean, std)
        self.body = VisionTransformerBody(image_input, width=384, depth=12, heads=6)
        self.head = nn.Linear(384, num_classes)

    @torch.jit.unused
    def rename_weights(self, tensors: Tensors) -> Tensors:
        """Return weights with this network's names, from the names of DINOv2, timm, Hugging Face or this network.

        Files of unknown content, which no record describes, get their names here.
        """
        return tensors if any(name.startswith("body.") for name in tensors) else from_vit(tensors)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, in_channels, H, W) in [0, 1]."""
        logits: torch.Tensor = self.head(self.body(images))
        return logits


def interpolation_matrix(edge: int) -> torch.Tensor:
    """Return the matrix that interpolates position embeddings of the grid of the weights to a grid of another edge.

    The interpolation is bicubic, without antialiasing, like in the package transformers. (DINOv2's own code scales by
    (edge + 0.1) / 37 instead of edge / 37.) As a product with a matrix, its gradient is deterministic on every device.

    Args:
        edge: Number of patches along an edge of the image, >= 1.

    Returns:
        Matrix (edge * edge, 37 * 37); the identity for edge 37.
    """
    grid = torch.eye(GRID * GRID).reshape(GRID * GRID, 1, GRID, GRID)
    resized = F.interpolate(grid, size=(edge, edge), mode="bicubic")
    return resized.reshape(GRID * GRID, edge * edge).T.contiguous()
