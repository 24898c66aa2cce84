"""Export of a report's figures and tables as files for papers."""
