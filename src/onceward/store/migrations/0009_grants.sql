-- Grants (S-3): an authority for exactly one thing, used once.
CREATE TABLE grants (
  grant_id TEXT PRIMARY KEY,
  plan_id TEXT NOT NULL,
  revision INTEGER NOT NULL,
  manifest_digest TEXT NOT NULL,
  schema_digest TEXT NOT NULL,
  environment TEXT NOT NULL,
  executor TEXT NOT NULL,
  actions TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  granter TEXT REFERENCES principals (name),
  statement_hash TEXT REFERENCES signatures (statement_hash),
  consumed_by_root TEXT,
  finalized_at INTEGER,
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT grants_status CHECK (status IN ('draft', 'active', 'consumed', 'expired', 'revoked')),
  CONSTRAINT grants_used CHECK ((consumed_by_root IS NOT NULL) = (status = 'consumed')),
  CONSTRAINT grants_finalized CHECK (finalized_at IS NULL OR status = 'consumed'),
  CONSTRAINT grants_issued CHECK (status IN ('draft', 'revoked') OR granter IS NOT NULL AND statement_hash IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- What a grant is for is written once; so is who gave it, and who used it.
--[sqlite
CREATE TRIGGER grants_birth BEFORE INSERT ON grants
WHEN EXISTS (SELECT 1 FROM grants WHERE grant_id = NEW.grant_id) OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.grant_id AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'grants_moved'); END;
CREATE TRIGGER grants_move BEFORE UPDATE ON grants
WHEN NEW.version <> OLD.version + 1 OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.grant_id AND json_extract(e.body, '$.detail.from') = OLD.status
      AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
  OR NEW.grant_id IS NOT OLD.grant_id OR NEW.plan_id IS NOT OLD.plan_id OR NEW.revision IS NOT OLD.revision
  OR NEW.manifest_digest IS NOT OLD.manifest_digest OR NEW.schema_digest IS NOT OLD.schema_digest
  OR NEW.environment IS NOT OLD.environment OR NEW.executor IS NOT OLD.executor OR NEW.actions IS NOT OLD.actions
  OR OLD.granter IS NOT NULL AND (NEW.granter IS NOT OLD.granter OR NEW.statement_hash IS NOT OLD.statement_hash
    OR NEW.expires_at IS NOT OLD.expires_at)
  OR OLD.consumed_by_root IS NOT NULL AND NEW.consumed_by_root IS NOT OLD.consumed_by_root
  OR OLD.finalized_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'grants_moved'); END;
CREATE TRIGGER grants_delete BEFORE DELETE ON grants BEGIN SELECT RAISE(ABORT, 'grants_moved'); END;
--]
--[postgresql
CREATE TRIGGER grants_moved AFTER INSERT OR UPDATE ON grants
  FOR EACH ROW EXECUTE FUNCTION subject_moved('entry', 'grant_id', 'status');
CREATE TRIGGER grants_scope BEFORE UPDATE ON grants FOR EACH ROW
  WHEN (NEW.grant_id <> OLD.grant_id OR NEW.plan_id <> OLD.plan_id OR NEW.revision <> OLD.revision
    OR NEW.manifest_digest <> OLD.manifest_digest OR NEW.schema_digest <> OLD.schema_digest
    OR NEW.environment <> OLD.environment OR NEW.executor <> OLD.executor OR NEW.actions <> OLD.actions
    OR (OLD.granter IS NOT NULL AND (NEW.granter IS DISTINCT FROM OLD.granter
      OR NEW.statement_hash IS DISTINCT FROM OLD.statement_hash OR NEW.expires_at <> OLD.expires_at))
    OR (OLD.consumed_by_root IS NOT NULL AND NEW.consumed_by_root IS DISTINCT FROM OLD.consumed_by_root)
    OR OLD.finalized_at IS NOT NULL)
  EXECUTE FUNCTION refuse('grants_moved');
CREATE TRIGGER grants_delete BEFORE DELETE ON grants FOR EACH ROW EXECUTE FUNCTION refuse('grants_moved');
--]
