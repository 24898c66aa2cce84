"""Cases through a chain of MONAI's transforms: what does not change is cached, what is random runs at each visit."""
