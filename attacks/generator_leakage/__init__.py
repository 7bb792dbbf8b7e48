"""What a client's generator says about the images it was trained on."""
