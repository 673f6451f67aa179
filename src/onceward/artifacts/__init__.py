"""Files that are kept: contents by their digest, stream files, and what is redacted from either."""
