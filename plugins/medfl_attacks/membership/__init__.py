"""Was this image among those that a site trained on?"""
