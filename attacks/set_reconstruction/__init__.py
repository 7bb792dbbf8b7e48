"""Set reconstruction: the list of images behind a pooled release."""
