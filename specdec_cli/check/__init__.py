"""An engine's answer against the exact one: rounding or a bug, and which bug."""
