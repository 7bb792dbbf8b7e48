"""One module per verb of the command line; none of them prints."""
