"""The papers' experiments and ablations as TOML: who trains on what, and what the paper prints."""
