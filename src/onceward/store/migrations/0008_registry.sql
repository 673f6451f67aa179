-- The registry (S-5): collections, and versioned values whose meaning is written once. The rules are the schema's own.

-- What a collection is to look like, and whose it is: written before the collection itself.
CREATE TABLE registry_meta (
  name TEXT PRIMARY KEY,
  schema_digest TEXT NOT NULL,
  root TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE registry_collections (
  collection_id TEXT PRIMARY KEY,
  name TEXT NOT NULL REFERENCES registry_meta (name),
  schema_digest TEXT NOT NULL,
  root TEXT NOT NULL,
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT registry_collections_status CHECK (status IN ('active', 'retired'))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX registry_collections_name ON registry_collections (name) WHERE status = 'active';

CREATE TABLE registry_values (
  vocab_id TEXT PRIMARY KEY,
  collection_id TEXT NOT NULL REFERENCES registry_collections (collection_id),
  operation_code TEXT NOT NULL,
  protocol_version TEXT NOT NULL,
  major INTEGER NOT NULL,
  minor INTEGER NOT NULL,
  patch INTEGER NOT NULL,
  act_type TEXT NOT NULL,
  governing_authority_ref TEXT NOT NULL,
  semantics_frozen INTEGER NOT NULL,
  digest TEXT NOT NULL,
  root TEXT NOT NULL,
  successor_code TEXT,
  successor_version TEXT,
  status TEXT NOT NULL,
  version INTEGER NOT NULL,
  position INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT registry_values_key UNIQUE (operation_code, protocol_version),
  CONSTRAINT registry_values_status CHECK (status IN ('active', 'superseded', 'retired')),
  CONSTRAINT registry_values_numbers CHECK (major >= 0 AND minor >= 0 AND patch >= 0
    AND protocol_version = CAST(major AS TEXT) || '.' || CAST(minor AS TEXT) || '.' || CAST(patch AS TEXT)),
  CONSTRAINT registry_values_successor CHECK (
    (successor_code IS NULL) = (successor_version IS NULL)
    AND (status <> 'superseded' OR successor_code IS NOT NULL)
    AND (status <> 'active' OR successor_code IS NULL)),
  CONSTRAINT registry_values_itself CHECK (NOT (successor_code = operation_code AND successor_version = protocol_version)),
  CONSTRAINT registry_values_follows FOREIGN KEY (successor_code, successor_version)
    REFERENCES registry_values (operation_code, protocol_version) DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;

-- At most one value of an operation and kind of act is in force.
CREATE UNIQUE INDEX registry_values_active ON registry_values (operation_code, act_type) WHERE status = 'active';
CREATE INDEX registry_values_root ON registry_values (root);
CREATE INDEX registry_values_heirs ON registry_values (successor_code, successor_version);

-- A successor is in force when it is named, or comes in the same commit; it is of the same kind of act and, of the same
-- operation, newer. What is in force has no successor itself and nothing comes back into force: no chain can close.
--[sqlite
CREATE TRIGGER registry_meta_birth BEFORE INSERT ON registry_meta
WHEN EXISTS (SELECT 1 FROM registry_meta WHERE name = NEW.name)
BEGIN SELECT RAISE(ABORT, 'registry_meta_kept'); END;
CREATE TRIGGER registry_meta_update BEFORE UPDATE ON registry_meta BEGIN SELECT RAISE(ABORT, 'registry_meta_kept'); END;
CREATE TRIGGER registry_meta_delete BEFORE DELETE ON registry_meta BEGIN SELECT RAISE(ABORT, 'registry_meta_kept'); END;

CREATE TRIGGER registry_collections_birth BEFORE INSERT ON registry_collections
WHEN EXISTS (SELECT 1 FROM registry_collections WHERE collection_id = NEW.collection_id)
  OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.collection_id AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'registry_collections_moved'); END;
CREATE TRIGGER registry_collections_move BEFORE UPDATE ON registry_collections
WHEN NEW.collection_id IS NOT OLD.collection_id OR NEW.name IS NOT OLD.name OR NEW.root IS NOT OLD.root
  OR NEW.schema_digest IS NOT OLD.schema_digest OR NEW.version <> OLD.version + 1 OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.collection_id AND json_extract(e.body, '$.detail.from') = OLD.status
      AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'registry_collections_moved'); END;
CREATE TRIGGER registry_collections_delete BEFORE DELETE ON registry_collections
BEGIN SELECT RAISE(ABORT, 'registry_collections_moved'); END;

CREATE TRIGGER registry_values_birth BEFORE INSERT ON registry_values
WHEN EXISTS (SELECT 1 FROM registry_values WHERE vocab_id = NEW.vocab_id
    OR operation_code = NEW.operation_code AND protocol_version = NEW.protocol_version)
BEGIN SELECT RAISE(ABORT, 'registry_values_key'); END;
CREATE TRIGGER registry_values_second BEFORE INSERT ON registry_values
WHEN NEW.status = 'active' AND EXISTS (SELECT 1 FROM registry_values
    WHERE operation_code = NEW.operation_code AND act_type = NEW.act_type AND status = 'active')
BEGIN SELECT RAISE(ABORT, 'registry_values_active'); END;
CREATE TRIGGER registry_values_born BEFORE INSERT ON registry_values
WHEN NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.vocab_id AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'registry_values_moved'); END;
CREATE TRIGGER registry_values_heir BEFORE INSERT ON registry_values
WHEN EXISTS (SELECT 1 FROM registry_values v
    WHERE v.successor_code = NEW.operation_code AND v.successor_version = NEW.protocol_version
      AND (v.act_type <> NEW.act_type OR v.operation_code = NEW.operation_code
        AND (NEW.major, NEW.minor, NEW.patch) <= (v.major, v.minor, v.patch)))
BEGIN SELECT RAISE(ABORT, 'registry_values_forward'); END;
CREATE TRIGGER registry_values_meaning BEFORE UPDATE ON registry_values
WHEN NEW.vocab_id IS NOT OLD.vocab_id OR NEW.collection_id IS NOT OLD.collection_id
  OR NEW.operation_code IS NOT OLD.operation_code OR NEW.protocol_version IS NOT OLD.protocol_version
  OR NEW.major IS NOT OLD.major OR NEW.minor IS NOT OLD.minor OR NEW.patch IS NOT OLD.patch
  OR NEW.act_type IS NOT OLD.act_type OR NEW.governing_authority_ref IS NOT OLD.governing_authority_ref
  OR NEW.semantics_frozen IS NOT OLD.semantics_frozen OR NEW.digest IS NOT OLD.digest OR NEW.root IS NOT OLD.root
  OR OLD.successor_code IS NOT NULL
    AND (NEW.successor_code IS NOT OLD.successor_code OR NEW.successor_version IS NOT OLD.successor_version)
BEGIN SELECT RAISE(ABORT, 'registry_values_meaning'); END;
CREATE TRIGGER registry_values_move BEFORE UPDATE ON registry_values
WHEN NEW.version <> OLD.version + 1 OR NOT EXISTS (
    SELECT 1 FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE e.position = NEW.position
      AND s.stream = 'entry:' || NEW.vocab_id AND json_extract(e.body, '$.detail.from') = OLD.status
      AND json_extract(e.body, '$.detail.to') = NEW.status
      AND json_extract(e.body, '$.detail.transition_seq') = NEW.version)
BEGIN SELECT RAISE(ABORT, 'registry_values_moved'); END;
CREATE TRIGGER registry_values_forward BEFORE UPDATE ON registry_values
WHEN OLD.successor_code IS NULL AND EXISTS (SELECT 1 FROM registry_values s
    WHERE s.operation_code = NEW.successor_code AND s.protocol_version = NEW.successor_version
      AND (s.status <> 'active' OR s.act_type <> NEW.act_type OR s.operation_code = NEW.operation_code
        AND (s.major, s.minor, s.patch) <= (NEW.major, NEW.minor, NEW.patch)))
BEGIN SELECT RAISE(ABORT, 'registry_values_forward'); END;
CREATE TRIGGER registry_values_delete BEFORE DELETE ON registry_values
BEGIN SELECT RAISE(ABORT, 'registry_values_kept'); END;
--]
--[postgresql
-- A subject's state is written only together with the event of its own stream that says so. Arguments: its key, its state.
CREATE FUNCTION subject_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  mine JSONB := to_jsonb(NEW);
  said JSON;
  told TEXT;
  broken BOOLEAN;
BEGIN
  SELECT e.body::json, s.stream INTO said, told FROM events e JOIN streams s ON s.stream_no = e.stream_no
    WHERE e.position = NEW.position;
  broken := said IS NULL OR told IS DISTINCT FROM TG_ARGV[0] || ':' || (mine ->> TG_ARGV[1])
    OR said #>> '{detail,to}' IS DISTINCT FROM mine ->> TG_ARGV[2]
    OR said #>> '{detail,transition_seq}' IS DISTINCT FROM NEW.version::text;
  IF TG_OP = 'UPDATE' THEN
    broken := broken OR NEW.version <> OLD.version + 1
      OR said #>> '{detail,from}' IS DISTINCT FROM to_jsonb(OLD) ->> TG_ARGV[2];
  END IF;
  IF broken THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = TG_TABLE_NAME || '_moved', CONSTRAINT = TG_TABLE_NAME || '_moved';
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION registry_values_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM registry_values s
      WHERE s.operation_code = NEW.successor_code AND s.protocol_version = NEW.successor_version
        AND (TG_OP = 'UPDATE' AND s.status <> 'active' OR s.act_type <> NEW.act_type
          OR s.operation_code = NEW.operation_code
            AND (s.major, s.minor, s.patch) <= (NEW.major, NEW.minor, NEW.patch)))
     OR EXISTS (SELECT 1 FROM registry_values v
      WHERE v.successor_code = NEW.operation_code AND v.successor_version = NEW.protocol_version
        AND TG_OP = 'INSERT' AND (v.act_type <> NEW.act_type OR (v.operation_code = NEW.operation_code
          AND (NEW.major, NEW.minor, NEW.patch) <= (v.major, v.minor, v.patch)))) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'registry_values_forward', CONSTRAINT = 'registry_values_forward';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER registry_meta_change BEFORE UPDATE OR DELETE ON registry_meta
  FOR EACH ROW EXECUTE FUNCTION refuse('registry_meta_kept');
