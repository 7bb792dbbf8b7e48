"""The verb `compare`: finished runs side by side."""
