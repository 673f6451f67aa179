-- Where a kernel that serves can be reached: it takes work from others. Tokens that programs and browsers act with, by hash.
ALTER TABLE kernel_beat ADD COLUMN serves TEXT NOT NULL DEFAULT '';

CREATE TABLE tokens (
  token_id TEXT PRIMARY KEY,
  principal TEXT NOT NULL REFERENCES principals (name),
  token_hash TEXT NOT NULL,
  note TEXT NOT NULL,
  made_seq INTEGER NOT NULL,
  revoked_seq INTEGER,
  expires_at INTEGER NOT NULL,
  CONSTRAINT tokens_hash UNIQUE (token_hash)
) STRICT, WITHOUT ROWID;
--[sqlite
CREATE TRIGGER tokens_again BEFORE INSERT ON tokens WHEN EXISTS (SELECT 1 FROM tokens WHERE token_id = NEW.token_id)
BEGIN SELECT RAISE(ABORT, 'tokens_kept'); END;
CREATE TRIGGER tokens_update BEFORE UPDATE ON tokens
WHEN OLD.revoked_seq IS NOT NULL OR NEW.revoked_seq IS NULL OR NEW.token_id IS NOT OLD.token_id
  OR NEW.principal IS NOT OLD.principal OR NEW.token_hash IS NOT OLD.token_hash OR NEW.note IS NOT OLD.note
  OR NEW.made_seq IS NOT OLD.made_seq OR NEW.expires_at IS NOT OLD.expires_at
BEGIN SELECT RAISE(ABORT, 'tokens_kept'); END;
CREATE TRIGGER tokens_delete BEFORE DELETE ON tokens BEGIN SELECT RAISE(ABORT, 'tokens_kept'); END;
--]
--[postgresql
CREATE TRIGGER tokens_update BEFORE UPDATE ON tokens FOR EACH ROW
  WHEN (OLD.revoked_seq IS NOT NULL OR NEW.revoked_seq IS NULL OR NEW.token_id IS DISTINCT FROM OLD.token_id
    OR NEW.principal IS DISTINCT FROM OLD.principal OR NEW.token_hash IS DISTINCT FROM OLD.token_hash
    OR NEW.note IS DISTINCT FROM OLD.note OR NEW.made_seq IS DISTINCT FROM OLD.made_seq
    OR NEW.expires_at IS DISTINCT FROM OLD.expires_at)
  EXECUTE FUNCTION refuse('tokens_kept');
CREATE TRIGGER tokens_delete BEFORE DELETE ON tokens FOR EACH ROW EXECUTE FUNCTION refuse('tokens_kept');
--]
