-- Later requests to end a child, beside the first (C-6).
ALTER TABLE urm_dispatch_token ADD COLUMN joined_request_ids TEXT;

-- How far the events had come when a recovery checked them: the next one looks only at children that ended since (C-4).
ALTER TABLE recoveries ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
CREATE INDEX urm_dispatch_token_ended ON urm_dispatch_token (position) WHERE phase = 'terminal';

-- Which step of which build a reference belongs to (seed 000: refs link blobs to build, stage and target). An owner is a
-- child, whose work names its step; a step that was reused or skipped has the child of its checkpoint. Derived, so that
-- nothing can disagree with it: no backup, bundle or check has to know it.
--[sqlite
CREATE VIEW artifact_links AS
SELECT t.parent_session_id AS build_id, json_extract(t.work, '$.stage') AS stage,
  json_extract(t.work, '$.target') AS target, r.owner, r.name, r.kind, r.sha256, r.created_at
FROM artifact_refs r JOIN urm_dispatch_token t ON t.child_id = r.owner JOIN builds b ON b.build_id = t.parent_session_id
WHERE json_extract(t.work, '$.stage') IS NOT NULL AND json_extract(t.work, '$.target') IS NOT NULL
UNION
SELECT c.build_id, c.stage, c.target, r.owner, r.name, r.kind, r.sha256, r.created_at
FROM checkpoints c JOIN artifact_refs r ON r.owner = c.child_id;
--]
--[postgresql
CREATE VIEW artifact_links AS
SELECT t.parent_session_id AS build_id, t.work::json ->> 'stage' AS stage, t.work::json ->> 'target' AS target,
  r.owner, r.name, r.kind, r.sha256, r.created_at
FROM artifact_refs r JOIN urm_dispatch_token t ON t.child_id = r.owner JOIN builds b ON b.build_id = t.parent_session_id
WHERE t.work::json ->> 'stage' IS NOT NULL AND t.work::json ->> 'target' IS NOT NULL
UNION
SELECT c.build_id, c.stage, c.target, r.owner, r.name, r.kind, r.sha256, r.created_at
FROM checkpoints c JOIN artifact_refs r ON r.owner = c.child_id;
--]
