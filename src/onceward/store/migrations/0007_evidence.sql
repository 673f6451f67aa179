-- Keys, what was signed with them, and seals over the heads of all streams (E-3, E-4).

-- One key belongs to one principal, for all time; it is never changed, and revoked once.
CREATE TABLE keys (
  fingerprint TEXT PRIMARY KEY,
  public_key BLOB NOT NULL,
  principal TEXT NOT NULL REFERENCES principals (name),
  proof BLOB NOT NULL,
  added_seq INTEGER NOT NULL,
  revoked_seq INTEGER,
  CONSTRAINT keys_public UNIQUE (public_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_principal ON keys (principal);

-- The exact bytes that were signed. `seq` is the place of the act in the workspace's stream, where keys come and go too.
CREATE TABLE signatures (
  statement_hash TEXT PRIMARY KEY,
  statement TEXT NOT NULL,
  fingerprint TEXT NOT NULL REFERENCES keys (fingerprint),
  signature BLOB NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX signatures_seq ON signatures (seq);

CREATE TABLE seals (
  seal_no INTEGER PRIMARY KEY,
  position INTEGER NOT NULL,
  streams INTEGER NOT NULL,
  root TEXT NOT NULL,
  statement_hash TEXT NOT NULL REFERENCES signatures (statement_hash)
) STRICT;

--[sqlite
CREATE TRIGGER keys_birth BEFORE INSERT ON keys
WHEN EXISTS (SELECT 1 FROM keys WHERE fingerprint = NEW.fingerprint OR public_key = NEW.public_key)
BEGIN SELECT RAISE(ABORT, 'keys_public'); END;
CREATE TRIGGER keys_change BEFORE UPDATE ON keys
WHEN OLD.revoked_seq IS NOT NULL OR NEW.revoked_seq IS NULL OR NEW.fingerprint <> OLD.fingerprint
  OR NEW.public_key <> OLD.public_key OR NEW.principal <> OLD.principal OR NEW.proof <> OLD.proof
  OR NEW.added_seq <> OLD.added_seq
BEGIN SELECT RAISE(ABORT, 'keys_kept'); END;
CREATE TRIGGER keys_delete BEFORE DELETE ON keys BEGIN SELECT RAISE(ABORT, 'keys_kept'); END;
CREATE TRIGGER signatures_birth BEFORE INSERT ON signatures
WHEN EXISTS (SELECT 1 FROM signatures WHERE statement_hash = NEW.statement_hash)
BEGIN SELECT RAISE(ABORT, 'signatures_kept'); END;
CREATE TRIGGER signatures_update BEFORE UPDATE ON signatures BEGIN SELECT RAISE(ABORT, 'signatures_kept'); END;
CREATE TRIGGER signatures_delete BEFORE DELETE ON signatures BEGIN SELECT RAISE(ABORT, 'signatures_kept'); END;
CREATE TRIGGER seals_birth BEFORE INSERT ON seals
WHEN NEW.seal_no <= coalesce((SELECT max(seal_no) FROM seals), 0)
BEGIN SELECT RAISE(ABORT, 'seals_kept'); END;
CREATE TRIGGER seals_update BEFORE UPDATE ON seals BEGIN SELECT RAISE(ABORT, 'seals_kept'); END;
CREATE TRIGGER seals_delete BEFORE DELETE ON seals BEGIN SELECT RAISE(ABORT, 'seals_kept'); END;
--]
--[postgresql
CREATE TRIGGER keys_delete BEFORE DELETE ON keys FOR EACH ROW EXECUTE FUNCTION refuse('keys_kept');
CREATE TRIGGER keys_truncate BEFORE TRUNCATE ON keys FOR EACH STATEMENT EXECUTE FUNCTION refuse('keys_kept');
CREATE TRIGGER signatures_truncate BEFORE TRUNCATE ON signatures
  FOR EACH STATEMENT EXECUTE FUNCTION refuse('signatures_kept');
CREATE TRIGGER seals_truncate BEFORE TRUNCATE ON seals FOR EACH STATEMENT EXECUTE FUNCTION refuse('seals_kept');
CREATE TRIGGER signatures_change BEFORE UPDATE OR DELETE ON signatures
  FOR EACH ROW EXECUTE FUNCTION refuse('signatures_kept');
CREATE TRIGGER seals_change BEFORE UPDATE OR DELETE ON seals FOR EACH ROW EXECUTE FUNCTION refuse('seals_kept');
--]

-- Text is ordered by its bytes, as SQLite does: exports and proofs must not depend on a database's language.
--[postgresql
DROP TRIGGER confirmation_tokens_change ON confirmation_tokens;
DO $$
DECLARE
  found RECORD;
BEGIN
  FOR found IN SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = current_schema() AND data_type = 'text' AND collation_name IS NULL
      AND table_name <> 'schema_migrations' LOOP
    EXECUTE format('ALTER TABLE %I ALTER COLUMN %I TYPE TEXT COLLATE "C"', found.table_name, found.column_name);
  END LOOP;
END $$;
CREATE TRIGGER confirmation_tokens_change BEFORE UPDATE ON confirmation_tokens FOR EACH ROW
  WHEN (OLD.consumed_at IS NOT NULL OR NEW.token_hash <> OLD.token_hash OR NEW.build_id <> OLD.build_id
    OR NEW.transition_seq <> OLD.transition_seq OR NEW.expires_at <> OLD.expires_at OR OLD.voided_at IS NOT NULL)
  EXECUTE FUNCTION refuse('confirmation_tokens_kept');
CREATE TRIGGER keys_change BEFORE UPDATE ON keys FOR EACH ROW
  WHEN (OLD.revoked_seq IS NOT NULL OR NEW.revoked_seq IS NULL OR NEW.fingerprint <> OLD.fingerprint
    OR NEW.public_key <> OLD.public_key OR NEW.principal <> OLD.principal OR NEW.proof <> OLD.proof
    OR NEW.added_seq <> OLD.added_seq)
  EXECUTE FUNCTION refuse('keys_kept');
--]
