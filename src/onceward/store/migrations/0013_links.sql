-- Later requests to end a child, beside the first (C-6).
ALTER TABLE urm_dispatch_token ADD COLUMN joined_request_ids TEXT;

-- How far the events had come when a recovery checked them: the next one looks only at children that ended since (C-4).
ALTER TABLE recoveries ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
CREATE INDEX urm_dispatch_token_ended ON urm_dispatch_token (position) WHERE phase = 'terminal';
