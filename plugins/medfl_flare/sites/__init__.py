"""A site's own side between machines: its file, what that allows, its part of a run, and the conversation."""
