# mypy: ignore-errors
"""Checks a bundle with nothing but Python's standard library, from the description inside it.

    python3 check_bundle.py FILE [FINGERPRINT ...]

Prints what it found and exits 0, or says what is wrong and exits 5. With fingerprints only those
keys are trusted.
"""

import base64
import hashlib
import json
import sys
import tarfile
from datetime import UTC, datetime
from itertools import pairwise

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
BASE_Y = 4 * pow(5, -1, P) % P


def sha(data):
    return hashlib.sha256(data).hexdigest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def require(true, why):
    if not true:
        sys.exit(print(f"WRONG: {why}", file=sys.stderr) or 5)


def point(data):
    """The point of the curve that 32 bytes encode, as x, y, z, x*y."""
    number = int.from_bytes(data, "little")
    y, sign = number & (2**255 - 1), number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    require(
        y < P and (x * x - square) % P == 0 and (x or not sign),
        "a key or signature is no point of the curve",
    )
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


def add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number, p):
    found = (0, 1, 1, 0)
    while number:
        found, p, number = add(found, p) if number & 1 else found, add(p, p), number >> 1
    return found


def signed(public, signature, message):
    """RFC 8032: whether s*B = R + h*A."""
    base = point(BASE_Y.to_bytes(32, "little"))
    r, s = point(signature[:32]), int.from_bytes(signature[32:], "little")
    h = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % ORDER
    left, right = times(s, base), add(r, times(h, point(public)))
    return s < ORDER and all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))


def statement(envelope, keys):
    """What a DSSE envelope says, once its signature is checked."""
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    (one,) = envelope["signatures"]
    key = keys.get(one["keyid"])
    require(key is not None, f"the key {one['keyid'][:16]} is not in the bundle")
    public = bytes.fromhex(key["public_key"])
    require(sha(public) == one["keyid"], "a key is not what its fingerprint says")
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    require(signed(public, base64.b64decode(one["sig"]), message), "a signature is not genuine")
    return json.loads(payload), sha(payload), key


def root_of(leaf, index, size, path):
    """RFC 9162, 2.1.3.2: the root to which a leaf and its path lead."""
    found, at, last = hashlib.sha256(b"\0" + leaf).digest(), index, size - 1
    for beside in map(bytes.fromhex, path):
        if at & 1 or at == last:
            found = hashlib.sha256(b"\1" + beside + found).digest()
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            found = hashlib.sha256(b"\1" + found + beside).digest()
        at, last = at >> 1, last >> 1
    return found.hex() if last == 0 else None


def chains(lines):
    """Every event in its chain; answers the heads of the streams and all events by their place."""
    heads, events = {}, {}
    for line in lines:
        event = json.loads(line)
        require(canonical(event) == line, "a line is not canonical")
        stream, seq, claimed = event["stream_id"], event["seq"], event.pop("hash")
        require(sha(canonical(event)) == claimed, f"{stream}#{seq} has another hash than it claims")
        before = heads.get(stream, (0, "0" * 64))
        follows = (seq, event["prev_hash"]) == (before[0] + 1, before[1])
        require(follows or stream == "workspace", f"{stream}#{seq} breaks its chain")
        heads[stream] = (seq, claimed)
        events[stream, seq] = {**event, "hash": claimed}
    for (stream, seq), event in events.items():
        if stream.startswith("child:"):
            copy = events.get(
                (event["detail"]["parent_stream_id"], event["detail"]["parent_seq"]), {}
            )
            same = all(event[part] == copy.get(part) for part in ("context", "detail", "event"))
            require(same, f"{stream}#{seq} is not what its session says")
    return heads, events


def verified(rows):
    """Of a change: the manifest is what its hash says, its history hangs together; who cut or
    verified it, if that was the last that happened."""
    for manifest in rows["manifests.ndjson"]:
        require(
            sha(manifest["body"].encode()) == manifest["content_hash"],
            "what was proposed is not what its hash says",
        )
    pairs = {pair["signature_id"]: pair for pair in rows["pairs.ndjson"]}
    arrows = sorted(rows["history.ndjson"], key=lambda row: row["seq"])
    states = [(row.get("from_state"), row["to_state"]) for row in arrows]
    require(all(a[1] == b[0] for a, b in pairwise(states)), "its history does not hang together")
    require(
        not arrows or states[-1][1] == rows["entries.ndjson"][0]["status"],
        "its status is not where its history ends",
    )
    last = arrows[-1].get("signature_ref") if arrows else None
    return {pairs[last]["fingerprint"]} if last else set()


