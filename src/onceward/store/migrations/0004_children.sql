-- Sessions, the dispatch tokens of their children, budgets and artifacts (C-1, C-30, B-12).
CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY,
  max_active_children INTEGER NOT NULL,
  queue_high INTEGER NOT NULL,
  dispatch_high INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  CONSTRAINT sessions_cap CHECK (max_active_children >= 1)
) STRICT, WITHOUT ROWID;

CREATE TABLE urm_dispatch_token (
  child_id TEXT PRIMARY KEY,
  parent_session_id TEXT NOT NULL REFERENCES sessions (session_id),
  parent_stream_id TEXT NOT NULL,
  parent_seq INTEGER NOT NULL,
  queue_seq INTEGER NOT NULL,
  dispatch_seq INTEGER,
  worker_run_id TEXT,
  phase TEXT NOT NULL,
  slot INTEGER,
  owner_host TEXT NOT NULL,
  owner_boot TEXT NOT NULL,
  owner_pid INTEGER NOT NULL,
  owner_start TEXT NOT NULL,
  owner_fence INTEGER NOT NULL,
  kind TEXT NOT NULL,
  work TEXT NOT NULL,
  target TEXT,
  attempt INTEGER NOT NULL,
  predecessor TEXT,
  due_at INTEGER NOT NULL,
  child_pid INTEGER,
  child_start TEXT,
  started_at INTEGER,
  last_seen INTEGER,
  cancel_request_id TEXT,
  death TEXT,
  reason TEXT,
  code TEXT,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT urm_dispatch_token_phase CHECK (phase IN ('queued', 'leased', 'started', 'terminal')),
  CONSTRAINT urm_dispatch_token_kind CHECK (kind IN ('function', 'process')),
  CONSTRAINT urm_dispatch_token_dispatch_seq UNIQUE (parent_session_id, dispatch_seq),
  CONSTRAINT urm_dispatch_token_queue_seq UNIQUE (parent_session_id, queue_seq),
  CONSTRAINT urm_dispatch_token_worker_run_id UNIQUE (parent_session_id, worker_run_id)
) STRICT, WITHOUT ROWID;

-- The cap is a matter of the schema: a running child has a slot of its parent, and a slot has one child (X28).
CREATE UNIQUE INDEX urm_dispatch_token_slot ON urm_dispatch_token (parent_session_id, slot)
  WHERE phase IN ('leased', 'started');
CREATE INDEX urm_dispatch_token_open ON urm_dispatch_token (parent_session_id, queue_seq) WHERE phase <> 'terminal';

-- The phase and its event are one; anchors are written once; nothing goes backward (C-3, C-4).
--[sqlite
CREATE TRIGGER urm_dispatch_token_birth BEFORE INSERT ON urm_dispatch_token
WHEN EXISTS (SELECT 1 FROM urm_dispatch_token WHERE child_id = NEW.child_id)
  OR NEW.phase IN ('started', 'terminal') AND NOT EXISTS (
    SELECT 1 FROM events WHERE position = NEW.position
      AND json_extract(body, '$.detail.child_id') = NEW.child_id
      AND json_extract(body, '$.detail.to') = NEW.phase
      AND json_extract(body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'urm_dispatch_token_moved'); END;
CREATE TRIGGER urm_dispatch_token_move BEFORE UPDATE ON urm_dispatch_token
WHEN OLD.phase = 'terminal' AND (NEW.slot IS NOT OLD.slot OR NEW.phase IS NOT OLD.phase OR NEW.position IS NOT OLD.position)
  OR NEW.child_id IS NOT OLD.child_id OR NEW.parent_session_id IS NOT OLD.parent_session_id
  OR NEW.queue_seq IS NOT OLD.queue_seq
  OR OLD.dispatch_seq IS NOT NULL AND NEW.dispatch_seq IS NOT OLD.dispatch_seq
  OR OLD.worker_run_id IS NOT NULL AND NEW.worker_run_id IS NOT OLD.worker_run_id
  OR NEW.phase IS NOT OLD.phase AND (
    NEW.version <> OLD.version + 1
    OR OLD.phase || '>' || NEW.phase
      NOT IN ('queued>leased', 'leased>started', 'queued>terminal', 'leased>terminal', 'started>terminal')
    OR NEW.phase IN ('started', 'terminal') AND NOT EXISTS (
      SELECT 1 FROM events WHERE position = NEW.position
        AND json_extract(body, '$.detail.child_id') = NEW.child_id
        AND json_extract(body, '$.detail.from') = OLD.phase
        AND json_extract(body, '$.detail.to') = NEW.phase
        AND json_extract(body, '$.detail.transition_seq') = NEW.version))
BEGIN SELECT RAISE(ABORT, 'urm_dispatch_token_moved'); END;
CREATE TRIGGER urm_dispatch_token_delete BEFORE DELETE ON urm_dispatch_token
BEGIN SELECT RAISE(ABORT, 'urm_dispatch_token_moved'); END;
--]
--[postgresql
CREATE FUNCTION urm_dispatch_token_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  said JSON;
  broken BOOLEAN := FALSE;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    broken := NEW.child_id <> OLD.child_id OR NEW.parent_session_id <> OLD.parent_session_id
      OR NEW.queue_seq <> OLD.queue_seq
      OR (OLD.dispatch_seq IS NOT NULL AND NEW.dispatch_seq IS DISTINCT FROM OLD.dispatch_seq)
      OR (OLD.worker_run_id IS NOT NULL AND NEW.worker_run_id IS DISTINCT FROM OLD.worker_run_id)
      OR (OLD.phase = 'terminal' AND (NEW.slot IS DISTINCT FROM OLD.slot OR NEW.position <> OLD.position))
      OR (NEW.phase <> OLD.phase AND (NEW.version <> OLD.version + 1 OR OLD.phase || '>' || NEW.phase
        NOT IN ('queued>leased', 'leased>started', 'queued>terminal', 'leased>terminal', 'started>terminal')));
  END IF;
  IF NOT broken AND NEW.phase IN ('started', 'terminal') THEN
    IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND NEW.version <> OLD.version) THEN
      SELECT body::json INTO said FROM events WHERE position = NEW.position;
      broken := said IS NULL
        OR said #>> '{detail,child_id}' IS DISTINCT FROM NEW.child_id
        OR said #>> '{detail,to}' IS DISTINCT FROM NEW.phase
        OR said #>> '{detail,transition_seq}' IS DISTINCT FROM NEW.version::text;
      IF NOT broken AND TG_OP = 'UPDATE' THEN
        broken := said #>> '{detail,from}' IS DISTINCT FROM OLD.phase;
      END IF;
    END IF;
  END IF;
  IF broken THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'urm_dispatch_token_moved',
      CONSTRAINT = 'urm_dispatch_token_moved';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER urm_dispatch_token_moved AFTER INSERT OR UPDATE ON urm_dispatch_token
  FOR EACH ROW EXECUTE FUNCTION urm_dispatch_token_moved();
CREATE TRIGGER urm_dispatch_token_delete BEFORE DELETE ON urm_dispatch_token
  FOR EACH ROW EXECUTE FUNCTION refuse('urm_dispatch_token_moved');
--]

