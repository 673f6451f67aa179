"""Every bound, each with its reason. `docs/reference/limits.md` is made from this file."""

from __future__ import annotations

from typing import Final

MAX_INTEGER: Final = 2**53 - 1
"""Largest integer in canonical bytes: what every JSON reader can hold exactly."""

MAX_DEPTH: Final = 100
"""Deepest nesting in canonical bytes: deeper values overflow some reader's stack."""

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Longest request payload, answer or event detail: larger things are artifacts, not records."""

MAX_REQUEST_ID_CHARS: Final = 128
"""Longest `client_request_id`: enough for any UUID or hash, short enough for an index."""

MAX_NAME_CHARS: Final = 128
"""Longest principal, sink or subject name."""

MAX_NOTE_CHARS: Final = 1000
"""How much of a reason that somebody gives is kept."""

MAX_BATCH: Final = 128
"""Most transactions that share one commit: bounds how long the first of them waits."""

GATHER_SECONDS: Final = 0.00005
"""A leader whose last commit was shared goes ahead when nobody joined for this long: less than a disk sync."""

BUSY_MILLIS: Final = 10_000
"""How long a SQLite writer waits for another process's transaction before it gives up."""

TRANSIENT_RETRIES: Final = 5
"""How often a transaction that PostgreSQL asked to repeat is run again before COMMIT."""

HEAD_CACHE: Final = 4096
"""Stream heads a kernel remembers; an evicted one is read again from the store."""

LOCK_HEARTBEAT_SECONDS: Final = 5.0
"""How often a kernel shows that it lives."""

LOCK_TTL_MS: Final = 600_000
"""Silence after which a kernel's lock may be taken even though its process may still live, on SQLite, unless the
workspace says otherwise."""

POSTGRES_LOCK_TTL_MS: Final = 60_000
"""The same on PostgreSQL, where another machine can take over, and people wait for that."""

MIN_LOCK_TTL_MS: Final = 15_000
"""The shortest such silence: three beats, so that a kernel that lives is heard of although one or two are late."""

REQUEST_WAIT_SECONDS: Final = 30.0
"""How long a command waits for a live kernel's answer before it exits 3 with the request id."""

STANDBY_SECONDS: Final = 0.5
"""How often a standby looks whether the workspace is free."""

REQUEST_POLL_SECONDS: Final = 0.05
"""How often a kernel looks for requests, and an asker for its answer."""

REQUEST_TAKES: Final = 3
"""How often the kernel may die while it takes one request before that is answered as failed: once is an accident."""

IMPORT_SECONDS: Final = 20.0
"""How long `serve` lets a plan or saga take to be loaded, unless the settings say otherwise."""

IMPORT_BYTES: Final = 1024 * 1024 * 1024
"""How much address space `serve` lets a plan or saga take to be loaded, unless the settings say otherwise."""

IMPORT_LEAST_BYTES: Final = 128 * 1024 * 1024
"""The least address space to load anything in: Python and Onceward themselves take about half of it."""

HANDSHAKE_SECONDS: Final = 30.0
"""How long a forked child may take to say who it is: far beyond what a loaded machine needs."""

STOP_GRACE_SECONDS: Final = 5.0
"""How long a child that was asked to end has before it is killed."""

OUTPUT_BYTES: Final = 1024 * 1024
"""How much of a child's standard output, and of its error, is kept: its first half and its last."""

ARTIFACT_BYTES: Final = 25 * 1024 * 1024
"""Largest artifact unless the settings say otherwise: what a person can still look at."""

ARTIFACT_INLINE_BYTES: Final = 8 * 1024
"""Up to this size an artifact travels in the commit that refers to it: cheaper than a synced file of its own."""

GC_GRACE_SECONDS: Final = 3600.0
"""How long an artifact that nobody refers to is left alone: a commit for it may still be on its way."""

MAX_JOBS: Final = 1000
"""Most children of a session that may run at once."""

MAX_TIMEOUT_SECONDS: Final = 30 * 86_400
"""Longest time limit of a child."""

MAX_ACTIVE_CHILDREN: Final = 2
"""How many children of a session run at once unless somebody asks for more."""

TARGET_RETRY_FIRST_SECONDS: Final = 0.1
"""First pause before a target that somebody else holds is tried again; it doubles."""

TARGET_RETRY_MAX_SECONDS: Final = 5.0
"""Longest such pause."""

TARGET_WAIT_SECONDS: Final = 3600
"""How long a step or a child waits in the queue for a target that somebody else holds, unless `[limits]` says else."""

REPORT_LINE_BYTES: Final = 64 * 1024
"""Longest line of a child's report: a line that long is no report."""

REPORT_MISTAKES: Final = 100
"""How many lines that cannot be read a child may report before it is ended."""

REFUSED_SECONDS: Final = 1.0
"""How long a child whose debit was refused may take to end by itself before it is asked to."""

CHILD_TIMEOUT_SECONDS: Final = 300.0
"""How long a step may take unless its stage says otherwise."""

RETRY_FIRST_MICROS: Final = 1_000_000
"""First pause before a failed child is tried again; it doubles with each attempt, with jitter."""

