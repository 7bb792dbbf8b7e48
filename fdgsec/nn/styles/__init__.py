"""Image styles: channel statistics, encoders and decoders, spectra, and their clustering."""
