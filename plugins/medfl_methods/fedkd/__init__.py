"""FedKD: `method` has it, `low_rank` what updates are compressed by."""
