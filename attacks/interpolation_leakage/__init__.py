"""What FISC's one interpolation style says about its clients."""
