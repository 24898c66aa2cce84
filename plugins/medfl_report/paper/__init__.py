"""Pictures and tables of a report as files for papers, with the numbers of the page."""
