-- When the kernel last showed that it lives, on a clock that nobody sets: it decides within one boot of one machine,
-- where the lock row's own timestamp could be moved by setting the wall clock. `progress` tells a kernel that beats
-- from one that also works.
CREATE TABLE kernel_beat (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  fence INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  steady INTEGER NOT NULL,
  progress INTEGER NOT NULL
) STRICT;
