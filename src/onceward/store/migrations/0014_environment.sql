-- With which code and in which environment a step was done (B-3, B-6, B-11). NULL: before this was recorded, or no function.
ALTER TABLE checkpoints ADD COLUMN code_version TEXT;
ALTER TABLE checkpoints ADD COLUMN environment_hash TEXT;
