"""Everything that uses MONAI's bundles or its client interface."""
