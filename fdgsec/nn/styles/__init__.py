"""Image styles: channel statistics, encoders and decoders, amplitude spectra, and their clustering."""
