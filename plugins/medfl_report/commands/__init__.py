"""Commands about results: ``report``, ``compare``, ``card``, ``verify``, ``status`` and ``monitor``."""
