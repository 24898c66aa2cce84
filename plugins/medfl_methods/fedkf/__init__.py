"""FedKF: `method` has it, `generator` what makes images of noise."""
