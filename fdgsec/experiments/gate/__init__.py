"""The verb `gate`: whether a finished run keeps within limits, for continuous integration."""
