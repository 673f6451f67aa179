-- Changes (H-1 to H-8): proposals, decisions, cuts and verifications. Only a status, with its version, ever changes.
CREATE TABLE decision_backlog_history (
  history_id TEXT PRIMARY KEY,
  entry_id TEXT NOT NULL,
  from_state TEXT,
  to_state TEXT NOT NULL,
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  at INTEGER NOT NULL,
  detail TEXT NOT NULL,
  signature_ref TEXT,
  seq INTEGER NOT NULL,
  CONSTRAINT decision_backlog_history_seq UNIQUE (entry_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE decision_backlog_entry (
  entry_id TEXT PRIMARY KEY,
  idempotency_key TEXT NOT NULL,
  author TEXT NOT NULL REFERENCES principals (name),
  cutter TEXT NOT NULL,
  target TEXT NOT NULL,
  reason TEXT NOT NULL,
  escalates TEXT REFERENCES decision_backlog_entry (entry_id),
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT decision_backlog_entry_key UNIQUE (idempotency_key),
  CONSTRAINT decision_backlog_entry_status CHECK (status IN ('marked', 'review_pending', 'reviewed_approved',
    'reviewed_deferred', 'reviewed_rejected', 'cut_applied', 'verified_complete', 'verify_failed_escalated', 'abandoned'))
) STRICT, WITHOUT ROWID;
CREATE INDEX decision_backlog_entry_queue ON decision_backlog_entry (status, entry_id);

-- A failed entry has one escalation at a time.
CREATE UNIQUE INDEX decision_backlog_entry_escalates ON decision_backlog_entry (escalates)
  WHERE status NOT IN ('reviewed_rejected', 'verified_complete', 'verify_failed_escalated', 'abandoned');

-- Only what is older can be depended on, and only at birth: so no chain can close.
CREATE TABLE decision_backlog_dependency (
  entry_id TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  depends_on TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  PRIMARY KEY (entry_id, depends_on),
  CONSTRAINT decision_backlog_dependency_itself CHECK (entry_id <> depends_on)
) STRICT, WITHOUT ROWID;

CREATE TABLE decision_backlog_sweep_log (
  sweep_id TEXT PRIMARY KEY,
  actor TEXT NOT NULL,
  at INTEGER NOT NULL,
  promoted INTEGER NOT NULL,
  waiting INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE manifest_envelope (
  manifest_id TEXT PRIMARY KEY,
  entry_id TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  revision INTEGER NOT NULL,
  content_hash TEXT NOT NULL,
  body TEXT NOT NULL,
  author TEXT NOT NULL,
  made_at INTEGER NOT NULL,
  CONSTRAINT manifest_envelope_revision UNIQUE (entry_id, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE manifest_unit (
  manifest_id TEXT NOT NULL REFERENCES manifest_envelope (manifest_id),
  path TEXT NOT NULL,
  before TEXT,
  after TEXT,
  before_mode INTEGER,
  after_mode INTEGER,
  PRIMARY KEY (manifest_id, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE review_decision (
  decision_id TEXT PRIMARY KEY,
  entry_id TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  content_hash TEXT NOT NULL,
  reviewer TEXT NOT NULL REFERENCES principals (name),
  decision TEXT NOT NULL,
  reason TEXT NOT NULL,
  statement_hash TEXT REFERENCES signatures (statement_hash),
  decided_at INTEGER NOT NULL,
  entry_version INTEGER NOT NULL,
  CONSTRAINT review_decision_word CHECK (decision IN ('approve', 'defer', 'reject'))
) STRICT, WITHOUT ROWID;
CREATE INDEX review_decision_entry ON review_decision (entry_id, entry_version);

CREATE TABLE cut_change_set (
  change_set_id TEXT PRIMARY KEY,
  entry_id TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  decision_id TEXT NOT NULL REFERENCES review_decision (decision_id),
  kind TEXT NOT NULL,
  of_change_set TEXT REFERENCES cut_change_set (change_set_id),
  executor TEXT NOT NULL REFERENCES principals (name),
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT cut_change_set_kind CHECK (kind IN ('cut', 'undo')),
  CONSTRAINT cut_change_set_status CHECK (status IN ('open', 'applied', 'undone', 'stuck'))
) STRICT, WITHOUT ROWID;

CREATE INDEX cut_change_set_entry ON cut_change_set (entry_id, change_set_id);
CREATE INDEX cut_change_set_unfinished ON cut_change_set (status) WHERE status IN ('open', 'stuck');

-- One live change set of an approval, and one undoing of a change set.
CREATE UNIQUE INDEX cut_change_set_live ON cut_change_set (entry_id, decision_id)
  WHERE kind = 'cut' AND status <> 'undone';
CREATE UNIQUE INDEX cut_change_set_undo ON cut_change_set (of_change_set) WHERE kind = 'undo';

CREATE TABLE cut_affected_row (
  change_set_id TEXT NOT NULL REFERENCES cut_change_set (change_set_id),
  path TEXT NOT NULL,
  place TEXT NOT NULL,
  before TEXT,
  after TEXT,
  before_mode INTEGER,
  after_mode INTEGER,
  PRIMARY KEY (change_set_id, path)
) STRICT, WITHOUT ROWID;

CREATE INDEX cut_affected_row_place ON cut_affected_row (place);

CREATE TABLE verify_result (
  verify_result_id TEXT PRIMARY KEY,
  change_set_id TEXT NOT NULL REFERENCES cut_change_set (change_set_id),
  prior_verify_result_id TEXT REFERENCES verify_result (verify_result_id),
  passed INTEGER NOT NULL,
  detail TEXT NOT NULL,
  verifier TEXT NOT NULL REFERENCES principals (name),
  verified_at INTEGER NOT NULL,
  CONSTRAINT verify_result_passed CHECK (passed IN (0, 1))
) STRICT, WITHOUT ROWID;

-- One live result of a change set: the first has none before it, and nothing is followed twice.
CREATE UNIQUE INDEX verify_result_first ON verify_result (change_set_id) WHERE prior_verify_result_id IS NULL;
CREATE UNIQUE INDEX verify_result_chain ON verify_result (prior_verify_result_id);

CREATE TABLE dot_pair_signature (
  signature_id TEXT PRIMARY KEY,
  entry_id TEXT NOT NULL REFERENCES decision_backlog_entry (entry_id),
  role TEXT NOT NULL,
  change_set_id TEXT REFERENCES cut_change_set (change_set_id),
  verify_result_id TEXT REFERENCES verify_result (verify_result_id),
  principal TEXT NOT NULL REFERENCES principals (name),
  fingerprint TEXT NOT NULL REFERENCES keys (fingerprint),
  tool_revision TEXT NOT NULL,
  statement_hash TEXT NOT NULL REFERENCES signatures (statement_hash),
  CONSTRAINT dot_pair_signature_role CHECK (role IN ('executor', 'verifier')),
  CONSTRAINT dot_pair_signature_one CHECK (
    (role = 'executor') = (change_set_id IS NOT NULL) AND (role = 'verifier') = (verify_result_id IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX dot_pair_signature_cut ON dot_pair_signature (change_set_id);
CREATE UNIQUE INDEX dot_pair_signature_result ON dot_pair_signature (verify_result_id);

-- What was said stays said.
--[sqlite
CREATE TRIGGER decision_backlog_history_again BEFORE INSERT ON decision_backlog_history WHEN EXISTS (SELECT 1 FROM decision_backlog_history WHERE history_id = NEW.history_id)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_history_kept'); END;
CREATE TRIGGER decision_backlog_history_update BEFORE UPDATE ON decision_backlog_history BEGIN SELECT RAISE(ABORT, 'decision_backlog_history_kept'); END;
CREATE TRIGGER decision_backlog_history_delete BEFORE DELETE ON decision_backlog_history BEGIN SELECT RAISE(ABORT, 'decision_backlog_history_kept'); END;
CREATE TRIGGER decision_backlog_dependency_again BEFORE INSERT ON decision_backlog_dependency WHEN EXISTS (SELECT 1 FROM decision_backlog_dependency WHERE entry_id = NEW.entry_id AND depends_on = NEW.depends_on)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_dependency_kept'); END;
CREATE TRIGGER decision_backlog_dependency_update BEFORE UPDATE ON decision_backlog_dependency BEGIN SELECT RAISE(ABORT, 'decision_backlog_dependency_kept'); END;
CREATE TRIGGER decision_backlog_dependency_delete BEFORE DELETE ON decision_backlog_dependency BEGIN SELECT RAISE(ABORT, 'decision_backlog_dependency_kept'); END;
CREATE TRIGGER decision_backlog_sweep_log_again BEFORE INSERT ON decision_backlog_sweep_log WHEN EXISTS (SELECT 1 FROM decision_backlog_sweep_log WHERE sweep_id = NEW.sweep_id)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_sweep_log_kept'); END;
CREATE TRIGGER decision_backlog_sweep_log_update BEFORE UPDATE ON decision_backlog_sweep_log BEGIN SELECT RAISE(ABORT, 'decision_backlog_sweep_log_kept'); END;
CREATE TRIGGER decision_backlog_sweep_log_delete BEFORE DELETE ON decision_backlog_sweep_log BEGIN SELECT RAISE(ABORT, 'decision_backlog_sweep_log_kept'); END;
CREATE TRIGGER manifest_envelope_again BEFORE INSERT ON manifest_envelope WHEN EXISTS (SELECT 1 FROM manifest_envelope WHERE manifest_id = NEW.manifest_id)
BEGIN SELECT RAISE(ABORT, 'manifest_envelope_kept'); END;
CREATE TRIGGER manifest_envelope_update BEFORE UPDATE ON manifest_envelope BEGIN SELECT RAISE(ABORT, 'manifest_envelope_kept'); END;
CREATE TRIGGER manifest_envelope_delete BEFORE DELETE ON manifest_envelope BEGIN SELECT RAISE(ABORT, 'manifest_envelope_kept'); END;
CREATE TRIGGER manifest_unit_again BEFORE INSERT ON manifest_unit WHEN EXISTS (SELECT 1 FROM manifest_unit WHERE manifest_id = NEW.manifest_id AND path = NEW.path)
BEGIN SELECT RAISE(ABORT, 'manifest_unit_kept'); END;
CREATE TRIGGER manifest_unit_update BEFORE UPDATE ON manifest_unit BEGIN SELECT RAISE(ABORT, 'manifest_unit_kept'); END;
CREATE TRIGGER manifest_unit_delete BEFORE DELETE ON manifest_unit BEGIN SELECT RAISE(ABORT, 'manifest_unit_kept'); END;
CREATE TRIGGER review_decision_again BEFORE INSERT ON review_decision WHEN EXISTS (SELECT 1 FROM review_decision WHERE decision_id = NEW.decision_id)
BEGIN SELECT RAISE(ABORT, 'review_decision_kept'); END;
CREATE TRIGGER review_decision_update BEFORE UPDATE ON review_decision BEGIN SELECT RAISE(ABORT, 'review_decision_kept'); END;
CREATE TRIGGER review_decision_delete BEFORE DELETE ON review_decision BEGIN SELECT RAISE(ABORT, 'review_decision_kept'); END;
CREATE TRIGGER cut_affected_row_again BEFORE INSERT ON cut_affected_row WHEN EXISTS (SELECT 1 FROM cut_affected_row WHERE change_set_id = NEW.change_set_id AND path = NEW.path)
BEGIN SELECT RAISE(ABORT, 'cut_affected_row_kept'); END;
CREATE TRIGGER cut_affected_row_update BEFORE UPDATE ON cut_affected_row BEGIN SELECT RAISE(ABORT, 'cut_affected_row_kept'); END;
CREATE TRIGGER cut_affected_row_delete BEFORE DELETE ON cut_affected_row BEGIN SELECT RAISE(ABORT, 'cut_affected_row_kept'); END;
CREATE TRIGGER verify_result_again BEFORE INSERT ON verify_result WHEN EXISTS (SELECT 1 FROM verify_result WHERE verify_result_id = NEW.verify_result_id)
BEGIN SELECT RAISE(ABORT, 'verify_result_kept'); END;
CREATE TRIGGER verify_result_update BEFORE UPDATE ON verify_result BEGIN SELECT RAISE(ABORT, 'verify_result_kept'); END;
CREATE TRIGGER verify_result_delete BEFORE DELETE ON verify_result BEGIN SELECT RAISE(ABORT, 'verify_result_kept'); END;
CREATE TRIGGER dot_pair_signature_again BEFORE INSERT ON dot_pair_signature WHEN EXISTS (SELECT 1 FROM dot_pair_signature WHERE signature_id = NEW.signature_id)
BEGIN SELECT RAISE(ABORT, 'dot_pair_signature_kept'); END;
CREATE TRIGGER dot_pair_signature_update BEFORE UPDATE ON dot_pair_signature BEGIN SELECT RAISE(ABORT, 'dot_pair_signature_kept'); END;
CREATE TRIGGER dot_pair_signature_delete BEFORE DELETE ON dot_pair_signature BEGIN SELECT RAISE(ABORT, 'dot_pair_signature_kept'); END;

CREATE TRIGGER decision_backlog_entry_birth BEFORE INSERT ON decision_backlog_entry
WHEN EXISTS (SELECT 1 FROM decision_backlog_entry WHERE entry_id = NEW.entry_id) OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.entry_id AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_moved'); END;
-- A cut and a verification lead through a state that nobody may find: two arrows, one write.
CREATE TRIGGER decision_backlog_entry_move BEFORE UPDATE ON decision_backlog_entry
WHEN NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.entry_id AND (
        NEW.version = OLD.version + 1 AND json_extract(e.body, '$.detail.from') = OLD.status
        OR NEW.version = OLD.version + 2 AND (OLD.status, json_extract(e.body, '$.detail.from')) IN
          (VALUES ('reviewed_approved', 'cut_in_progress'), ('cut_applied', 'verify_in_progress')))
      AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
  OR NEW.entry_id IS NOT OLD.entry_id
  OR NEW.idempotency_key IS NOT OLD.idempotency_key
  OR NEW.author IS NOT OLD.author
  OR NEW.cutter IS NOT OLD.cutter
  OR NEW.target IS NOT OLD.target
  OR NEW.reason IS NOT OLD.reason
  OR NEW.escalates IS NOT OLD.escalates
BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_moved'); END;
CREATE TRIGGER decision_backlog_entry_delete BEFORE DELETE ON decision_backlog_entry BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_kept'); END;

CREATE TRIGGER cut_change_set_birth BEFORE INSERT ON cut_change_set
WHEN EXISTS (SELECT 1 FROM cut_change_set WHERE change_set_id = NEW.change_set_id) OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.change_set_id AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'cut_change_set_moved'); END;
CREATE TRIGGER cut_change_set_move BEFORE UPDATE ON cut_change_set
WHEN NEW.version <> OLD.version + 1 OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.change_set_id AND json_extract(e.body, '$.detail.from') = OLD.status
      AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
  OR NEW.change_set_id IS NOT OLD.change_set_id
  OR NEW.entry_id IS NOT OLD.entry_id
  OR NEW.decision_id IS NOT OLD.decision_id
  OR NEW.kind IS NOT OLD.kind
  OR NEW.of_change_set IS NOT OLD.of_change_set
  OR NEW.executor IS NOT OLD.executor
BEGIN SELECT RAISE(ABORT, 'cut_change_set_moved'); END;
CREATE TRIGGER cut_change_set_delete BEFORE DELETE ON cut_change_set BEGIN SELECT RAISE(ABORT, 'cut_change_set_kept'); END;

-- No status without its history (A-1), and no verification by who carried it out (G-VERIFY-SOD).
CREATE TRIGGER decision_backlog_entry_told BEFORE INSERT ON decision_backlog_entry
WHEN NOT EXISTS (SELECT 1 FROM decision_backlog_history
    WHERE entry_id = NEW.entry_id AND seq = NEW.version AND to_state = NEW.status)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_told'); END;
CREATE TRIGGER decision_backlog_entry_retold BEFORE UPDATE ON decision_backlog_entry
WHEN NOT EXISTS (SELECT 1 FROM decision_backlog_history
    WHERE entry_id = NEW.entry_id AND seq = NEW.version AND to_state = NEW.status)
BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_told'); END;
CREATE TRIGGER dot_pair_signature_apart BEFORE INSERT ON dot_pair_signature
WHEN NEW.role = 'verifier' AND EXISTS (
    SELECT 1 FROM verify_result r JOIN dot_pair_signature d ON d.change_set_id = r.change_set_id
    WHERE r.verify_result_id = NEW.verify_result_id AND (d.principal = NEW.principal
      OR d.fingerprint = NEW.fingerprint OR d.tool_revision = NEW.tool_revision))
BEGIN SELECT RAISE(ABORT, 'dot_pair_signature_apart'); END;
--]
--[postgresql
CREATE TRIGGER decision_backlog_history_change BEFORE UPDATE OR DELETE ON decision_backlog_history
  FOR EACH ROW EXECUTE FUNCTION refuse('decision_backlog_history_kept');
CREATE TRIGGER decision_backlog_dependency_change BEFORE UPDATE OR DELETE ON decision_backlog_dependency
  FOR EACH ROW EXECUTE FUNCTION refuse('decision_backlog_dependency_kept');
CREATE TRIGGER decision_backlog_sweep_log_change BEFORE UPDATE OR DELETE ON decision_backlog_sweep_log
  FOR EACH ROW EXECUTE FUNCTION refuse('decision_backlog_sweep_log_kept');
CREATE TRIGGER manifest_envelope_change BEFORE UPDATE OR DELETE ON manifest_envelope
  FOR EACH ROW EXECUTE FUNCTION refuse('manifest_envelope_kept');
CREATE TRIGGER manifest_unit_change BEFORE UPDATE OR DELETE ON manifest_unit
  FOR EACH ROW EXECUTE FUNCTION refuse('manifest_unit_kept');
CREATE TRIGGER review_decision_change BEFORE UPDATE OR DELETE ON review_decision
  FOR EACH ROW EXECUTE FUNCTION refuse('review_decision_kept');
CREATE TRIGGER cut_affected_row_change BEFORE UPDATE OR DELETE ON cut_affected_row
  FOR EACH ROW EXECUTE FUNCTION refuse('cut_affected_row_kept');
CREATE TRIGGER verify_result_change BEFORE UPDATE OR DELETE ON verify_result
  FOR EACH ROW EXECUTE FUNCTION refuse('verify_result_kept');
CREATE TRIGGER dot_pair_signature_change BEFORE UPDATE OR DELETE ON dot_pair_signature
  FOR EACH ROW EXECUTE FUNCTION refuse('dot_pair_signature_kept');
CREATE TRIGGER decision_backlog_entry_moved AFTER INSERT ON decision_backlog_entry
  FOR EACH ROW EXECUTE FUNCTION subject_moved('entry', 'entry_id', 'status');
CREATE FUNCTION decision_backlog_entry_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  said JSON;
BEGIN
  SELECT e.body::json INTO said FROM events e JOIN streams s ON s.stream_no = e.stream_no
    WHERE e.position = NEW.position AND s.stream = 'entry:' || NEW.entry_id;
  IF said IS NULL OR said #>> '{detail,to}' IS DISTINCT FROM NEW.status
     OR said #>> '{detail,transition_seq}' IS DISTINCT FROM NEW.version::text
     OR NOT (NEW.version = OLD.version + 1 AND said #>> '{detail,from}' = OLD.status
       OR NEW.version = OLD.version + 2 AND (OLD.status, said #>> '{detail,from}') IN
         (('reviewed_approved', 'cut_in_progress'), ('cut_applied', 'verify_in_progress'))) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'decision_backlog_entry_moved',
      CONSTRAINT = 'decision_backlog_entry_moved';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER decision_backlog_entry_move AFTER UPDATE ON decision_backlog_entry
  FOR EACH ROW EXECUTE FUNCTION decision_backlog_entry_moved();
CREATE TRIGGER decision_backlog_entry_given BEFORE UPDATE ON decision_backlog_entry FOR EACH ROW
  WHEN (NEW.entry_id IS DISTINCT FROM OLD.entry_id
    OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key
    OR NEW.author IS DISTINCT FROM OLD.author
    OR NEW.cutter IS DISTINCT FROM OLD.cutter
    OR NEW.target IS DISTINCT FROM OLD.target
    OR NEW.reason IS DISTINCT FROM OLD.reason
    OR NEW.escalates IS DISTINCT FROM OLD.escalates)
  EXECUTE FUNCTION refuse('decision_backlog_entry_moved');
CREATE TRIGGER decision_backlog_entry_delete BEFORE DELETE ON decision_backlog_entry FOR EACH ROW EXECUTE FUNCTION refuse('decision_backlog_entry_kept');
CREATE TRIGGER cut_change_set_moved AFTER INSERT OR UPDATE ON cut_change_set
  FOR EACH ROW EXECUTE FUNCTION subject_moved('entry', 'change_set_id', 'status');
CREATE TRIGGER cut_change_set_given BEFORE UPDATE ON cut_change_set FOR EACH ROW
  WHEN (NEW.change_set_id IS DISTINCT FROM OLD.change_set_id
    OR NEW.entry_id IS DISTINCT FROM OLD.entry_id
    OR NEW.decision_id IS DISTINCT FROM OLD.decision_id
    OR NEW.kind IS DISTINCT FROM OLD.kind
    OR NEW.of_change_set IS DISTINCT FROM OLD.of_change_set
    OR NEW.executor IS DISTINCT FROM OLD.executor)
  EXECUTE FUNCTION refuse('cut_change_set_moved');
CREATE TRIGGER cut_change_set_delete BEFORE DELETE ON cut_change_set FOR EACH ROW EXECUTE FUNCTION refuse('cut_change_set_kept');
CREATE FUNCTION decision_backlog_entry_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM decision_backlog_history
      WHERE entry_id = NEW.entry_id AND seq = NEW.version AND to_state = NEW.status) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'decision_backlog_entry_told',
      CONSTRAINT = 'decision_backlog_entry_told';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER decision_backlog_entry_told AFTER INSERT OR UPDATE ON decision_backlog_entry
  FOR EACH ROW EXECUTE FUNCTION decision_backlog_entry_told();
CREATE FUNCTION dot_pair_signature_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.role = 'verifier' AND EXISTS (
      SELECT 1 FROM verify_result r JOIN dot_pair_signature d ON d.change_set_id = r.change_set_id
      WHERE r.verify_result_id = NEW.verify_result_id AND (d.principal = NEW.principal
        OR d.fingerprint = NEW.fingerprint OR d.tool_revision = NEW.tool_revision)) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'dot_pair_signature_apart',
      CONSTRAINT = 'dot_pair_signature_apart';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER dot_pair_signature_apart AFTER INSERT ON dot_pair_signature
  FOR EACH ROW EXECUTE FUNCTION dot_pair_signature_apart();
--]
