"""All that touches MONAI's bundle machinery or its client API."""
