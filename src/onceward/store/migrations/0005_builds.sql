-- Plans, checkpoints, confirmation tokens, approvals and rates (B-3, B-4, B-10, B-15, B-16).

-- What a build was to carry out: everything that can change what its steps make, by content.
CREATE TABLE plans (
  plan_hash TEXT PRIMARY KEY,
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE builds ADD COLUMN plan_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE builds ADD COLUMN plan_file TEXT NOT NULL DEFAULT '';
ALTER TABLE builds ADD COLUMN parent_build_id TEXT;
-- When somebody last resumed it: what was finished before was skipped.
ALTER TABLE builds ADD COLUMN resumed_at INTEGER NOT NULL DEFAULT 0;
-- Whether it may take over results of other builds.
ALTER TABLE builds ADD COLUMN reuse INTEGER NOT NULL DEFAULT 1;
CREATE INDEX builds_name ON builds (name);

CREATE TABLE checkpoints (
  build_id TEXT NOT NULL REFERENCES builds (build_id),
  stage TEXT NOT NULL,
  target TEXT NOT NULL,
  context_hash TEXT NOT NULL,
  status TEXT NOT NULL,
  how TEXT NOT NULL,
  outputs TEXT NOT NULL,
  cost INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  child_id TEXT,
  origin TEXT,
  error TEXT,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (build_id, stage, target),
  CONSTRAINT checkpoints_status CHECK (status IN ('SUCCESS', 'FAILED', 'IN_DOUBT')),
  CONSTRAINT checkpoints_how CHECK (how IN ('executed', 'reused', 'accepted', 'approved')),
  CONSTRAINT checkpoints_spent CHECK (cost >= 0 AND tokens >= 0)
) STRICT, WITHOUT ROWID;

-- What another build may take over (B-6); an approval is no result that could be.
CREATE INDEX checkpoints_context ON checkpoints (context_hash) WHERE status = 'SUCCESS' AND how IN ('executed', 'accepted');

CREATE TABLE confirmation_tokens (
  permit_id TEXT PRIMARY KEY,
  build_id TEXT NOT NULL REFERENCES builds (build_id),
  transition_seq INTEGER NOT NULL,
  token_hash TEXT NOT NULL,
  spent INTEGER NOT NULL,
  minted_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  consumed_at INTEGER,
  voided_at INTEGER,
  CONSTRAINT confirmation_tokens_hash UNIQUE (token_hash),
  CONSTRAINT confirmation_tokens_once CHECK (consumed_at IS NULL OR voided_at IS NULL)
) STRICT, WITHOUT ROWID;

CREATE INDEX confirmation_tokens_build ON confirmation_tokens (build_id);
--[sqlite
CREATE TRIGGER confirmation_tokens_change BEFORE UPDATE ON confirmation_tokens
WHEN OLD.consumed_at IS NOT NULL OR NEW.token_hash <> OLD.token_hash OR NEW.build_id <> OLD.build_id
  OR NEW.transition_seq <> OLD.transition_seq OR NEW.expires_at <> OLD.expires_at OR OLD.voided_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'confirmation_tokens_kept'); END;
CREATE TRIGGER confirmation_tokens_delete BEFORE DELETE ON confirmation_tokens
BEGIN SELECT RAISE(ABORT, 'confirmation_tokens_kept'); END;
--]
--[postgresql
CREATE TRIGGER confirmation_tokens_change BEFORE UPDATE ON confirmation_tokens FOR EACH ROW
  WHEN (OLD.consumed_at IS NOT NULL OR NEW.token_hash <> OLD.token_hash OR NEW.build_id <> OLD.build_id
    OR NEW.transition_seq <> OLD.transition_seq OR NEW.expires_at <> OLD.expires_at OR OLD.voided_at IS NOT NULL)
  EXECUTE FUNCTION refuse('confirmation_tokens_kept');
CREATE TRIGGER confirmation_tokens_delete BEFORE DELETE ON confirmation_tokens
  FOR EACH ROW EXECUTE FUNCTION refuse('confirmation_tokens_kept');
--]

-- What waits, or waited, for a person: one row for each content that was to be approved.
CREATE TABLE approvals (
  build_id TEXT NOT NULL REFERENCES builds (build_id),
  stage TEXT NOT NULL,
  target TEXT NOT NULL,
  digest TEXT NOT NULL,
  text TEXT NOT NULL,
  wanted_at INTEGER NOT NULL,
  decision TEXT,
  actor TEXT,
  note TEXT,
  decided_at INTEGER,
  PRIMARY KEY (build_id, stage, target, digest),
  CONSTRAINT approvals_decision CHECK (decision IN ('approved', 'refused'))
) STRICT, WITHOUT ROWID;

-- When steps of a stage with a rate were started, as far back as the rate looks.
CREATE TABLE rate_starts (
  scope TEXT NOT NULL,
  child_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (scope, at, child_id)
) STRICT, WITHOUT ROWID;

-- What a file was when its content was last verified: unchanged since, it need not be read again (B-4).
ALTER TABLE artifacts ADD COLUMN mark TEXT;
-- A step may call an output what a log is called: both are kept.
CREATE TABLE artifact_refs_by_kind (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  sha256 TEXT NOT NULL REFERENCES artifacts (sha256),
  created_at INTEGER NOT NULL,
  PRIMARY KEY (owner, name, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO artifact_refs_by_kind SELECT owner, name, kind, sha256, created_at FROM artifact_refs;
DROP TABLE artifact_refs;
ALTER TABLE artifact_refs_by_kind RENAME TO artifact_refs;
CREATE INDEX artifact_refs_sha256 ON artifact_refs (sha256);

-- Who waits for a file is looked for seldom, and kept track of at every commit: a scan is cheaper.
DROP INDEX artifacts_unspilled;

-- What the whole workspace may spend, beside what each session may (B-16).
CREATE TABLE workspace_budget (
  budget_lane TEXT PRIMARY KEY,
  limit_amount INTEGER NOT NULL,
  total INTEGER NOT NULL,
  CONSTRAINT workspace_budget_lane CHECK (budget_lane IN ('solver_calls', 'tokens', 'usd_micros')),
  CONSTRAINT workspace_budget_limit CHECK (limit_amount >= 0 AND total >= 0)
) STRICT, WITHOUT ROWID;
