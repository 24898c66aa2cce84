"""A federation across machines: what each party checks, and how medfl uses NVIDIA FLARE (`docs/deploy.md`)."""