DECIDED = {"ENTRY_APPROVED": "approve", "ENTRY_DEFERRED": "defer", "ENTRY_REJECTED": "reject"}
NEEDED = {
    "APPROVAL_GIVEN",
    "APPROVAL_REFUSED",
    "CONFIRMATION_MINTED",
    "BUILD_PAUSED",
    "BUILD_ABANDONED",
    "ENTRY_MARKED",
    "ENTRY_REVISED",
    "ENTRY_SWEPT",
    "ENTRY_REVIEWED",
    "ENTRY_ABANDONED",
    *DECIDED,
    "GRANT_DRAFTED",
    "GRANT_ISSUED",
    "GRANT_REVOKED",
}
"""What only somebody's signature makes."""


def fits(act, payload, subject, name, detail):
    """Whether what was signed is what an event says; of acts that are not told apart here,
    whether it is the same thing."""
    if act == "changes.review":
        decision = DECIDED.get(name, detail.get("decision"))
        said = (payload["entry"], payload["digest"], payload["decision"])
        return said == (subject, detail["manifest"], decision)
    if act == "changes.mark":
        return payload["manifest"] == detail["manifest"]
    if act == "builds.approve":
        refused = bool(payload.get("refuse")) == (name == "APPROVAL_REFUSED")
        return refused and (payload["build"], payload["digest"]) == (subject, detail["digest"])
    if act == "builds.confirm":
        return (payload["build"], payload["token_hash"]) == (subject, detail["token_hash"])
    if act == "builds.pause":
        names = ("permit_id", "token_hash", "expires_at")
        return payload["build"] == subject and all(payload[one] == detail[one] for one in names)
    named = [payload[one] for one in ("build", "grant", "entry", "saga") if one in payload]
    return not named or act == "children.cancel" or named[0] in (subject, detail.get("child_id"))


def asked_for(events, statements):
    """Every event that needs somebody's word names a statement that asks for exactly that, and
    for nothing twice."""
    followed = set()
    for (stream, seq), event in events.items():
        detail, hash_ = event["detail"], event["context"].get("signed")
        place = f"{stream}#{seq}"
        # An entry that a failed verification opens is told by that one, which is signed.
        require(
            hash_ or event["event"] not in NEEDED or detail.get("escalates"),
            f"nobody signed for {place}",
        )
        if not hash_ or stream == "workspace":
            continue
        require(hash_ in statements, f"nobody signed what {place} names")
        once = (hash_, stream, event["event"])
        require(
            once not in followed or event["event"] not in NEEDED,
            f"{place} follows a second time from what was signed once",
        )
        followed.add(once)
        said = statements[hash_]
        told = said["predicate"]
        require(
            said["subject"][0]["digest"]["sha256"] == sha(canonical(told["payload"])),
            "what was asked is not what its digest says",
        )
        who = told["act"] == "builds.pause" or told["principal"] == event["context"]["actor"]
        subject = stream.partition(":")[2]
        if "seconds" in told["payload"] and "expires_at" in detail:
            lasts = told["asked_at"] + told["payload"]["seconds"] * 1_000_000
            require(detail["expires_at"] <= lasts, f"{place} lasts longer than was signed")
        require(
            who and fits(told["act"], told["payload"], subject, event["event"], detail),
            f"{place} is not what was signed",
        )


