"""`fdgsec attack --artifacts`: attack style vectors from elsewhere."""
