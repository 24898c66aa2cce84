"""Decoders of DICOM, NIfTI, PNG, JPEG and PGM."""
