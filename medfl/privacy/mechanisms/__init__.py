"""Privacy mechanisms: one file with one subclass of `medfl.privacy.policy.PrivacyPolicy` each."""
