"""Commands ``medfl pacs``."""
