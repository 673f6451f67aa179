"""Sagas: work that reaches several places, done everywhere or stopped and undone."""
