"""The way in over HTTP: an API for programs, and the pages of the dashboard."""
