"""Re-identification: the image in a gallery whose style was released."""