RETRY_MAX_MICROS: Final = 60 * 1_000_000
"""Longest pause between two attempts."""

FOLLOW_SECONDS: Final = 0.2
"""How often somebody who follows a stream looks for more."""

OUTBOX_BATCH: Final = 100
"""Events delivered to a sink between two commits: how many are repeated at most after a crash."""

OUTBOX_TRIES: Final = 10
"""Tries after which an event is parked: about a day of backing off."""

OUTBOX_BACKOFF_MICROS: Final = 1_000_000
"""First pause after a failed delivery; it doubles with each try."""

OUTBOX_BACKOFF_MAX_MICROS: Final = 6 * 3600 * 1_000_000
"""Longest pause between two tries of one event."""

WEBHOOK_TIMEOUT_SECONDS: Final = 10.0
"""How long one call of a webhook may take in all, from looking up its name to the end of its answer."""

FLUSH_SECONDS: Final = 1.0
"""How long a kernel that leaves waits for webhooks: what they have not accepted then waits for the next kernel."""

NOTICE_SECONDS: Final = 20.0
"""How long a notify command may take."""

LEAVING_SECONDS: Final = 3.0
"""How long a kernel that leaves waits for notices, because a person waits for them, and, when it is interrupted, for
a disk."""

WAL_ALARM_BYTES: Final = 64 * 1024 * 1024
"""A write-ahead log larger than this means a reader is stuck; `doctor` says so."""

PERMIT_SECONDS: Final = 3600
"""How long a confirmation token is good, unless the workspace says otherwise: a person who is asked answers within the
hour, or asks for a new one."""

MAX_CONFIRMATION_SECONDS: Final = 366 * 86_400
"""The longest that a confirmation token can be made to last."""

TOKEN_SECONDS: Final = 366 * 86_400
"""The longest that a bearer token lasts."""

GRANT_SECONDS: Final = 7 * 86_400
"""The longest that a grant lasts."""

LEASE_SECONDS: Final = 60
"""How long a run's lease lasts without being renewed: longer than any pause of a kernel that lives, and short enough
to wait for."""

APPROVAL_SECONDS: Final = 7 * 86_400
"""How long an approval of a change is good, unless the workspace says otherwise."""

LONG_LINE: Final = 2000
"""How many characters of a line a page shows, unless all is asked for."""
WHOLE_DIFF_BYTES: Final = 32 * 1024 * 1024
"""The same where all of it is asked for."""
DIFF_BYTES: Final = 512 * 1024
"""Largest file whose difference is shown line by line: what a person could still read."""

MAX_NAMED_PATHS: Final = 100
"""How many paths a result names; all of them are counted."""

MAX_COMPARED_BYTES: Final = 64 * 1024 * 1024
"""Largest file of a tree, beside those of a change, that is compared by its bytes; a larger one by size, times and inode."""

MAX_IGNORE_BYTES: Final = 256 * 1024
"""How much of a `.gitignore` is read."""

MAX_UNITS: Final = 10_000
"""Most files of one change: what a person can still be said to have looked at."""

MAX_PLAN_ID_CHARS: Final = 64
"""Longest id of a registry plan: with its grant it makes the root of its run."""

MAX_ACTIONS: Final = 100
"""Most actions of one saga: what a person can follow."""

MAX_STEPS: Final = 1_000_000
"""Most steps of one plan: what one kernel's memory holds with ease."""

MAX_TARGET_CHARS: Final = 200
"""Longest target name: with its stage it must still fit into a path."""

MEDIAN_OF: Final = 101
"""How many recorded costs of a stage its estimate is drawn from."""

SPILL_BYTES: Final = 64 * 1024 * 1024
"""How many bytes of small artifacts may stay in their rows: beyond that they are moved into files of their own."""

HTTP_BODY_BYTES: Final = 1024 * 1024
"""Largest body of a request over HTTP that is not an upload."""

BROUGHT_SECONDS: Final = 600.0
"""How long a server remembers the values of variables that somebody brought for a request: until it is taken."""

MAX_BROUGHT: Final = 200
"""For how many requests a server remembers such values at once."""

HTTP_HEAD_SECONDS: Final = 10.0
"""How long whoever calls over HTTP may take to say what they want."""

HTTP_BODY_SECONDS: Final = 10.0
"""How long the body of a request over HTTP may take to come."""

FEED_SECONDS: Final = 0.25
"""How often a server looks for new events while anybody listens."""

FEED_SHARE: Final = 40
"""Telling all who listen takes at most one part in so many of the time: with very many they are told less often."""

TIDY_SECONDS: Final = 0.5
"""How often a kernel at work brings its stream files up to date."""

WAL_CHECKPOINT_PAGES: Final = 4000
"""Pages of 4 KiB after which SQLite's log is written back: seldom enough that hot pages are written once for many
commits, and far below the size at which `doctor` warns."""

MAX_OUTPUT_FILES: Final = 100_000
"""Most files of an output: more than that nobody hands on as a folder."""

MAX_OUTPUT_PATH: Final = 1024
"""Longest path in an output, in bytes: what every filesystem and archive can hold below a folder."""
