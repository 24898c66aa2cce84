"""Features of a frozen body in place of images: computed once, and harmonised over the sites."""
