-- Where the kernel stands: its machine, for which the lock row has no place, and the mark of its artifact root. A kernel on
-- another machine may take over from it only if it sees the same root.
ALTER TABLE kernel_beat ADD COLUMN machine_id TEXT NOT NULL DEFAULT '';
ALTER TABLE kernel_beat ADD COLUMN root_id TEXT NOT NULL DEFAULT '';