def as_told(rows, events):
    """Decisions, approvals, confirmation tokens and grants are what their events say."""
    told = list(events.values())

    def found(names, **wanted):
        return any(
            event["event"] in names
            and all(
                {**event["detail"], **event["context"]}.get(one) == value
                for one, value in wanted.items()
            )
            for event in told
        )

    for row in rows.get("decisions.ndjson", ()):
        names = [name for name, word in DECIDED.items() if word == row["decision"]]
        own = {"decision_id": row["decision_id"], "manifest": row["content_hash"]}
        own |= {"actor": row["reviewer"], "signed": row.get("statement_hash")}
        require(
            found(names, **own) or found(["ENTRY_REVIEWED"], **own, decision=row["decision"]),
            f"no event tells of the decision {row['decision_id']}",
        )
    for row in rows["approvals.ndjson"]:
        if row.get("decision"):
            names = ["APPROVAL_GIVEN" if row["decision"] == "approved" else "APPROVAL_REFUSED"]
            own = {"digest": row["digest"], "actor": row["actor"]}
            require(
                found(names, **own, signed=row.get("statement_hash")),
                "no event tells of an approval",
            )
    for row in rows["permits.ndjson"]:
        own = {name: row[name] for name in ("permit_id", "token_hash", "expires_at")}
        require(
            found(["BUILD_PAUSED", "CONFIRMATION_MINTED"], **own),
            "no event tells of a confirmation token",
        )
    for row in rows.get("grants.ndjson", ()):
        if row.get("granter"):
            own = {"actor": row["granter"], "signed": row["statement_hash"]}
            require(
                found(["GRANT_ISSUED"], **own, expires_at=row["expires_at"]),
                "no event tells of a grant",
            )


ROWS = {
    "builds.ndjson": {
        "stream": ("session", "build"),
        "key": "build_id",
        "state": "state",
        "unless": {"plan_hash": "", "plan_file": "", "resumed_at": 0, "reuse": 1, "choices": "{}"},
        "by": {
            "BUILD_CREATED": {"plan_hash": "detail", "parent_build_id": "detail"},
        },
    },
    "tokens.ndjson": {
        "stream": ("child", "child"),
        "key": "child_id",
        "state": "phase",
        "unless": {
            "schema": "scheduler_dispatch_token@1",
            "kind": "function",
            "attempt": 1,
            "due_at": 0,
        },
        "by": {
            "*": {
                "parent_session_id": "context:session_id",
                "parent_stream_id": "detail",
                "dispatch_seq": "detail",
                "lease_id": "detail",
                "worker_run_id": "detail:lease_id",
                "work": "sha256:work",
                "target": "detail",
                "attempt": "detail",
                "predecessor": "detail",
                "cancel_request_id": "detail",
                "joined_request_ids": "text:joined_request_ids",
            },
            "WORKER_START": {"started_at": "time"},
            "WORKER_PASS": {"reason": "detail"},
            "WORKER_CANCEL": {"reason": "detail"},
            "WORKER_FAIL": {"reason": "detail", "code": "detail"},
        },
    },
    "sagas.ndjson": {
        "stream": ("saga", "saga"),
        "key": "saga_id",
        "state": "state",
        "unless": {"lease_fence": 0, "undone": 0, "settled": 0},
        "by": {
            "*": {"undone": "detail"},
            "SAGA_CREATED": {
                "name": "detail",
                "idempotency_root": "detail",
                "shape": "detail",
                "input": "detail",
                "file": "detail",
                "lease": "detail",
                "digests": "detail",
                "grant_id": "detail",
            },
            "LEASE_TAKEN": {"lease_fence": "detail:epoch"},
            "SAGA_ADVANCED": {"last_ok_state": "detail:from"},
            "SAGA_STUCK": {"stuck": "text:why"},
        },
    },
    "grants.ndjson": {
        "stream": ("entry", "grant"),
        "key": "grant_id",
        "state": "status",
        "unless": {"expires_at": 0},
        "by": {
            "GRANT_DRAFTED": {
                "plan_id": "detail",
                "revision": "detail",
                "manifest_digest": "detail",
                "schema_digest": "detail",
                "environment": "detail",
                "executor": "detail",
                "actions": "text:actions",
            },
            "GRANT_ISSUED": {
                "granter": "context:actor",
                "statement_hash": "context:signed",
                "expires_at": "detail",
            },
            "GRANT_CONSUMED": {"consumed_by_root": "detail:root"},
            "GRANT_FINALIZED": {"finalized_at": "time"},
        },
    },
    "collections.ndjson": {
        "stream": ("entry", "collection"),
        "key": "collection_id",
        "state": "status",
        "unless": {},
        "by": {
            "COLLECTION_CREATED": {"name": "detail", "schema_digest": "detail", "root": "detail"},
        },
    },
    "values.ndjson": {
        "stream": ("entry", "value"),
        "key": "vocab_id",
        "state": "status",
        "unless": {},
        "by": {
            "VALUE_ADMITTED": {
                "collection_id": "detail",
                "operation_code": "detail",
                "protocol_version": "detail",
                "act_type": "detail",
                "governing_authority_ref": "detail",
                "semantics_frozen": "detail",
                "digest": "detail",
                "root": "detail",
            },
            "VALUE_SUPERSEDED": {"audit_id": "detail"},
        },
    },
    "entries.ndjson": {
        "stream": ("entry", "change"),
        "key": "entry_id",
        "state": "status",
        "unless": {},
        "by": {
            "ENTRY_MARKED": {
                "idempotency_key": "detail",
                "author": "detail",
                "cutter": "detail",
                "target": "detail",
                "reason": "detail:why",
                "escalates": "detail",
            },
        },
    },
    "change_sets.ndjson": {
        "stream": ("entry", "change_set"),
        "key": "change_set_id",
        "state": "status",
        "unless": {},
        "by": {
            "CUT_OPENED": {
                "entry_id": "detail",
                "decision_id": "detail",
                "kind": "detail",
                "of_change_set": "detail",
                "executor": "detail",
            },
        },
    },
}
"""Of each file of rows: the stream and source of their events, what a column is unless an event
says it, and which part of which event says it. An event may also carry columns as they stand, in
`detail.columns`."""


