"""The gate: locked scripts played through the real engine, replayed, and held against what is
locked (R-2 to R-5)."""