CREATE TABLE budget_totals (
  parent_session_id TEXT NOT NULL REFERENCES sessions (session_id),
  budget_lane TEXT NOT NULL,
  accounting_mode TEXT NOT NULL,
  limit_amount INTEGER,
  total INTEGER NOT NULL,
  carried INTEGER NOT NULL,
  PRIMARY KEY (parent_session_id, budget_lane),
  CONSTRAINT budget_totals_lane CHECK (budget_lane IN ('solver_calls', 'duration_secs', 'tokens', 'usd_micros')),
  CONSTRAINT budget_totals_mode CHECK (accounting_mode = 'running_total_v1'),
  CONSTRAINT budget_totals_limit CHECK (limit_amount >= 0 AND total >= 0 AND carried >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE budget_debits (
  parent_session_id TEXT NOT NULL,
  budget_lane TEXT NOT NULL,
  debit_seq INTEGER NOT NULL,
  child_id TEXT NOT NULL,
  amount INTEGER NOT NULL,
  settled INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (parent_session_id, budget_lane, debit_seq),
  CONSTRAINT budget_debits_amount CHECK (amount >= 0)
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_debits_child ON budget_debits (child_id);
-- A run's time is charged once, however often it is tried (X33).
CREATE UNIQUE INDEX budget_debits_duration_once ON budget_debits (child_id) WHERE budget_lane = 'duration_secs';
--[sqlite
CREATE TRIGGER budget_debits_update BEFORE UPDATE ON budget_debits BEGIN SELECT RAISE(ABORT, 'budget_debits_kept'); END;
CREATE TRIGGER budget_debits_delete BEFORE DELETE ON budget_debits BEGIN SELECT RAISE(ABORT, 'budget_debits_kept'); END;
--]
--[postgresql
CREATE TRIGGER budget_debits_change BEFORE UPDATE OR DELETE ON budget_debits
  FOR EACH ROW EXECUTE FUNCTION refuse('budget_debits_kept');
--]

CREATE TABLE artifacts (
  sha256 TEXT PRIMARY KEY,
  size INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  data BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX artifacts_unspilled ON artifacts (sha256) WHERE data IS NOT NULL;

CREATE TABLE artifact_refs (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  sha256 TEXT NOT NULL REFERENCES artifacts (sha256),
  created_at INTEGER NOT NULL,
  PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX artifact_refs_sha256 ON artifact_refs (sha256);

-- Recovery is done, per fence, before anything new is dispatched (C-20, X36).
CREATE TABLE recoveries (
  fence INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  recovered INTEGER NOT NULL,
  unconfirmed INTEGER NOT NULL
) STRICT;