def micros(event):
    """The time of an event in microseconds since 1970."""
    at = datetime.strptime(event["ts"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def added_up(events, rule):
    """What the row is that a subject's events tell of; digests stand beside, as only they are
    told."""
    row, digests = {}, {}
    for event in events:
        detail, at = event["detail"], micros(event)
        if not row:
            row = {**rule["unless"], "created_at": at, "updated_at": at}
        if "transition_seq" in detail:
            row[rule["state"]], row["version"] = detail["to"], detail["transition_seq"]
            row["updated_at"] = max(row["updated_at"], at)
        said = {**rule["by"].get("*", {}), **rule["by"].get(event["event"], {})}
        for column, where in said.items():
            part, _, name = where.partition(":")
            name = name or column
            if part == "time":
                row[column] = at
            elif part == "context" and name in event["context"]:
                row[column] = event["context"][name]
            elif part == "detail" and name in detail:
                row[column] = detail[name]
            elif part == "text" and name in detail:
                row[column] = canonical(detail[name]).decode()
            elif part == "sha256" and name in detail:
                digests[column] = detail[name]
        row.update(detail.get("columns", {}))
    return row, digests


def add_up(rows, events):
    """Every row of a lifecycle is what its events add up to, in every column."""
    by_stream = {}
    for (stream, _), event in sorted(events.items()):
        by_stream.setdefault(stream, []).append(event)
    for file, rule in ROWS.items():
        prefix, source = rule["stream"]
        for row in rows.get(file, ()):
            subject = row[rule["key"]]
            told = [
                event
                for event in by_stream.get(f"{prefix}:{subject}", ())
                if event["source"] == source
                or (source == "saga" and event["event"] == "LEASE_TAKEN")
            ]
            if not told:
                waits = file == "tokens.ndjson" and row["phase"] in ("queued", "leased")
                require(waits, f"no event tells of {subject}")
                continue
            found, digests = added_up(told, rule)
            found[rule["key"]] = subject
            asked = [
                event["detail"]["cancel_request_id"]
                for event in by_stream.get(f"session:{row.get('parent_session_id')}", ())
                if event["event"] == "CANCEL_ASKED" and event["detail"]["child_id"] == subject
            ]
            if asked:
                found["cancel_request_id"] = asked[0]
            if asked[1:]:
                found["joined_request_ids"] = canonical(asked[1:]).decode()
            for column, digest in digests.items():
                if column not in found:
                    require(
                        sha(row.get(column, "").encode()) == digest,
                        f"{column} of {subject} is not what its events say",
                    )
            for column in (row.keys() | found.keys()) - digests.keys():
                require(
                    row.get(column) == found.get(column),
                    f"{column} of {subject} is not what its events say",
                )


def main(path, trusted):
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
        require(len(files) == len(tar.getmembers()), "something is in it twice")
    page = json.loads(files.pop("bundle.json"))
    listed = {file["name"]: (file["size"], file["sha256"]) for file in page["files"]}
    require(
        listed == {name: (len(data), sha(data)) for name, data in files.items()},
        "a file is not what is listed",
    )
    rows = {
        name: [json.loads(line) for line in data.splitlines()]
        for name, data in files.items()
        if "ndjson" in name
    }
    heads, events = chains(files["events.ndjson"].splitlines())
    change = page["kind"] == "entry"
    session = f"{'entry' if change else 'session'}:{page['subject']}"
    keys = {key["fingerprint"]: key for key in rows["keys.ndjson"]}
    for total in rows["totals.ndjson"]:
        lane = (total["parent_session_id"], total["budget_lane"])
        debits = [
            d["amount"]
            for d in rows["debits.ndjson"]
            if (d["parent_session_id"], d["budget_lane"]) == lane
        ]
        require(sum(debits) == total["total"], f"the debits of {lane[1]} do not make its total")
    for plan in rows["plans.ndjson"]:
        body = json.loads(plan["body"])
        body["stages"] = [
            {key: stage[key] for key in stage if key != "inputs_of"} for stage in body["stages"]
        ]
        require(sha(canonical(body)) == plan["plan_hash"], "the plan is not what its hash says")
    for event in events.values():
        if event["event"] == "BUILD_SUCCEEDED":
            require(
                sha(files["manifest.ndjson"]) == event["detail"]["outputs"],
                "it made something else than it says",
            )
    for row in rows["artifacts.ndjson"]:
        data = files.get(f"artifacts/{row['sha256']}")
        require(
            page["artifacts"] == "digests" or (data is not None and sha(data) == row["sha256"]),
            "an artifact differs",
        )
    signers, ends, statements = set(), set(), {}
    # A build's moves stand in its session's stream, those of a saga's run in a stream of its own.
    if page["kind"] == "saga":
        own = (f"saga:{page['subject']}", "saga")
    else:
        own = (session, "change" if change else "build")
    moved = max(
        (seq for (stream, seq), e in events.items() if (stream, e["source"]) == own), default=0
    )
    for row in rows["signatures.ndjson"]:
        said, hash_, key = statement(row["envelope"], keys)
        act = events["workspace", row["seq"]]
        require(
            act["event"] == "ACT_SIGNED" and act["detail"]["statement"] == hash_,
            "no event tells of a signature",
        )
        require(
            key["added_seq"] < row["seq"] < key.get("revoked_seq", 2**53), "a key was not in force"
        )
        head = said["predicate"].get("head", {"stream": ""})
        if head["stream"] == own[0]:
            ends |= {key["fingerprint"]} if head["seq"] == moved else set()
            require(
                events[own[0], head["seq"]]["hash"] == head["hash"],
                "its end is not the one that was signed",
            )
        signers.add(key["fingerprint"])
        statements[hash_] = said
    asked_for(events, statements)
    as_told(rows, events)
    add_up(rows, events)
    if change:
        last = [
            event
            for (stream, _), event in sorted(events.items())
            if (stream, event["source"]) == own
        ][-1]
        asked = {
            sha(base64.b64decode(r["envelope"]["payload"])): r["envelope"]
            for r in rows["signatures.ndjson"]
        }
        acted = asked.get(last["context"].get("signed", ""))
        ends = verified(rows) | ({acted["signatures"][0]["keyid"]} if acted else set())
    if "seal.json" in files:
        seal = json.loads(files["seal.json"])
        said, _, key = statement(seal["envelope"], keys)
        stream, seq, hash_ = seal["head"]
        require((stream, (seq, hash_)) == (session, heads[session]), "the seal is of another end")
        leaf = canonical({"hash": hash_, "seq": seq, "stream": stream})
        root = root_of(
            leaf, seal["proof"]["index"], said["predicate"]["streams"], seal["proof"]["path"]
        )
        require(
            root == said["predicate"]["root"], "the stream is not one of those that were sealed"
        )
        signers.add(key["fingerprint"])
        ends.add(key["fingerprint"])
    known = any(end.startswith(trusted) for end in ends) and all(
        signer.startswith(trusted) for signer in signers
    )
    require(
        known or not trusted, "nobody who is trusted signed its end, or somebody else signed too"
    )
    print(
        f"sound: {page['kind']} {page['subject']}, {len(events)} events, signed by {', '.join(sorted(signers))}"
    )


if __name__ == "__main__":
    main(sys.argv[1], tuple(sys.argv[2:]))
