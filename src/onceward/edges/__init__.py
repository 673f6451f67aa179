"""Ways in, thin: parse, call the engine, render."""
