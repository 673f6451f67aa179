-- What was signed stands beside what it allowed: a confirmation token that somebody asked for, a person's word on a step (H-5).
ALTER TABLE confirmation_tokens ADD COLUMN statement_hash TEXT;
ALTER TABLE approvals ADD COLUMN statement_hash TEXT;
-- Which event a key that was delivered belongs to: every event is delivered, or waits to be (E-1).
ALTER TABLE outbox_used ADD COLUMN position INTEGER;

-- From one state to another only as the machines have it: an event that says otherwise is not enough (G6). A test holds these
-- lists against the machines; a saga's states are its own.
--[sqlite
CREATE TRIGGER builds_arrow BEFORE UPDATE ON builds
WHEN NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN (
    'ACTIVE>ABANDONED', 'ACTIVE>BUDGET_PAUSE', 'ACTIVE>CRASHED', 'ACTIVE>FAILED', 'ACTIVE>SUCCESS',
    'BUDGET_PAUSE>ABANDONED', 'BUDGET_PAUSE>ACTIVE', 'BUDGET_PAUSE>FAILED', 'CRASHED>ABANDONED',
    'CRASHED>ACTIVE', 'PENDING>ABANDONED', 'PENDING>ACTIVE')
BEGIN SELECT RAISE(ABORT, 'builds_moved'); END;
CREATE TRIGGER decision_backlog_entry_arrow BEFORE UPDATE ON decision_backlog_entry
WHEN NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'cut_applied>abandoned', 'cut_applied>verified_complete', 'cut_applied>verify_failed_escalated',
    'marked>abandoned', 'marked>review_pending', 'review_pending>abandoned', 'review_pending>reviewed_approved',
    'review_pending>reviewed_deferred', 'review_pending>reviewed_rejected', 'reviewed_approved>abandoned',
    'reviewed_approved>cut_applied', 'reviewed_approved>reviewed_deferred', 'reviewed_deferred>abandoned',
    'reviewed_deferred>review_pending', 'reviewed_rejected>abandoned', 'verified_complete>abandoned',
    'verify_failed_escalated>abandoned')
BEGIN SELECT RAISE(ABORT, 'decision_backlog_entry_moved'); END;
CREATE TRIGGER cut_change_set_arrow BEFORE UPDATE ON cut_change_set
WHEN NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'open>applied', 'open>stuck', 'open>undone', 'stuck>open', 'stuck>undone')
BEGIN SELECT RAISE(ABORT, 'cut_change_set_moved'); END;
CREATE TRIGGER registry_collections_arrow BEFORE UPDATE ON registry_collections
WHEN NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>retired')
BEGIN SELECT RAISE(ABORT, 'registry_collections_moved'); END;
CREATE TRIGGER grants_arrow BEFORE UPDATE ON grants
WHEN NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>consumed', 'active>expired', 'active>revoked', 'draft>active', 'draft>revoked')
BEGIN SELECT RAISE(ABORT, 'grants_moved'); END;
CREATE TRIGGER registry_values_arrow BEFORE UPDATE ON registry_values
WHEN NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>retired', 'active>superseded', 'superseded>retired')
BEGIN SELECT RAISE(ABORT, 'registry_values_moved'); END;
--]
--[postgresql
CREATE TRIGGER builds_arrow BEFORE UPDATE ON builds FOR EACH ROW
  WHEN (NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN (
    'ACTIVE>ABANDONED', 'ACTIVE>BUDGET_PAUSE', 'ACTIVE>CRASHED', 'ACTIVE>FAILED', 'ACTIVE>SUCCESS',
    'BUDGET_PAUSE>ABANDONED', 'BUDGET_PAUSE>ACTIVE', 'BUDGET_PAUSE>FAILED', 'CRASHED>ABANDONED',
    'CRASHED>ACTIVE', 'PENDING>ABANDONED', 'PENDING>ACTIVE'))
  EXECUTE FUNCTION refuse('builds_moved');
CREATE TRIGGER decision_backlog_entry_arrow BEFORE UPDATE ON decision_backlog_entry FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'cut_applied>abandoned', 'cut_applied>verified_complete', 'cut_applied>verify_failed_escalated',
    'marked>abandoned', 'marked>review_pending', 'review_pending>abandoned', 'review_pending>reviewed_approved',
    'review_pending>reviewed_deferred', 'review_pending>reviewed_rejected', 'reviewed_approved>abandoned',
    'reviewed_approved>cut_applied', 'reviewed_approved>reviewed_deferred', 'reviewed_deferred>abandoned',
    'reviewed_deferred>review_pending', 'reviewed_rejected>abandoned', 'verified_complete>abandoned',
    'verify_failed_escalated>abandoned'))
  EXECUTE FUNCTION refuse('decision_backlog_entry_moved');
CREATE TRIGGER cut_change_set_arrow BEFORE UPDATE ON cut_change_set FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'open>applied', 'open>stuck', 'open>undone', 'stuck>open', 'stuck>undone'))
  EXECUTE FUNCTION refuse('cut_change_set_moved');
CREATE TRIGGER registry_collections_arrow BEFORE UPDATE ON registry_collections FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>retired'))
  EXECUTE FUNCTION refuse('registry_collections_moved');
CREATE TRIGGER grants_arrow BEFORE UPDATE ON grants FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>consumed', 'active>expired', 'active>revoked', 'draft>active', 'draft>revoked'))
  EXECUTE FUNCTION refuse('grants_moved');
CREATE TRIGGER registry_values_arrow BEFORE UPDATE ON registry_values FOR EACH ROW
  WHEN (NEW.status <> OLD.status AND OLD.status || '>' || NEW.status NOT IN (
    'active>retired', 'active>superseded', 'superseded>retired'))
  EXECUTE FUNCTION refuse('registry_values_moved');
--]

-- What refuses to be deleted row by row is not emptied at once either.
--[postgresql
DO $truncate$
DECLARE
  name TEXT;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'workspace', 'streams', 'principals', 'principal_roles', 'tokens', 'plans', 'builds', 'checkpoints',
    'confirmation_tokens', 'approvals', 'rate_starts', 'sessions', 'urm_dispatch_token', 'budget_totals',
    'budget_debits', 'workspace_budget', 'artifacts', 'artifact_refs', 'recoveries', 'registry_meta',
    'registry_collections', 'registry_audit', 'grants', 'saga_runs', 'saga_steps', 'run_leases',
    'decision_backlog_history', 'decision_backlog_entry', 'decision_backlog_dependency',
    'decision_backlog_sweep_log', 'manifest_envelope', 'manifest_unit', 'review_decision', 'cut_change_set',
    'cut_affected_row', 'verify_result', 'dot_pair_signature', 'requests', 'event_outbox', 'outbox_used',
    'singleton_lock', 'kernel_beat']
  LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse(%L)',
      name || '_truncate', name, name || '_kept');
  END LOOP;
END $truncate$;
--]
