"""What an engine image is made of, and what is read out of the engine's published files: pins, locks, flag schemas."""
