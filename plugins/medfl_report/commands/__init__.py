"""Commands that show results: ``report``, ``compare``, ``card``, ``verify``, ``status`` and ``monitor``."""
