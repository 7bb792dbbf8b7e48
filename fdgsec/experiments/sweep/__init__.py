"""`fdgsec sweep`: privacy and accuracy along one option of a defense."""
