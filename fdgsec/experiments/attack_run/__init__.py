"""`fdgsec attack --run`: attack a run that has already finished."""
