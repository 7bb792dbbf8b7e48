"""The functions of `fdgsec`: each verb of the command line, with Python's types."""
