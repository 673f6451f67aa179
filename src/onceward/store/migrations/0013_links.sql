-- Later requests to end a child, beside the first (C-6).
ALTER TABLE urm_dispatch_token ADD COLUMN joined_request_ids TEXT;