CREATE TRIGGER registry_collections_moved AFTER INSERT OR UPDATE ON registry_collections
  FOR EACH ROW EXECUTE FUNCTION subject_moved('entry', 'collection_id', 'status');
CREATE TRIGGER registry_collections_meaning BEFORE UPDATE ON registry_collections FOR EACH ROW
  WHEN (NEW.collection_id <> OLD.collection_id OR NEW.name <> OLD.name OR NEW.root <> OLD.root
    OR NEW.schema_digest <> OLD.schema_digest)
  EXECUTE FUNCTION refuse('registry_collections_moved');
CREATE TRIGGER registry_collections_delete BEFORE DELETE ON registry_collections
  FOR EACH ROW EXECUTE FUNCTION refuse('registry_collections_moved');
CREATE TRIGGER registry_values_moved AFTER INSERT OR UPDATE ON registry_values
  FOR EACH ROW EXECUTE FUNCTION subject_moved('entry', 'vocab_id', 'status');
CREATE TRIGGER registry_values_meaning BEFORE UPDATE ON registry_values FOR EACH ROW
  WHEN (NEW.vocab_id <> OLD.vocab_id OR NEW.collection_id <> OLD.collection_id
    OR NEW.operation_code <> OLD.operation_code OR NEW.protocol_version <> OLD.protocol_version
    OR (NEW.major, NEW.minor, NEW.patch) <> (OLD.major, OLD.minor, OLD.patch) OR NEW.act_type <> OLD.act_type
    OR NEW.governing_authority_ref <> OLD.governing_authority_ref OR NEW.semantics_frozen <> OLD.semantics_frozen
    OR NEW.digest <> OLD.digest OR NEW.root <> OLD.root
    OR (OLD.successor_code IS NOT NULL AND (NEW.successor_code, NEW.successor_version)
      IS DISTINCT FROM (OLD.successor_code, OLD.successor_version)))
  EXECUTE FUNCTION refuse('registry_values_meaning');
CREATE TRIGGER registry_values_forward BEFORE INSERT OR UPDATE OF successor_code, successor_version ON registry_values
  FOR EACH ROW EXECUTE FUNCTION registry_values_forward();
CREATE TRIGGER registry_values_delete BEFORE DELETE ON registry_values
  FOR EACH ROW EXECUTE FUNCTION refuse('registry_values_kept');
CREATE TRIGGER registry_values_truncate BEFORE TRUNCATE ON registry_values
  FOR EACH STATEMENT EXECUTE FUNCTION refuse('registry_values_kept');
--]
