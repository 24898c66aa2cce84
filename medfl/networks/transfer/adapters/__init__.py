"""Low-rank adapters (LoRA) of linear and convolution layers: the layers, and their tensors by name.

Source: Hu et al., ICLR 2022. A layer's weight W is frozen, and the layer learns a change s B A of low rank, where
s = alpha / rank. A convolution is treated as the matrix (output channels, input channels x kernel).
"""
