"""Privacy mechanisms: subclasses of `medfl.privacy.policy.PrivacyPolicy`, one file for each privacy unit."""
