"""Statistics that judge a guess: intervals, identification, images, distributions."""
