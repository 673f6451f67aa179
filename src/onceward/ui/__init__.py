"""Ways in, thin: parse, ask the kernel, show what came of it."""
