"""Run the steps of a federation at the server and at a site, and save each step durably. It is independent of MONAI."""
