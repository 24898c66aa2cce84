"""Transfer learning: weights to start from, frozen tensors, the part that learns, adapters, and features as inputs."""
