"""Keeping a workspace well: backups, the doctor, metrics and notices to people."""
