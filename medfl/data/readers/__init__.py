"""Readers of image files: DICOM, NIfTI, NRRD, MHA, PNG, JPEG, TIFF, BMP and PGM."""
