-- What somebody chose of a build's plan: some steps, other config, what runs in any case. Resuming means the same.
ALTER TABLE builds ADD COLUMN choices TEXT NOT NULL DEFAULT '{}';
