"""NVFlare backend: messages between machines, and the two ends that exchange them."""
