"""Raw results of studies, the pages that are generated from them, and the check that recomputes every page."""
