"""Settings as TOML: one file per paper setting, and the profile tables."""
