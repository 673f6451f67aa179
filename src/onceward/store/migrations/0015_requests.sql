-- How often a kernel began to take a request and has neither answered it nor given it back; and until when it may be taken.
ALTER TABLE requests ADD COLUMN takes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE requests ADD COLUMN expires_at INTEGER;
