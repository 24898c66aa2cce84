"""Typed records of study files and their results, one reader and one writer each."""
