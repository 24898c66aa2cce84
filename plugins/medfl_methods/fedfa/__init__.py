"""FedFA: `method` has it, `anchors` what it says of features."""
