-- Runs of sagas (S-1), what their actions left, the leases they work under (S-4), and the registry's audit (S-6).
CREATE TABLE saga_runs (
  saga_id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  idempotency_root TEXT NOT NULL,
  shape TEXT NOT NULL,
  input TEXT NOT NULL,
  file TEXT NOT NULL,
  grant_id TEXT,
  lease TEXT NOT NULL,
  lease_fence INTEGER NOT NULL,
  digests TEXT NOT NULL,
  last_ok_state TEXT,
  undone INTEGER NOT NULL,
  stuck TEXT,
  settled INTEGER NOT NULL,
  state TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT saga_runs_root UNIQUE (idempotency_root),
  CONSTRAINT saga_runs_settled CHECK (settled IN (0, 1)),
  CONSTRAINT saga_runs_done CHECK (state <> 'DONE' OR settled = 0 AND stuck IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX saga_runs_newest ON saga_runs (created_at);

-- The last word on every action and compensation of a run.
CREATE TABLE saga_steps (
  saga_id TEXT NOT NULL REFERENCES saga_runs (saga_id),
  step TEXT NOT NULL,
  side TEXT NOT NULL,
  status TEXT NOT NULL,
  outputs TEXT NOT NULL,
  child_id TEXT NOT NULL,
  error TEXT,
  PRIMARY KEY (saga_id, step, side),
  CONSTRAINT saga_steps_side CHECK (side IN ('action', 'compensation')),
  CONSTRAINT saga_steps_status CHECK (status IN ('done', 'failed'))
) STRICT, WITHOUT ROWID;

-- Who may write under a name. A lease is given back by forgetting its holder; its fence only grows.
CREATE TABLE run_leases (
  name TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  token TEXT NOT NULL,
  fence INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  CONSTRAINT run_leases_positive CHECK (fence >= 1)
) STRICT, WITHOUT ROWID;

-- For what a value was superseded, or a run's evidence taken: written with the event that names it.
CREATE TABLE registry_audit (
  audit_id TEXT PRIMARY KEY,
  root TEXT NOT NULL,
  state TEXT NOT NULL,
  subject TEXT NOT NULL,
  rollback_ref TEXT NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  CONSTRAINT registry_audit_once UNIQUE (root, state, subject),
  CONSTRAINT registry_audit_said CHECK (rollback_ref <> '')
) STRICT, WITHOUT ROWID;

-- A value is superseded only together with its audit row: the reference is checked when all is committed.
--[sqlite
ALTER TABLE registry_values ADD COLUMN audit_id TEXT
  CONSTRAINT registry_values_audited CHECK (status <> 'superseded' OR audit_id IS NOT NULL)
  REFERENCES registry_audit (audit_id) DEFERRABLE INITIALLY DEFERRED;
CREATE UNIQUE INDEX registry_values_audit ON registry_values (audit_id);
CREATE TRIGGER registry_values_audit_kept BEFORE UPDATE ON registry_values
WHEN OLD.audit_id IS NOT NULL AND NEW.audit_id IS NOT OLD.audit_id
BEGIN SELECT RAISE(ABORT, 'registry_values_meaning'); END;

CREATE TRIGGER registry_audit_birth BEFORE INSERT ON registry_audit
WHEN EXISTS (SELECT 1 FROM registry_audit WHERE audit_id = NEW.audit_id
    OR root = NEW.root AND state = NEW.state AND subject = NEW.subject)
  OR NOT EXISTS (SELECT 1 FROM events WHERE position = NEW.position
    AND json_extract(body, '$.detail.audit_id') = NEW.audit_id)
BEGIN SELECT RAISE(ABORT, 'registry_audit_kept'); END;
CREATE TRIGGER registry_audit_update BEFORE UPDATE ON registry_audit
BEGIN SELECT RAISE(ABORT, 'registry_audit_kept'); END;
CREATE TRIGGER registry_audit_delete BEFORE DELETE ON registry_audit
BEGIN SELECT RAISE(ABORT, 'registry_audit_kept'); END;

CREATE TRIGGER saga_runs_birth BEFORE INSERT ON saga_runs
WHEN EXISTS (SELECT 1 FROM saga_runs WHERE saga_id = NEW.saga_id) OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'saga:' || NEW.saga_id AND json_extract(e.body, '$.detail.to') = NEW.state
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'saga_runs_moved'); END;
CREATE TRIGGER saga_runs_move BEFORE UPDATE ON saga_runs
WHEN (NEW.state IS NOT OLD.state OR NEW.version <> OLD.version OR NEW.last_ok_state IS NOT OLD.last_ok_state
    OR NEW.undone <> OLD.undone OR NEW.stuck IS NOT OLD.stuck OR NEW.settled <> OLD.settled)
  AND (NEW.version <> OLD.version + 1 OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'saga:' || NEW.saga_id AND json_extract(e.body, '$.detail.from') = OLD.state
      AND json_extract(e.body, '$.detail.to') = NEW.state
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version))
BEGIN SELECT RAISE(ABORT, 'saga_runs_moved'); END;
CREATE TRIGGER saga_runs_given BEFORE UPDATE ON saga_runs
WHEN NEW.saga_id IS NOT OLD.saga_id OR NEW.name IS NOT OLD.name OR NEW.shape IS NOT OLD.shape
  OR NEW.idempotency_root IS NOT OLD.idempotency_root OR NEW.input IS NOT OLD.input OR NEW.file IS NOT OLD.file
  OR NEW.grant_id IS NOT OLD.grant_id OR NEW.lease IS NOT OLD.lease OR NEW.digests IS NOT OLD.digests
  OR NEW.lease_fence < OLD.lease_fence OR NEW.settled < OLD.settled
BEGIN SELECT RAISE(ABORT, 'saga_runs_moved'); END;
CREATE TRIGGER saga_runs_delete BEFORE DELETE ON saga_runs BEGIN SELECT RAISE(ABORT, 'saga_runs_kept'); END;
CREATE TRIGGER run_leases_fence BEFORE UPDATE ON run_leases WHEN NEW.fence < OLD.fence OR NEW.name IS NOT OLD.name
BEGIN SELECT RAISE(ABORT, 'run_leases_fence'); END;
CREATE TRIGGER run_leases_delete BEFORE DELETE ON run_leases BEGIN SELECT RAISE(ABORT, 'run_leases_fence'); END;
--]
--[postgresql
ALTER TABLE registry_values ADD COLUMN audit_id TEXT
  CONSTRAINT registry_values_audit UNIQUE
  CONSTRAINT registry_values_audit_row REFERENCES registry_audit (audit_id) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE registry_values ADD CONSTRAINT registry_values_audited
  CHECK (status <> 'superseded' OR audit_id IS NOT NULL);
CREATE TRIGGER registry_values_audit_kept BEFORE UPDATE ON registry_values FOR EACH ROW
  WHEN (OLD.audit_id IS NOT NULL AND NEW.audit_id IS DISTINCT FROM OLD.audit_id)
  EXECUTE FUNCTION refuse('registry_values_meaning');

CREATE FUNCTION registry_audit_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM events WHERE position = NEW.position
      AND body::json #>> '{detail,audit_id}' = NEW.audit_id) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'registry_audit_kept', CONSTRAINT = 'registry_audit_kept';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER registry_audit_birth AFTER INSERT ON registry_audit
  FOR EACH ROW EXECUTE FUNCTION registry_audit_birth();
CREATE TRIGGER registry_audit_change BEFORE UPDATE OR DELETE ON registry_audit
  FOR EACH ROW EXECUTE FUNCTION refuse('registry_audit_kept');

CREATE TRIGGER saga_runs_moved AFTER INSERT ON saga_runs
  FOR EACH ROW EXECUTE FUNCTION subject_moved('saga', 'saga_id', 'state');
CREATE TRIGGER saga_runs_move AFTER UPDATE ON saga_runs FOR EACH ROW
  WHEN (NEW.state <> OLD.state OR NEW.version <> OLD.version OR NEW.last_ok_state IS DISTINCT FROM OLD.last_ok_state
    OR NEW.undone <> OLD.undone OR NEW.stuck IS DISTINCT FROM OLD.stuck OR NEW.settled <> OLD.settled)
  EXECUTE FUNCTION subject_moved('saga', 'saga_id', 'state');
CREATE TRIGGER saga_runs_given BEFORE UPDATE ON saga_runs FOR EACH ROW
  WHEN (NEW.saga_id <> OLD.saga_id OR NEW.name <> OLD.name OR NEW.shape <> OLD.shape
    OR NEW.idempotency_root <> OLD.idempotency_root OR NEW.input <> OLD.input OR NEW.file <> OLD.file
    OR NEW.grant_id IS DISTINCT FROM OLD.grant_id OR NEW.lease <> OLD.lease OR NEW.digests <> OLD.digests
    OR NEW.lease_fence < OLD.lease_fence OR NEW.settled < OLD.settled)
  EXECUTE FUNCTION refuse('saga_runs_moved');
CREATE TRIGGER saga_runs_delete BEFORE DELETE ON saga_runs FOR EACH ROW EXECUTE FUNCTION refuse('saga_runs_kept');
CREATE TRIGGER run_leases_fence BEFORE UPDATE ON run_leases FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR NEW.name <> OLD.name) EXECUTE FUNCTION refuse('run_leases_fence');
CREATE TRIGGER run_leases_delete BEFORE DELETE ON run_leases FOR EACH ROW EXECUTE FUNCTION refuse('run_leases_fence');
--]
